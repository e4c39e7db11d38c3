"""Tokenizers of the `tokenizers` library: bytes, trained byte pairs, or a file. Imports no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mesascope.errors import ArgumentError, refuse, require_instance, require_package

END = "<|endoftext|>"
_ENDS = (END, "</s>", "<|end_of_text|>", "<eos>", "[SEP]")  # names of the end-of-document token
_LEAST, _MOST = (
    257,
    1 << 24,
)  # limits of the vocabulary size: all bytes and the end of a document, and more than any text needs
_WORD = 64  # maximum bytes per word: the time of training is quadratic in a word's length


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
        first = " ".join(str(error).split())[:200]
        raise ArgumentError(
            f"{path} must be a tokenizer.json of the tokenizers library, but is not ({first}): pass one."
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
