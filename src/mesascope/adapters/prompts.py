"""Pairs and queries as text, and answers as numbers. Imports no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mesascope.errors import ArgumentError

__all__ = ["FORMATS", "Format", "parse_number"]

# A number as programs and people write it; digits may be grouped by commas.
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:(?<=\d)\.\d*|\.\d+)?(?:(?<=[\d.])[eE][-+]?\d+)?")
_DIGITS = re.compile(r"-?(?:\s*\d)+")


@dataclass(frozen=True)
class Format:
    """How pairs and a query are written, and how an answer is read.

    Args:
        instruction: what comes first.
        pair: the text of a pair from its named features, ``(name, text)`` each, and its label's text.
        query: that of a query.
        between: what parts two of them.
        write: a number's text, from the number and the decimals.
        read: the number of an answer, from its text and the decimals; nan if there is none.
        write_feature: a feature's text, where features are written otherwise than labels.
    """

    instruction: str
    pair: Callable[[Sequence[tuple[str, str]], str], str]
    query: Callable[[Sequence[tuple[str, str]]], str]
    between: str
    write: Callable[[float, int], str]
    read: Callable[[str, int], float]
    write_feature: Callable[[float, int], str] | None = None

    def prompt(
        self,
        x: Sequence[Sequence[float]],
        y: Sequence[float],
        query: Sequence[float],
        names: Sequence[str] | None = None,
        decimals: int = 2,
    ) -> str:
        """The whole prompt; features are named Feature 0, Feature 1, ... if ``names`` is None.

        >>> print(FORMATS["compact"].prompt([[1.0, 2.5], [0.125, 3.0]], [4.0, -1.0], [2.0, 2.0]))
        1.0, 2.5 -> 4.0
        0.12, 3.0 -> -1.0
        2.0, 2.0 ->
        """
        names = [f"Feature {index}" for index in range(len(query))] if names is None else names
        if len(names) != len(query):
            raise ArgumentError(
                f"features must name each of {len(query)} inputs, but name {len(names)}: pass one name an input."
            )

        def features(row: Sequence[float]) -> list[tuple[str, str]]:
            write = self.write_feature or self.write
            return [(name, write(value, decimals)) for name, value in zip(names, row, strict=True)]

        pairs = [self.pair(features(row), self.write(label, decimals)) for row, label in zip(x, y, strict=True)]
        return self.instruction + self.between.join([*pairs, self.query(features(query))])


def parse_number(text: str) -> float:
    """The number that an answer gives: its only one, or the one that it begins with; nan if that is not clear.

    >>> [parse_number(text) for text in ("-81.93", "Output: 3", "It is about 1,200.5.", "6.02e-3\\n\\nas x grows")]
    [-81.93, 3.0, 1200.5, 0.00602]
    >>> [parse_number(text) for text in ("", "I cannot say", "between 3 and 5", "1e999", "nan", "<html>404</html> 1 2")]
    [nan, nan, nan, nan, nan, nan]
    """
    text = text.replace("\N{MINUS SIGN}", "-").strip()
    text = re.sub(r"^(?:\W*[A-Za-z][\w ]*[:=]|->)\s*", "", text)
    found = [one for one in _NUMBER.finditer(text) if re.search(r"\d", one.group()) and not _in_word(text, one)]
    begins = bool(found) and found[0].start() == 0 and (found[0].end() == len(text) or text[found[0].end()] in "\n\r")
    if not begins and len(found) != 1:
        return math.nan
    value = float(found[0].group().replace(",", ""))
    return value if math.isfinite(value) else math.nan


def _in_word(text: str, number: re.Match[str]) -> bool:
    """Whether letters stand on either side, as in x2 or 3rd."""
    before, after = text[: number.start()][-1:], text[number.end() :][:1]
    return before.isalpha() or before == "_" or after.isalpha()


def _plain(value: float, decimals: int) -> str:
    return str(round(float(value), decimals))


def _letter(value: float, decimals: int) -> str:
    """The letter at a place of the alphabet, the first is 1."""
    if value not in range(1, 27):
        raise ArgumentError(
            f"features must be whole numbers from 1 to 26 to be letters, but one is {value}: choose another format."
        )
    return chr(ord("a") - 1 + int(value))


def _spaced(value: float, decimals: int) -> str:
    """Digits with spaces between them, without a point: 1.5 with two decimals is 1 5 0."""
    digits = str(abs(round(float(value) * 10**decimals)))
    return ("- " if round(float(value) * 10**decimals) < 0 else "") + " ".join(digits)


def _unspaced(text: str, decimals: int) -> float:
    found = _DIGITS.match(text.replace("\N{MINUS SIGN}", "-").strip())
    return int(re.sub(r"\s", "", found.group())) / 10**decimals if found and len(found.group()) < 40 else math.nan


def _block(features: Sequence[tuple[str, str]], label: str) -> str:
    return "\n".join([*(f"{name}: {text}" for name, text in features), f"Output:{label}"])


def _line(features: Sequence[tuple[str, str]], label: str, comma: str = ", ") -> str:
    return f"{comma.join(text for _, text in features)} ->{label}"


_WORDS = Format(
    'The task is to provide your best estimate for "Output". Please provide that and only that, without any additional '
    "text.\n\n\n\n\n",
    lambda features, label: _block(features, f" {label}"),
    lambda features: _block(features, ""),
    "\n\n",
    _plain,
    lambda text, decimals: parse_number(text),
)

# Formats by name: that of Vacareanu et al., From Words to Numbers (2024), and with letters for features, as in one of
# its problems; one line a pair; digits apart, after Gruver et al., Large Language Models Are Zero-Shot Time Series
# Forecasters (2023).
FORMATS: Mapping[str, Format] = {
    "words-to-numbers": _WORDS,
    "letters": replace(_WORDS, write_feature=_letter),
    "compact": replace(
        _WORDS,
        instruction="",
        pair=lambda features, label: _line(features, f" {label}"),
        query=lambda features: _line(features, ""),
        between="\n",
    ),
    "digits": Format(
        "",
        lambda features, label: _line(features, f" {label}", " , "),
        lambda features: _line(features, "", " , "),
        " ;\n",
        _spaced,
        _unspaced,
    ),
}
