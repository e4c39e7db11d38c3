"""From files of text to tokens on disk. Imports no torch."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

import mesascope
from mesascope.errors import ArgumentError, refuse, require_choice, require_count, require_number
from mesascope.language.documents import Piece, Problem, Reading, files_of, pieces, size_of, standard_library
from mesascope.language.shards import INDEX, SPLITS, TOKENIZER, Corpus, Index, ShardWriter, open_corpus
from mesascope.language.tokenizing import (
    TokenizerKind,
    end_of_document,
    make_tokenizer,
    tokenizer_checksum,
    vocabulary_of,
)
from mesascope.progress import tracked
from mesascope.runs.files import as_path, write_aside

__all__ = ["prepare"]

# Characters that are tokenized at once, on all cores, and those that byte pairs are trained on.
_AT_ONCE, _TRAINED_ON = 1 << 21, 1 << 28
# Lines left out that are told one by one.
_TOLD = 20


def prepare(
    paths: Sequence[str | Path],
    out: str | os.PathLike[str],
    tokenizer: str | os.PathLike[str] = "bytes",
    *,
    validation: float = 0.01,
    field: str = "text",
    delimiter: str | None = None,
    broken: str = "skip",
    shard: int = 1 << 26,
) -> Corpus:
    """Write the tokens of files of text into a folder, a part of the documents for validation.

    A document is for training or validation by its first characters alone, so that copies of one are in one part.
    Memory does not grow with the text.

    Args:
        paths: files and folders, see `files_of`; the sources of Python's standard library if empty.
        out: a folder that holds no corpus yet.
        tokenizer: ``bytes``, ``bpe:VOCABULARY`` (byte pairs, trained on the first 256 MB), or a ``tokenizer.json``.
        validation: share of the documents for validation.
        field: of rows that holds the text.
        delimiter: between documents of a plain text file, which is one document if None.
        broken: what to do with lines that are no UTF-8, JSON or text: skip or refuse.
        shard: most tokens of a file.

    Raises:
        ArgumentError: there is no text, none for validation, a broken line that is refused, or ``out`` holds a corpus.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "text.txt").write_text("one\\n\\ntwo\\n\\nthree\\n\\nfour\\n\\nfive")
    >>> corpus = prepare([folder / "text.txt"], folder / "tokens", delimiter="\\n\\n", validation=0.4)
    >>> corpus.tokens("train") + corpus.tokens("validation")  # a byte each, and the end of each document
    24
    """
    folder, kind = as_path("out", out), TokenizerKind(tokenizer)  # type: ignore[arg-type]
    validation = require_number("validation", validation, above=0, most=0.5)
    require_choice("broken", broken, ("skip", "refuse"))
    shard = require_count("shard", shard)
    _require_no_corpus(folder)
    files = files_of(paths) if paths else standard_library()
    problems: list[Problem] = []
    reading = Reading(field, delimiter, lambda problem: _broken(problem, problems, broken))
    silent = replace(reading, report=lambda problem: None)
    folder.mkdir(parents=True, exist_ok=True)
    words = make_tokenizer(kind, iter(tracked(_trained_on(files, silent), "training byte pairs")))
    dtype: Literal["uint16", "uint32"] = "uint16" if vocabulary_of(words) <= 1 << 16 else "uint32"
    total = size_of(files)
    batches = tracked(_batches(files, reading), "tokenizing", None if total is None else -(-total // _AT_ONCE))
    with _closed_or_removed({split: ShardWriter(folder, split, dtype, shard) for split in SPLITS}) as writers:
        _write(words, batches, writers, validation)
        _require_text(writers, files, validation, problems)
    index = Index(
        schema=1, tokenizer=tokenizer_checksum(words), vocabulary=vocabulary_of(words), end=end_of_document(words),
        dtype=dtype, splits={split: writer.record() for split, writer in writers.items()}, files=len(files),
        skipped=len(problems), mesascope=mesascope.__version__,
    )  # fmt: skip
    write_aside(folder / TOKENIZER, words.to_str().encode())
    write_aside(folder / INDEX, msgspec.json.format(msgspec.json.encode(index)))
    return open_corpus(folder)


def _require_no_corpus(folder: Path) -> None:
    foreign = (folder / TOKENIZER).exists() and not any(folder.glob("*.bin"))  # ours are beside shards
    if foreign or (folder / INDEX).exists():
        rule = f"be a folder without a corpus or a {TOKENIZER}"
        refuse("out", rule, str(folder), "name another, or remove what it holds")


@contextmanager
def _closed_or_removed(writers: dict[str, ShardWriter]) -> Iterator[dict[str, ShardWriter]]:
    """Close the writers, or remove what they wrote where anything fails."""
    try:
        yield writers
        for writer in writers.values():
            writer.close()
    except BaseException:
        for writer in writers.values():
            writer.remove()
        raise


def _write(words: Any, batches: Iterable[list[Piece]], writers: Mapping[str, ShardWriter], validation: float) -> None:
    """Each document's tokens and then the end of one, to the writer of its part."""
    writer, between = None, np.array([end_of_document(words)])
    for batch in batches:
        encoded = words.encode_batch_fast([piece.text for piece in batch], add_special_tokens=False)
        for piece, tokens in zip(batch, encoded, strict=True):
            if piece.begins:
                if writer is not None:
                    writer.write(between)
                writer = writers[_split(piece.text, validation)]
                writer.documents += 1
            assert writer is not None
            writer.write(np.array(tokens.ids))
    if writer is not None:
        writer.write(between)


def _split(text: str, validation: float) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "validation" if int.from_bytes(digest[:8]) < validation * 2**64 else "train"


def _batches(files: Sequence[Path], reading: Reading) -> Iterator[list[Piece]]:
    """Pieces of all files, so many at a time that they are tokenized at once."""
    batch, length = [], 0
    for file in files:
        for piece in pieces(file, reading):
            batch.append(piece)
            length += len(piece.text)
            if length >= _AT_ONCE:
                yield batch
                batch, length = [], 0
    if batch:
        yield batch


def _trained_on(files: Sequence[Path], reading: Reading) -> Iterator[str]:
    left = _TRAINED_ON
    for file in files:
        for piece in pieces(file, reading):
            yield piece.text
            left -= len(piece.text)
            if left <= 0:
                return


def _broken(problem: Problem, problems: list[Problem], what: str) -> None:
    if what == "refuse":
        raise ArgumentError(
            f"{problem.path} must be text that can be read, but line {problem.line} is {problem.what}: mend it, or "
            'pass broken="skip".'
        )
    problems.append(problem)
    if len(problems) <= _TOLD:
        print(f"left out: {problem}", file=sys.stderr)
    elif len(problems) == _TOLD + 1:
        print("left out: more lines, which are counted alone", file=sys.stderr)


def _require_text(
    writers: Mapping[str, ShardWriter], files: Sequence[Path], validation: float, problems: Sequence[Problem]
) -> None:
    counts = {split: writer.documents for split, writer in writers.items()}
    if not sum(counts.values()):
        why = f" (line {problems[0].line} of {problems[0].path.name}: {problems[0].what})" if problems else ""
        remedy = "name another field, or other files" if problems else "name others"
        raise ArgumentError(f"paths must hold text, but {len(files)} files have none{why}: {remedy}.")
    for split, count in counts.items():
        if not count:
            raise ArgumentError(
                f"{split} must have a document, but all {sum(counts.values())} are in the other part (validation = "
                f"{validation:g}): pass another share, or a delimiter that cuts files into documents."
            )
