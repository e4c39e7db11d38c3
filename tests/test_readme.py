"""The Python examples of README, CONTRIBUTING and docs run as they stand and print what is said they print."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = "".join(
    path.read_text() for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
)
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGES, flags=re.DOTALL)


def words(text):
    """Words, and numbers as numbers: their last digits may differ between machines."""
    return [
        float(word) if re.fullmatch(r"-?[\d.]+(e[-+]\d+)?", word) else word
        for word in re.findall(r"[^\s,\[\]()]+", text)
    ]


def test_there_are_examples():
    assert len(EXAMPLES) == PAGES.count("```python")
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize(("code", "shown"), EXAMPLES, ids=[code.split("\n")[-2][:40] for code, _ in EXAMPLES])
def test_an_example_prints_what_its_page_shows(code, shown):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    for got, said in zip(words(printed.getvalue()), words(shown), strict=True):
        assert got == (pytest.approx(said, rel=0.02, abs=1e-3) if isinstance(said, float) else said)
