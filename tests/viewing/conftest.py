"""A browser for the tests of pages: Debian's Chromium, with which playwright speaks."""

from __future__ import annotations

import shutil

import pytest

from nnef_jax.viewing.page import Page

CHROMIUM = shutil.which("chromium")
OFF = ["background-networking", "component-update", "sync", "gpu", "quic"]
FLAGS = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in OFF)]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Open a page; check that there are no errors, and no requests but for the page."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    said, asked = [], []

    def open(page: Page, link: str = "", size: tuple[int, int] = (1440, 900)):
        path = tmp_path / "page.html"
        page.save(path, overwrite=True)
        tab = context.new_page()
        tab.set_viewport_size({"width": size[0], "height": size[1]})
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("console", lambda message: said.append(message.text))
        tab.on("dialog", lambda dialog: said.append(dialog.message) or dialog.dismiss())
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(path.as_uri() + link)
        tab.wait_for_selector("html[data-drawn]")
        return tab

    yield open
    assert said == []
    page = (tmp_path / "page.html").as_uri()
    made = ("data:", "blob:")  # by the page itself
    assert {url.split("#")[0] for url in asked if not url.startswith(made)} <= {page}
    context.close()
