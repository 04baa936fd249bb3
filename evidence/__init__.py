"""Slow evidence: scripts that measure what is too slow for the tests, and their recorded results."""
