"""Tokenizers of the `tokenizers` library, and tokenization of documents piece by piece. Imports no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mesascope.errors import ArgumentError, one_line, refuse, require_instance, require_package
from mesascope.language import documents
from mesascope.language.documents import Piece

END = "<|endoftext|>"
_ENDS = (END, "</s>", "<|end_of_text|>", "<eos>", "[SEP]")  # names of the end-of-document token
# Smallest vocabulary (256 bytes and the end-of-document token) and largest (more than any text needs).
_LEAST, _MOST = 257, 1 << 24
_WORD = 64  # maximum bytes per word: training time is quadratic in a word's length
_OVERLAP = 4096  # characters at the end of a piece that are tokenized again with the next piece
_AGREEING = 8  # tokens on either side of a cut that must agree


class TokenizerKind:
    """Value of ``--tokenizer``: ``bytes``, ``bpe:VOCABULARY`` or a ``tokenizer.json``.

    >>> TokenizerKind("bpe:5000").vocabulary
    5000
    """

    def __init__(self, named: str | Path) -> None:
        require_instance("tokenizer", named, str | Path)
        self.name, self.path = str(named), None
        self.vocabulary = _LEAST
        kind, _, size = self.name.partition(":")
        if kind == "bpe":
            if not (size.isdecimal() and len(size) < 10 and _LEAST <= int(size) <= _MOST):
                rule = f"be bpe:VOCABULARY with {_LEAST} to {_MOST} tokens"
                refuse("tokenizer", rule, self.name, "pass bpe:8192, say")
            self.vocabulary = int(size)
        elif self.name != "bytes":
            self.path = Path(named)
            if not self.path.is_file():
                refuse("tokenizer", "be bytes, bpe:VOCABULARY or a file", self.name, "pass a tokenizer.json")

    @property
    def identity(self) -> str:
        """The name, or the checksum of a tokenizer file."""
        return self.name if self.path is None else tokenizer_checksum(load_tokenizer(self.path))


def make_tokenizer(kind: TokenizerKind, texts: Iterator[str]) -> Any:
    """Make the tokenizer; byte pairs are trained on ``texts``, with words split into parts of at most 64 bytes."""
    if kind.path is not None:
        return load_tokenizer(kind.path)
    library = require_package("tokenizers", "the package language", "language")
    tokenizer = library.Tokenizer(library.models.BPE(vocab=_bytes(library), merges=[]))
    tokenizer.decoder = library.decoders.ByteLevel()
    trained = kind.vocabulary > _LEAST
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=trained)
    if trained:
        cut = library.pre_tokenizers.Split(library.Regex(f".{{1,{_WORD}}}"), "isolated")
        tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence([tokenizer.pre_tokenizer, cut])
        trainer = library.trainers.BpeTrainer(
            vocab_size=kind.vocabulary, special_tokens=[END], initial_alphabet=sorted(_bytes(library)),
            show_progress=False,
        )  # fmt: skip
        tokenizer.train_from_iterator(texts, trainer)
    else:
        tokenizer.add_special_tokens([END])
    tokenizer.encode_special_tokens = True  # encode names of special tokens as ordinary text
    return tokenizer


def load_tokenizer(path: Path) -> Any:
    """Load a ``tokenizer.json`` of `tokenizers` or of a Hugging Face model, without truncation and padding.

    Names of special tokens in a text are encoded as ordinary text.
    """
    library = require_package("tokenizers", "the package language", "language")
    try:
        tokenizer = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no subclass
        raise ArgumentError(
            f"{path} must be a tokenizer.json of the tokenizers library, but is not ({one_line(error)}): pass one."
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def vocabulary_of(tokenizer: Any) -> int:
    """Size of the vocabulary: largest token id + 1, as there may be gaps."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def end_of_document(tokenizer: Any) -> int:
    """Return the end-of-document token."""
    for name in _ENDS:
        if (number := tokenizer.token_to_id(name)) is not None:
            return number
    raise ArgumentError(
        f"tokenizer must have a token for the end of a document, but has none of {', '.join(_ENDS)}: add one."
    )


def tokenizer_checksum(tokenizer: Any) -> str:
    """SHA-256 of the tokenizer's JSON."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def _bytes(library: Any) -> dict[str, int]:
    """Map from the 256 characters that represent bytes to the byte values.

    Printable bytes are represented by themselves, the others by the characters from 256, in order.
    """
    marks = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    printable = [ord(mark) for mark in marks if ord(mark) < 256]
    return dict(zip(marks, [*printable, *sorted({*range(256)}.difference(printable))], strict=True))


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

    Tokens at the start and end of a piece, or inside a cut word, may differ from those of the whole text. So a piece is
    tokenized together with the last 4,096 characters of the previous piece. In the middle of this overlap, the pieces
    are joined at a position where eight tokens on either side agree. If there is no such position, as inside a very
    long word, both pieces are tokenized again as one.
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
    """Map from index to (token id, first, end) of tokens in characters ``start`` to ``end``, counted from ``shift``."""
    places, ids = np.array(encoding.offsets), np.array(encoding.ids)
    chosen = np.flatnonzero((places[:, 0] >= start) & (places[:, 1] <= end)) if len(ids) else np.array([], int)
    return {
        index: (int(ids[index]), int(places[index, 0]) - shift, int(places[index, 1]) - shift)
        for index in chosen.tolist()
    }
