"""Models on disk: finding them by name, obtaining and converting them, and their tokenizers.

Nothing in this package needs torch except `convert`, which is imported only when a GGUF file has to
be turned into a Hugging Face folder.
"""
