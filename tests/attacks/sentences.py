"""Check of error messages: one sentence on one line."""

import re

__all__ = ["one_sentence"]


def one_sentence(error_text):
    """``error_text`` without the command's name and the newline at its end, if it is one sentence that one can read."""
    text = error_text.removeprefix("mesascope: ").removesuffix("\n")
    assert text, "nothing is said"
    assert "Traceback" not in text, text
    assert text.isprintable(), f"more than one line, or marks that no terminal shows: {text!r}"
    assert text.endswith((".", "?")), text
    assert not re.search(r"[a-z)'][.?!] [A-Z]", text), f"more than one sentence: {text}"
    first = text.split()[0]
    assert not first.istitle() or re.search(r"[/._\d]", first), f"starts with neither an argument nor a file: {text}"
    assert len(text) < 600, text
    return text
