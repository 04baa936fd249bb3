"""Proof: exact enumeration of programs and engines, equality of runs, sequential tests, planted faults.

A verifier of your own is proved in one line, with `from draftproof.proof import exact_distribution`:

    law = exact_distribution(lambda chance: my_verifier(p, q, chance))   # {outcome: probability}
"""

from draftproof.proof.engine_law import engine_law, target_law
from draftproof.proof.enumeration import EnumeratedChance, exact_distribution

__all__ = ["EnumeratedChance", "engine_law", "exact_distribution", "target_law"]
