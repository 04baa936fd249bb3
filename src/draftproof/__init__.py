"""Draftproof: lossless speculative decoding, proved.

    from draftproof import Engine, SamplingParams

    engine = Engine.load("smollm2", draft="lookup", verifier="token")
    result = engine.generate("Why is the sky blue?", SamplingParams(max_tokens=64, temperature=0.7, seed=1))

Everything public is listed in `__all__` here and in the packages named in docs/architecture.md. Importing this needs
neither torch nor OpenVINO.
"""

from draftproof import errors, rule
from draftproof.chance import Chance
from draftproof.dist import Dist
from draftproof.draft.base import Drafter, DraftRequest, Proposal
from draftproof.engine import Engine
from draftproof.errors import DraftproofError
from draftproof.result import Event, FinishEvent, Result, TokenEvent
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.base import Schedule
from draftproof.target.base import Target
from draftproof.verify.base import Drafted, Origin, RowSource, Verdict, Verifier

__version__ = "0.1.0"

__all__ = [
    "Chance",
    "Dist",
    "DraftRequest",
    "Drafted",
    "Drafter",
    "DraftproofError",
    "Engine",
    "Event",
    "FinishEvent",
    "Origin",
    "Proposal",
    "Result",
    "RowSource",
    "SamplingParams",
    "Schedule",
    "Target",
    "TokenEvent",
    "Verdict",
    "Verifier",
    "__version__",
    "errors",
    "rule",
]
