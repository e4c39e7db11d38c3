"""The documentation site in Debian's chromium: nothing from other hosts, no page wider than its window, search."""

import re
from pathlib import Path

import pytest

SITE = Path(__file__).parent.parent / "build" / "site"
pytestmark = [
    pytest.mark.skipif(not (SITE / "search.html").exists(), reason="there is no site: make docs"),
]
PAGES = (
    "index", "start", "install", "identify", "ledger", "results", "ideas/verdict", "how-to/index",
    "tutorials/which-algorithm", "tutorials/sparse-maml", "generated/studies/one-step", "generated/reference/learners",
)  # fmt: skip
PATIENCE = 60_000  # milliseconds, for a busy machine


def test_no_page_asks_another_host(browser):
    for width in (400, 1400):
        page = browser.new_page(viewport={"width": width, "height": 900})
        asked, wrong, wide = [], [], []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
        for name in PAGES:
            page.goto((SITE / f"{name}.html").as_uri(), timeout=PATIENCE)
            if page.evaluate("document.documentElement.scrollWidth > window.innerWidth + 1"):
                wide.append(name)
        page.close()
        assert {url.split(":")[0] for url in asked} <= {"file", "data"}
        assert (wrong, wide) == ([], [])


def test_no_page_names_a_resource_of_another_host():
    """Links may lead elsewhere; images, scripts and styles may not."""
    outside = re.compile(r"<(?:img|script|link(?=[^>]*stylesheet)|iframe)\b[^>]*(?:src|href)=\"(?:https?:)?//[^>]*>")
    pages = [path for path in SITE.rglob("*.html") if path.name != "explore-page.html"]
    assert len(pages) > 60
    assert [path.name for path in pages if outside.search(path.read_text())] == []


def test_search_finds_a_name(browser):
    page = browser.new_page()
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=GradientDescentPlusPlus", timeout=PATIENCE)
    page.wait_for_selector("#search-results li a", timeout=PATIENCE)
    assert page.locator("#search-results li a").count() > 0
    page.close()
