"""A headless Chromium for the tests of this folder, cut off from every network, and the pages to look at."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from pages_kit import CHROMIUM_FLAGS, Opened, nasty_trace

from draftproof.explain.page import explain_page
from draftproof.trace import trace_page


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    executable = shutil.which("chromium")
    if executable is None:
        pytest.fail("the page tests need Debian's chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def explain_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("explain") / "explain.html"
    path.write_text(explain_page(), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def nasty_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.html"
    path.write_text(trace_page(nasty_trace(60)), encoding="utf-8")
    return path


@pytest.fixture
def open_page(browser):
    """Opens a file; at the end of the test, no page may have complained or asked any host for anything."""
    opened = []

    def open_file(path, *, width=1280, height=900, scheme="light", locale="en-GB", context=None, scale=1):
        owner = context or browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            locale=locale,
            device_scale_factor=scale,
            reduced_motion="reduce",
        )
        page = Opened(owner, path)
        opened.append(page)
        return page.page

    yield open_file
    complaints = [complaint for page in opened for complaint in page.complaints]
    requests = [request for page in opened for request in page.requests]
    for page in opened:
        page.page.context.close()
    assert complaints == []
    assert requests == []


@pytest.fixture
def explain(open_page, explain_file):
    return open_page(explain_file)


@pytest.fixture
def nasty(open_page, nasty_file):
    return open_page(nasty_file)
