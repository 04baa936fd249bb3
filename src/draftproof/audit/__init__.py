"""Audits: is an engine lossless? Evidence about ours and about any other, with its error rate."""
