"""What the page tests share: Chromium's flags, a page that is watched, and a run whose tokens try to break out."""

import random

from draftproof.dist import Dist
from draftproof.draft.scripted import ScriptedDrafter
from draftproof.engine import Engine
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.table import TableModel, TableTarget
from draftproof.trace import Recorder
from draftproof.verify import TokenVerifier

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

NASTY = [
    "<script>window.broken = 1</script>",
    "</script><script>window.broken = 2</script>",
    "</style><img src=x onerror='window.broken = 3'>",
    "\"'`&lt;&amp;",
    "{{script}}",
    "abc\u202edef",
    "\u2066\u200b",
    "\u2028\u2029",
    "😀",
    "\U0001f469\u200d\U0001f467",
    "\n",
    "\t",
    "\x00\x1b[31m",
    "\x85\ufeff",
    "שלום ",
    "中文",
    "<!--",
    " the",
    " fox",
    ". ",
]


class NastyTokenizer:
    """Each id is one of NASTY."""

    has_chat = False

    def encode(self, text):
        return [NASTY.index(text)]

    def prompt(self, text):
        return self.encode(text)

    def decode(self, ids, *, skip_special=True):
        return "".join(NASTY[i] for i in ids)

    def chat(self, messages):
        raise NotImplementedError

    def fingerprint(self):
        return "nasty"


def weights(prefix, salt, size):
    """A distribution that depends on the last two tokens, p and q (by salt) alike but not equal."""
    common, own = random.Random(f"{prefix[-2:]}"), random.Random(f"{prefix[-2:]}{salt}")
    values = [common.random() ** 6 + 0.4 * own.random() ** 3 for _ in range(size)]
    return [value / sum(values) for value in values]


def toy_engine(size=20, verifier=None, tokenizer=None, chance=None, length=4):
    """A table target, and a scripted drafter that sometimes proposes a point mass and sometimes nothing."""

    def script(history, drafted):
        if not drafted and len(history) % 7 == 0:
            return None
        if len(history) % 5 == 0:
            return (history[-1] + len(drafted)) % size
        return Dist.checked(weights((*history, *drafted), "q", size))

    return Engine(
        TableTarget(TableModel(lambda prefix: weights(prefix, "p", size), size)),
        drafter=ScriptedDrafter(script),
        verifier=verifier or TokenVerifier(),
        schedule=FixedSchedule(length),
        tokenizer=tokenizer,
        chance=chance,
    )


def nasty_run(tokens, **engine):
    """(trace, result) of a run whose text is made of NASTY."""
    running = toy_engine(tokenizer=NastyTokenizer(), **engine)
    recorder = Recorder(running)
    running.observers.append(recorder)
    # The first twenty tokens of the prompt are all of NASTY, so that every one of them reaches the page.
    result = running.generate(list(range(len(NASTY))), SamplingParams(max_tokens=tokens, seed=3))
    return recorder.trace(result.choices), result


def nasty_trace(tokens, **engine):
    """The trace of `nasty_run`."""
    return nasty_run(tokens, **engine)[0]


class Opened:
    """A page whose console and requests are written down; nothing but the file itself is let through."""

    def __init__(self, context, path):
        self.complaints = []
        self.requests = []
        self.page = context.new_page()
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        own = path.resolve().as_uri()

        def gate(route):
            if route.request.url == own:
                route.continue_()
            else:
                self.requests.append(route.request.url)
                route.abort()

        self.page.route("**/*", gate)
        self.page.goto(own)


def settle(page):
    """Wait until what was asked for has been drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def cells(page):
    """Every number of the table, by name: {"p-0": 0.45, ...}."""
    return page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('#numbers [data-cell]')]"
        ".map((c) => [c.dataset.cell, c.dataset.value === '' ? null : Number(c.dataset.value)]))"
    )
