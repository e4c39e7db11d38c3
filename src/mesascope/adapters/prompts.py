"""Prompt formats, and the parser for numbers in answers. Imports no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mesascope.errors import ArgumentError

# Maps of full-width characters and minus signs (not the em dash) to ASCII, and of superscripts to digits.
_ASCII = {0xFF01 + place: 0x21 + place for place in range(94)} | dict.fromkeys(map(ord, "‐‑‒–−﹣"), "-")
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
# A number: commas group thousands, the decimal mark is a point, and a power of ten may follow.
_NUMBER = re.compile(
    r"(?P<digits>(?:[-+]|- )?(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:[eE](?P<e>[-+]?[0-9]+)"
    r"|\s*(?:[x×*·⋅]|\\times|\\cdot)\s*10(?:\^|\*\*)(?P<brace>\{)?(?P<power>[-+]?[0-9]+)(?(brace)\}))?"
)
# Text around a number: a remark, quotes, emphasis, LaTeX, brackets (not around commas, as in lists), a full stop.
_PAIRS = [*((mark, mark) for mark in "*_`\"'$"), *zip("“‘«", "”’»", strict=True)]
_PAIRS += [(r"\(", r"\)"), (r"\[", r"\]"), (r"\boxed{", "}")]
_AROUND = re.compile(
    r"(.+?)\s*\((?:approximately|approx\.?|about|estimated?|rounded)\)|"
    + "|".join(f"{re.escape(left)}(.+){re.escape(right)}" for left, right in _PAIRS)
    + r"|\(([^,]+)\)|\[([^,]+)\]|(.+[^.])\."
)
# Text before a number: an arrow, the answer's label, or a word for an approximation.
_BEFORE = re.compile(
    r"(?:->|[→=≈~]|(?:about|approximately|approx\.?|around|roughly)\s|(?:it\s+is|it's)\s|[*_]*(?:(?:the|my)\s+)?"
    r"(?:(?:best|final|predicted|estimated)\s+)*(?:output|answer|estimate|prediction|value|result|label|y)"
    r"(?:\s+for\s+[\"']?output[\"']?)?[*_]*\s*(?:[:=≈]|(?:is|would\s+be)\s)[*_]*)(.+)",
    re.IGNORECASE,
)
_OUTPUT = re.compile(r"(\boutput[*_\"']*\s*[:=][*_]*)\s*", re.IGNORECASE)
_LINE_END = re.compile(r"\n(?!\s{0,9}[×·⋅±%/^°])")  # unless the next line continues a number
# Tags around a model's reasoning, and words that retract an answer.
_THOUGHT = re.compile(r"[<\[](/?)(?:\w+:)?(?:think|thought|reason)\w*[>\]]", re.IGNORECASE)
_TAKEN_BACK = re.compile(
    r"\b(?:wait|actually|no(?=,)|correct(?:ion|ed)|oops|sorry|instead|rather|revised?|mistake|scratch that|second "
    r"thoughts?)\b",
    re.IGNORECASE,
)
_ITEM = re.compile(r"^- ", re.MULTILINE)  # a list item, or a negative number if there is only one
_APART = re.compile(r"(-?) ?([0-9](?: [0-9]){0,39})(?: ?;)?")
_LONGEST = 200  # maximum number of characters in a parsed line


@dataclass(frozen=True)
class Format:
    """Format of prompts and answers.

    Args:
        instruction: text at the start of a prompt.
        pair: writes a pair, given its features ``(name, text)`` and the label's text.
        query: writes a query, given its features.
        between: separator of pairs.
        write: writes a number, given the number of decimals.
        read: parses an answer, given the number of decimals; nan if there is no number.
        write_feature: like ``write``, for features; ``write`` if None.
    """

    instruction: str
    pair: Callable[[Sequence[tuple[str, str]], str], str]
    query: Callable[[Sequence[tuple[str, str]]], str]
    between: str
    write: Callable[[float, int], str]
    read: Callable[[str, int], float]
    write_feature: Callable[[float, int], str] | None = None

    def prompt(
        self, x: Sequence[Sequence[float]], y: Sequence[float], query: Sequence[float],
        names: Sequence[str] | None = None, decimals: int = 2,
    ) -> str:  # fmt: skip
        """Write the prompt; features are named Feature 0, Feature 1, ... if ``names`` is None.

        >>> print(FORMATS["compact"].prompt([[1.0, 2.5], [0.125, 3.0]], [4.0, -1.0], [2.0, 2.0]))
        1.0, 2.5 -> 4.0
        0.12, 3.0 -> -1.0
        2.0, 2.0 ->
        """
        names = [f"Feature {index}" for index in range(len(query))] if names is None else names
        if len(names) != len(query):
            raise ArgumentError(
                f"features must name each of {len(query)} inputs, but name {len(names)}: pass one name per input."
            )

        def features(row: Sequence[float]) -> list[tuple[str, str]]:
            write = self.write_feature or self.write
            return [(name, write(value, decimals)) for name, value in zip(names, row, strict=True)]

        pairs = [self.pair(features(row), self.write(label, decimals)) for row, label in zip(x, y, strict=True)]
        return self.instruction + self.between.join([*pairs, self.query(features(query))])


def parse_number(text: str) -> float:
    """Parse the number in an answer; nan if the answer is not clearly one number.

    The number must be the whole first line, or the whole line of the only ``Output:``. The parser ignores marks around
    it (quotes, brackets, emphasis, code fences, LaTeX, a full stop) and words before it: the answer's label, "it is",
    "about", an arrow. Commas group thousands. "- 5" is -5, but nan in a list. Units, per cent, fractions, ranges and
    expressions give nan. If the first line is only the number, later digits are ignored. Digits before or after the
    line of ``Output:`` are ignored, but on both sides they give nan. So do digits on both sides of a word such as
    "wait". A model's reasoning up to ``</think>`` is ignored.

    >>> [parse_number(text) for text in ("-81.93", "Output: 3", "It is about 1,200.5.", "6.02e-3\\n\\nas x grows")]
    [-81.93, 3.0, 1200.5, 0.00602]
    >>> [parse_number(text) for text in ("**–3.2**", "1.5 × 10³", "Feature 0: 1.0\\nOutput: 3.2")]
    [-3.2, 1500.0, 3.2]
    >>> [parse_number(text) for text in ("", "I cannot say", "between 3 and 5", "1e999", "nan", "<html>404</html> 1 2")]
    [nan, nan, nan, nan, nan, nan]
    >>> [parse_number(text) for text in ("2x + 3", "3,14", "12 apples", "5 %", "Step 1: 7")]
    [nan, nan, nan, nan, nan]
    """
    text = re.sub(r"(?m)^[ \t]*```[A-Za-z]*[ \t]*$", "", _answer(text)).strip()
    text = _OUTPUT.sub(r"\1 ", re.sub(r"[⁻⁺]?[⁰¹²³⁴-⁹]+", lambda found: "^" + found[0].translate(_RAISED), text))
    if sum(map(_has_digits, _TAKEN_BACK.split(text))) > 1 or len(_ITEM.findall(text)) > 1:
        return math.nan
    value = _number(_LINE_END.split(text, maxsplit=1)[0])
    outputs = [found.start() for found in _OUTPUT.finditer(text)]
    if math.isfinite(value) or len(outputs) > 1:
        return value
    start = text.rfind("\n", 0, outputs[0]) + 1 if outputs else 0
    line, *after = _LINE_END.split(text[start:], maxsplit=1)
    if _has_digits("".join(after)) and (not outputs or _has_digits(text[:start])):
        return math.nan
    return _number(line, _BEFORE)


def _number(line: str, before: re.Pattern[str] = _AROUND) -> float:
    """Number in a line, without marks around it and text ``before`` it; nan if there is none."""
    if len(line) > _LONGEST:
        return math.nan
    while found := _AROUND.fullmatch(line.strip()) or before.fullmatch(line.strip()):
        line = found[found.lastindex or 0]
    if not (found := _NUMBER.fullmatch(line.strip())):
        return math.nan
    value = float(f"{re.sub('[, ]', '', found['digits'])}e{found['e'] or found['power'] or 0}")
    vanished = value == 0 and re.search("[1-9]", found["digits"])
    return math.nan if vanished or math.isinf(value) else value


def _answer(text: str) -> str:
    """Text after a model's reasoning, in ASCII; empty if the reasoning does not end."""
    text = text.translate(_ASCII).replace("\r\n", "\n").replace("\r", "\n")
    *_, last = [None, *_THOUGHT.finditer(text)]
    return text if last is None else text[last.end() :] if last[1] else ""


