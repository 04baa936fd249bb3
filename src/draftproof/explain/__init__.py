"""The derivation as a page to play with, and the assembling of self-contained pages."""
