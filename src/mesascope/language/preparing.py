"""From files of text to tokens on disk. Imports no torch."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

import mesascope
from mesascope.errors import ArgumentError, refuse, require_choice, require_count, require_number
from mesascope.language.documents import Piece, Problem, Reading, files_of, pieces, size_of, standard_library
from mesascope.language.encoding import Encoded, encoded
from mesascope.language.resuming import PROGRESS, PreparationCheckpoint
from mesascope.language.shards import INDEX, SPLITS, TOKENIZER, Corpus, Index, ShardWriter, open_corpus
from mesascope.language.tokenizing import (
    TokenizerKind,
    end_of_document,
    load_tokenizer,
    make_tokenizer,
    tokenizer_checksum,
    vocabulary_of,
)
from mesascope.progress import tracked
from mesascope.runs.files import as_path, write_aside

__all__ = ["prepare"]

# Characters that are tokenized at once, on all cores, and those that byte pairs are trained on.
_AT_ONCE, _TRAINED_ON = 1 << 21, 1 << 28
# Lines left out that are printed one by one.
_TOLD = 20
# Tokens that are written before the place is kept that a later call goes on from.
_KEPT_EVERY = 1 << 24


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

    A document is for training or validation by its first characters alone, so that copies of one are in one part. Where
    that leaves a part empty, as for a single document, the last tokens are for validation. Memory does not grow with
    the text. A preparation that was interrupted goes on where it is called again with the same arguments.

    Args:
        paths: files and folders, see `files_of`; the sources of Python's standard library if empty.
        out: a folder that holds no corpus yet, or the beginning of this one.
        tokenizer: ``bytes``, ``bpe:VOCABULARY`` (byte pairs, trained on the first 256 MB), or a ``tokenizer.json``.
        validation: share of the documents for validation, or of the tokens where there are few documents.
        field: of rows that holds the text.
        delimiter: between documents of a plain text file, which is one document if None.
        broken: what to do with lines that are no UTF-8, JSON or text: skip or refuse.
        shard: most tokens of a file.

    Raises:
        ArgumentError: there is no text, a broken line that is refused, or ``out`` holds a corpus, or the beginning of
            another one.

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
    undivided: list[Path] = []
    reading = Reading(field, delimiter, lambda problem: _broken(problem, problems, broken), undivided.append)
    silent = replace(reading, report=lambda problem: None, undivided=lambda path: None)
    named = str(tokenizer) if kind.path is None else tokenizer_checksum(load_tokenizer(kind.path))
    settings = [named, validation, field, reading.delimiter, broken, shard]
    progress = PreparationCheckpoint.of(folder, files, settings)
    if progress.is_begun:
        words = load_tokenizer(folder / TOKENIZER)
    else:
        words = make_tokenizer(kind, iter(tracked(_trained_on(files, silent), "training byte pairs")))
    dtype: Literal["uint16", "uint32"] = "uint16" if vocabulary_of(words) <= 1 << 16 else "uint32"
    end = end_of_document(words)
    total = size_of(files)
    batches = tracked(
        _batches(files, reading, progress), "tokenizing", None if total is None else -(-total // _AT_ONCE)
    )
    with progress.writing({split: ShardWriter(folder, split, dtype, shard) for split in SPLITS}) as writers:
        progress.begin(words.to_str().encode())
        _write(encoded(words, batches), end, writers, validation, lambda place: progress.keep(writers, place, problems))
        _require_text(writers, files, problems)
        _divide(writers["train"], writers["validation"], validation, end)
    if undivided:
        others = "" if len(undivided) == 1 else f" and in {len(undivided) - 1} more"
        print(
            f"delimiter {reading.delimiter!r} is not in {undivided[0]}{others}: a file is one document", file=sys.stderr
        )
    index = Index(
        schema=1, tokenizer=tokenizer_checksum(words), vocabulary=vocabulary_of(words), end=end, dtype=dtype,
        splits={split: writer.record() for split, writer in writers.items()}, files=len(files),
        skipped=progress.skipped(problems), mesascope=mesascope.__version__,
    )  # fmt: skip
    write_aside(folder / INDEX, msgspec.json.format(msgspec.json.encode(index)))
    progress.end()
    return open_corpus(folder)


def _require_no_corpus(folder: Path) -> None:
    foreign = (folder / TOKENIZER).exists() and not any(folder.glob("*.bin"))  # ours are beside shards
    if (foreign and not (folder / PROGRESS).exists()) or (folder / INDEX).exists():
        rule = f"be a folder without a corpus or a {TOKENIZER}"
        refuse("out", rule, str(folder), "name another, or remove what it holds")


def _write(
    parts: Iterable[Encoded], end: int, writers: Mapping[str, ShardWriter], validation: float,
    keep: Callable[[tuple[int, int]], None],
) -> None:  # fmt: skip
    """Each document's tokens and then the end of one, to the writer of its part."""
    writer, between, written = None, np.array([end]), 0
    for piece, tokens, ends in parts:
        if piece.begins:
            if written >= _KEPT_EVERY:
                keep(piece.place)
                written = 0
            writer = writers[_split(piece.text, validation)]
            writer.documents += 1
        assert writer is not None
        writer.write(tokens)
        if ends:
            writer.write(between)
        written += len(tokens)


def _divide(train: ShardWriter, held: ShardWriter, validation: float, end: int) -> None:
    """Move the last tokens to validation where all documents are in one part."""
    if train.documents and held.documents:
        return
    train.close()
    held.close()
    if held.documents:
        train.adopt(held)
    tokens, documents = train.record().tokens, train.documents
    count = round(validation * tokens)
    if count < 1:
        refuse("validation", f"be a token or more of the {tokens:,} that there are", validation, "pass a larger share")
    moved = train.take(count)
    held.write(moved)
    held.close()
    held.documents = int((moved == end).sum())
    train.documents += (train.last() != end) - held.documents
    which = "the only document" if documents == 1 else f"the {documents} documents, which all fall into one part"
    print(f"validation: the last {count:,} of {tokens:,} tokens of {which}", file=sys.stderr)


def _split(text: str, validation: float) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "validation" if int.from_bytes(digest[:8]) < validation * 2**64 else "train"


def _batches(files: Sequence[Path], reading: Reading, begun: PreparationCheckpoint) -> Iterator[list[Piece]]:
    """Pieces of all files from the place where an earlier call stopped, so many at a time that tokenizing is fast."""
    batch, length = [], 0
    for number, file in enumerate(files[begun.file :], begun.file):
        for count, piece in enumerate(pieces(file, reading)):
            if (number, count) < (begun.file, begun.pieces):
                continue
            batch.append(piece._replace(place=(number, count)))
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
            "skip broken lines."
        )
    problems.append(problem)
    if len(problems) <= _TOLD:
        print(f"left out: {problem}", file=sys.stderr)
    elif len(problems) == _TOLD + 1:
        print("left out: more lines, which are counted alone", file=sys.stderr)


def _require_text(writers: Mapping[str, ShardWriter], files: Sequence[Path], problems: Sequence[Problem]) -> None:
    if not any(writer.documents for writer in writers.values()):
        why = f" (line {problems[0].line} of {problems[0].path.name}: {problems[0].what})" if problems else ""
        remedy = "name the field that holds it (--field), or other files" if problems else "name others"
        found = "the file has none" if len(files) == 1 else f"none of {len(files)} files has any"
        raise ArgumentError(f"paths must hold text, but {found}{why}: {remedy}.")