def _has_digits(text: str) -> bool:
    return any(map(str.isdigit, text))


def _plain(value: float, decimals: int) -> str:
    return str(round(float(value), decimals))


def _letter(value: float, decimals: int) -> str:
    """Letter at a position in the alphabet, counted from 1."""
    if value not in range(1, 27):
        raise ArgumentError(
            f"features must be whole numbers from 1 to 26 to be letters, but one is {value}: choose another format."
        )
    return chr(ord("a") - 1 + int(value))


def _spaced(value: float, decimals: int) -> str:
    """Digits separated by spaces, without a decimal point: 1.5 with two decimals is 1 5 0."""
    digits = str(abs(round(float(value) * 10**decimals)))
    return ("- " if round(float(value) * 10**decimals) < 0 else "") + " ".join(digits)


def _unspaced(text: str, decimals: int) -> float:
    """Inverse of `_spaced`, for the first line of a text; nan for any other format."""
    found = _APART.fullmatch(_answer(text).strip().split("\n")[0].strip())
    return int(found[1] + found[2].replace(" ", "")) / 10**decimals if found else math.nan


def _read(text: str, decimals: int) -> float:
    return parse_number(text)


def _block(features: Sequence[tuple[str, str]], label: str = "") -> str:
    return "\n".join([*(f"{name}: {text}" for name, text in features), f"Output: {label}".rstrip()])


def _line(features: Sequence[tuple[str, str]], label: str = "", comma: str = ", ") -> str:
    return f"{comma.join(text for _, text in features)} -> {label}".rstrip()


_SPACED_LINE = partial(_line, comma=" , ")
_WORDS = Format(
    'The task is to provide your best estimate for "Output". Please provide that and only that, without any additional '
    "text.\n\n\n\n\n", _block, _block, "\n\n", _plain, _read,
)  # fmt: skip

# words-to-numbers is the format of Vacareanu et al., From Words to Numbers (2024), and letters that of one of its
# problems. digits follows Gruver et al., Large Language Models Are Zero-Shot Time Series Forecasters (2023). Fields are
# named functions, so that learners can be pickled.
FORMATS: Mapping[str, Format] = {
    "words-to-numbers": _WORDS,
    "letters": replace(_WORDS, write_feature=_letter),
    "compact": replace(_WORDS, instruction="", pair=_line, query=_line, between="\n"),
    "digits": Format("", _SPACED_LINE, _SPACED_LINE, " ;\n", _spaced, _unspaced),
}
