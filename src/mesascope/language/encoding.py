"""Tokenization of documents in pieces, with the same tokens as for whole documents. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mesascope.language import documents
from mesascope.language.documents import Piece

_OVERLAP = 4096  # characters at the end of a piece that are tokenized again with the next piece
_AGREEING = 8  # tokens on either side of a cut that must agree


class Encoded(NamedTuple):
    """Tokens of a document or of the next part of one."""

    piece: Piece
    tokens: np.ndarray
    ends: bool
    """True if the document ends after these tokens."""


class _Held(NamedTuple):
    """A piece, the text that was tokenized (overlap and piece), and the index of the first token not yet returned."""

    piece: Piece
    text: str
    encoding: Any
    start: int


def encoded(tokenizer: Any, batches: Iterable[Sequence[Piece]]) -> Iterator[Encoded]:
    """Yield the tokens of each document, piece by piece, equal to those of the whole document.

    A tokenizer may treat the start and end of a text, and parts of a word, in special ways. So a piece is tokenized
    together with the last 4,096 characters of the previous piece. In the middle of this overlap, the pieces are joined
    at a position where eight tokens on either side agree. If there is no such position, as inside a very long word,
    both pieces are tokenized again as one.
    """
    held: _Held | None = None
    for batch in batches:
        texts: list[str] = []
        for piece in batch:
            before = texts[-1] if texts else held.text if held else ""
            texts.append(piece.text if piece.begins else before[-_OVERLAP:] + piece.text)
        # Token offsets cost as much time as tokens, so compute them only if a document may continue.
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
    """Tokens before index ``end``; if None, up to the end of the document."""
    return Encoded(held.piece, np.array(held.encoding.ids[held.start : end], np.int64), end is None)


def _joined(tokenizer: Any, held: _Held, text: str) -> _Held:
    """Tokenize the held piece and the next one together."""
    whole = held.text + text[min(len(held.text), _OVERLAP) :]
    return _Held(held.piece, whole, tokenizer.encode(whole, add_special_tokens=False), held.start)


def _cut(held: _Held, text: str, encoding: Any) -> tuple[int, int] | None:
    """Indices, in both pieces, of the first token after the cut; None if no cut is possible."""
    overlap = min(len(held.text), _OVERLAP)
    shift = len(held.text) - overlap
    if not shift:  # the overlap is the whole previous text
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
    """Token, start and end of the tokens between two characters, by index; positions are relative to ``shift``."""
    places, ids = np.array(encoding.offsets), np.array(encoding.ids)
    chosen = np.flatnonzero((places[:, 0] >= start) & (places[:, 1] <= end)) if len(ids) else np.array([], int)
    return {
        index: (int(ids[index]), int(places[index, 0]) - shift, int(places[index, 1]) - shift)
        for index in chosen.tolist()
    }
