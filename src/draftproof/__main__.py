"""`python -m draftproof`."""

from draftproof.cli.main import main

main()
