"""Draftproof: lossless speculative decoding, proved."""

__version__ = "0.1.0"
