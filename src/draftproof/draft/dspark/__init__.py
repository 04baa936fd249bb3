"""DSpark: a semi-autoregressive drafter that reads the target's hidden states (arXiv:2607.05147)."""
