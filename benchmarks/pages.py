"""How fast the pages draw and how smoothly they move, in headless Chromium.

Run: python benchmarks/pages.py. Prints the time from navigation to the first frame after everything is built (median
of five, bound 200 ms), frames per second while a bar is dragged with 8 tokens (bound 30), and what walking through a
trace of 2 000 tokens costs per step.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession, Page, sync_playwright

from draftproof.draft.scripted import ScriptedDrafter
from draftproof.engine import Engine
from draftproof.explain.page import explain_page
from draftproof.sampling.params import SamplingParams
from draftproof.target.table import TableModel, TableTarget
from draftproof.trace import Recorder, trace_page

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FIRST_FRAME = (
    "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"
)
# One move of a bar a frame, for two seconds: what a hand does, without the cost of driving the browser.
DRAG = """() => new Promise((done) => {
  document.getElementById("bars").scrollIntoView({ block: "center" });
  let frames = 0, longest = 0, started = performance.now(), before = started;
  const tick = (now) => {
    longest = Math.max(longest, now - before);
    before = now;
    frames++;
    draftproof.state.move("p", 3, 0.5 + 0.45 * Math.sin(frames / 7));
    if (now - started < 2000) requestAnimationFrame(tick);
    else done([1000 * frames / (now - started), longest]);
  };
  requestAnimationFrame((now) => { started = before = now; tick(now); });
})"""
WALK = """() => new Promise((done) => {
  const times = [];
  const step = () => {
    const started = performance.now();
    draftproof.run.choose((draftproof.run.chosen + 7) % draftproof.run.tokens.length);
    document.body.getBoundingClientRect();
    times.push(performance.now() - started);
    if (times.length < 200) requestAnimationFrame(step);
    else { times.sort((a, b) => a - b); done([times[100], times[189]]); }
  };
  step();
})"""


def long_trace(tokens: int) -> str:
    """The page of a run of so many tokens on a toy model with a fair draft."""
    size = 12
    row = [(i + 1) / sum(range(1, size + 1)) for i in range(size)]
    engine = Engine(
        TableTarget(TableModel({(): row}, size)),
        drafter=ScriptedDrafter(lambda history, drafted: size - 1 - (len(history) + len(drafted)) % 3),
    )
    recorder = Recorder(engine)
    engine.observers.append(recorder)
    result = engine.generate([0], SamplingParams(max_tokens=tokens, seed=1))
    return trace_page(recorder.trace(result.choices))


def first_frame(page: Page, path: Path) -> float:
    """Median over five openings of the time to the first frame after the page was built, in ms."""
    times = []
    for _ in range(5):
        page.goto("about:blank")
        page.goto(path.as_uri())
        times.append(page.evaluate(FIRST_FRAME))
    return float(statistics.median(times))


def built(page: Page) -> Any:
    """When the page's script had run, in ms after navigation."""
    return page.evaluate("() => performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")


def busy(session: CDPSession) -> float:
    """CPU time the page's main thread has used, in ms: free of what else the machine is doing."""
    metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    return 1000 * float(metrics["TaskDuration"])


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        explain, trace = Path(folder) / "explain.html", Path(folder) / "trace.html"
        explain.write_text(explain_page(), encoding="utf-8")
        trace.write_text(long_trace(2000), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        for name, path in (("explain", explain), ("trace, 2000 tokens", trace)):
            drawn = first_frame(page, path)
            print(f"{name}: built {built(page):.0f} ms, drawn {drawn:.0f} ms, {path.stat().st_size / 1000:.0f} kB")
        walk = page.evaluate(WALK)
        print(f"trace, 2000 tokens: a step takes {walk[0]:.1f} ms (median), {walk[1]:.1f} ms (95th percentile)")
        page.goto(explain.as_uri())
        page.select_option("#size", "8")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        before = busy(session)
        frames, longest = page.evaluate(DRAG)
        work = (busy(session) - before) / (2 * frames)
        print(f"drag, 8 tokens: {frames:.0f} frames a second, longest {longest:.0f} ms, {work:.1f} ms of CPU a frame")
        browser.close()


if __name__ == "__main__":
    main()
