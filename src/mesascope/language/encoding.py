"""Tokens of documents that come in pieces: those of each whole document. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mesascope.language import documents
from mesascope.language.documents import Piece

__all__ = ["Encoded", "encoded"]

# Characters of a piece that are tokenized again before the next one, and tokens that agree on both sides of a cut.
_OVERLAP, _AGREEING = 4096, 8


class Encoded(NamedTuple):
    """The next tokens of a document."""

    piece: Piece
    tokens: np.ndarray
    ends: bool
    """True if the document ends after them."""


class _Held(NamedTuple):
    """A piece, the text that it was tokenized in, and the first of its tokens that are its own."""

    piece: Piece
    text: str
    encoding: Any
    start: int


def encoded(tokenizer: Any, batches: Iterable[Sequence[Piece]]) -> Iterator[Encoded]:
    """The tokens of each document, as if it were tokenized as a whole, a piece after the other.

    A tokenizer may treat the beginning of a text, its end and parts of a word in ways of their own. So a piece is
    tokenized together with the last 4,096 characters before it. Both pieces then have tokens of these characters; the
    one's end and the other's begin in their middle, where eight tokens on either side agree. Where none agree, as
    inside a very long word, both pieces are tokenized again as one.
    """
    held: _Held | None = None
    for batch in batches:
        texts: list[str] = []
        for piece in batch:
            before = texts[-1] if texts else held.text if held else ""
            texts.append(piece.text if piece.begins else before[-_OVERLAP:] + piece.text)
        # Offsets of tokens take as long as the tokens: they are made only where a document may go on.
        parted = not all(piece.begins for piece in batch) or len(batch[-1].text) >= documents.PIECE
        encode = tokenizer.encode_batch if parted else tokenizer.encode_batch_fast
        for piece, text, encoding in zip(batch, texts, encode(texts, add_special_tokens=False), strict=True):
            end, start = None, 0
            if held is not None and not piece.begins:
                cut = _cut(held, text, encoding)
                if cut is None:
                    held = _joined(tokenizer, held, text)
                    continue
                end, start = cut
            if held is not None:
                yield _tokens(held, end)
            held = _Held(piece, text, encoding, start)
    if held is not None:
        yield _tokens(held, None)


def _tokens(held: _Held, end: int | None) -> Encoded:
    """The tokens before a cut; all, at the end of a document, if None."""
    return Encoded(held.piece, np.array(held.encoding.ids[held.start : end], np.int64), end is None)


def _joined(tokenizer: Any, held: _Held, text: str) -> _Held:
    """Both pieces as one."""
    whole = held.text + text[min(len(held.text), _OVERLAP) :]
    return _Held(held.piece, whole, tokenizer.encode(whole, add_special_tokens=False), held.start)


def _cut(held: _Held, text: str, encoding: Any) -> tuple[int, int] | None:
    """The first token after the cut, counted in the tokens of either piece; None if there is no place for a cut."""
    overlap = min(len(held.text), _OVERLAP)
    shift = len(held.text) - overlap
    if not shift:  # the new piece was tokenized with all of the one before
        return None
    first = _within(held.encoding, shift + overlap // 4, shift + 3 * overlap // 4, shift)
    second = _within(encoding, overlap // 4, 3 * overlap // 4, 0)
    places = {(start, end): index for index, (_, start, end) in reversed(second.items())}
    wide = range(-_AGREEING, _AGREEING)
    for index, (_, start, end) in sorted(first.items(), key=lambda item: abs(item[1][1] - overlap // 2)):
        other = places.get((start, end))
        if other is None or index < held.start + _AGREEING or (index - 1 in first and first[index - 1][2] > start):
            continue  # not the first token of a character
        if all(index + step in first and first[index + step] == second.get(other + step) for step in wide):
            return index, other
    return None


def _within(encoding: Any, start: int, end: int, shift: int) -> dict[int, tuple[int, int, int]]:
    """Number and place of the tokens between two places, by index; places are counted from ``shift``."""
    places, ids = np.array(encoding.offsets), np.array(encoding.ids)
    chosen = np.flatnonzero((places[:, 0] >= start) & (places[:, 1] <= end)) if len(ids) else np.array([], int)
    return {
        index: (int(ids[index]), int(places[index, 0]) - shift, int(places[index, 1]) - shift)
        for index in chosen.tolist()
    }
