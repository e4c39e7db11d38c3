"""Preparation of a corpus: tokenize text files and write the tokens to disk. Imports no torch."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import mesascope
from mesascope.errors import ArgumentError, refuse, require_choice, require_count, require_number
from mesascope.language import tokenizing
from mesascope.language.documents import Piece, Problem, Reading, files_of, pieces, size_of, standard_library
from mesascope.language.encoding import Encoded, encoded
from mesascope.language.resuming import PROGRESS, PreparationCheckpoint
from mesascope.language.shards import INDEX, SPLITS, TOKENIZER, Corpus, Index, ShardWriter, open_corpus
from mesascope.progress import tracked
from mesascope.runs.files import as_path, write_aside

_AT_ONCE = 1 << 21  # characters per tokenizer call, which uses all cores
_TRAINED_ON = 1 << 28  # number of characters for byte-pair training
_TOLD = 20  # maximum number of skipped lines that are printed
_KEPT_EVERY = 1 << 24  # tokens between two checkpoints


def prepare(
    paths: Sequence[str | Path], out: str | os.PathLike[str], tokenizer: str | os.PathLike[str] = "bytes", *,
    validation: float = 0.01, field: str = "text", delimiter: str | None = None, broken: str = "skip",
    shard: int = 1 << 26,
) -> Corpus:  # fmt: skip
    """Tokenize text files into a folder, with a share of the documents for validation.

    A hash of a document's first characters selects its split, so that copies are in the same split. If a split stays
    empty, as with a single document, the last tokens are for validation. Memory does not grow with the text. The same
    call continues an interrupted preparation.

    Args:
        paths: files and folders, see `files_of`; if empty, the sources of Python's standard library.
        out: a folder without a corpus, or with an interrupted preparation of this corpus.
        tokenizer: ``bytes``, ``bpe:VOCABULARY`` (byte pairs, trained on the first 256 MB), or a ``tokenizer.json``.
        validation: share of the documents for validation, or of the tokens if a split stays empty.
        field: field of rows that contains the text.
        delimiter: separator of documents in a plain text file; None if a file is one document.
        broken: ``"skip"`` lines that are not UTF-8, JSON or text, or ``"refuse"`` them with an error.
        shard: maximum number of tokens per file.

    Raises:
        ArgumentError: there is no text, a line is broken and refused, or ``out`` contains another corpus.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "text.txt").write_text("one\\n\\ntwo\\n\\nthree\\n\\nfour\\n\\nfive")
    >>> corpus = prepare([folder / "text.txt"], folder / "tokens", delimiter="\\n\\n", validation=0.4)
    >>> corpus.tokens("train") + corpus.tokens("validation")  # a byte each, and the end of each document
    24
    """
    folder, kind = as_path("out", out), tokenizing.TokenizerKind(tokenizer)  # type: ignore[arg-type]
    validation = require_number("validation", validation, above=0, most=0.5)
    require_choice("broken", broken, ("skip", "refuse"))
    shard = require_count("shard", shard)
    _require_no_corpus(folder)
    files = files_of(paths) if paths else standard_library()
    problems: list[Problem] = []
    undivided: list[Path] = []
    reading = Reading(field, delimiter, lambda problem: _broken(problem, problems, broken), undivided.append)
    progress = PreparationCheckpoint.of(
        folder, files, [kind.identity, validation, field, reading.delimiter, broken, shard]
    )
    words = _tokenizer(kind, progress, Reading(field, delimiter))
    index = _empty_index(words, len(files))
    with progress.writing({split: ShardWriter(folder, split, index.dtype, shard) for split in SPLITS}) as writers:
        progress.begin(words.to_str().encode())
        parts = encoded(words, _batches(files, reading, progress))
        _write(parts, index.end, writers, validation, lambda place: progress.keep(writers, place, problems))
        _require_text(writers, files, problems)
        _divide(writers["train"], writers["validation"], validation, index.end)
    if undivided:
        others = f" and in {len(undivided) - 1} more" if undivided[1:] else ""
        print(f"delimiter {reading.delimiter!r} is not in {undivided[0]}{others}: a file is one document",
              file=sys.stderr)  # fmt: skip
    index.splits = {split: writer.record() for split, writer in writers.items()}
    index.skipped = progress.skipped_before + len(problems)
    write_aside(folder / INDEX, msgspec.json.format(msgspec.json.encode(index)))
    (folder / PROGRESS).unlink(missing_ok=True)
    return open_corpus(folder)


def _tokenizer(kind: tokenizing.TokenizerKind, progress: PreparationCheckpoint, reading: Reading) -> Any:
    """Load the tokenizer of the checkpoint, or make a new one."""
    if progress.is_begun:
        return tokenizing.load_tokenizer(progress.folder / TOKENIZER)
    texts = tracked(_trained_on(progress.files, reading), "training byte pairs")
    return tokenizing.make_tokenizer(kind, iter(texts))


def _empty_index(words: Any, files: int) -> Index:
    size, end = tokenizing.vocabulary_of(words), tokenizing.end_of_document(words)
    dtype = "uint16" if size <= 1 << 16 else "uint32"
    return Index(1, tokenizing.tokenizer_checksum(words), size, end, dtype, {}, files, 0, mesascope.__version__)


def _require_no_corpus(folder: Path) -> None:
    foreign = (folder / TOKENIZER).exists() and not any(folder.glob("*.bin"))  # ours has shards next to it
    if (foreign and not (folder / PROGRESS).exists()) or (folder / INDEX).exists():
        rule = f"be a folder without a corpus or a {TOKENIZER}"
        refuse("out", rule, str(folder), "name another, or remove what it holds")


def _write(
    parts: Iterable[Encoded], end: int, writers: Mapping[str, ShardWriter], validation: float,
    keep: Callable[[tuple[int, int]], None],
) -> None:  # fmt: skip
    """Write each document's tokens, then an end token, to its split."""
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
    """Move the last tokens to validation if all documents are in one split."""
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
    """Yield batches of pieces of all files, starting from the checkpoint."""
    total = size_of(files)
    batches = _unread_batches(files, reading, begun)
    return tracked(batches, "tokenizing", None if total is None else -(-total // _AT_ONCE))


def _unread_batches(files: Sequence[Path], reading: Reading, begun: PreparationCheckpoint) -> Iterator[list[Piece]]:
    batch, length = [], 0
    first, _ = begun.place
    for number, file in enumerate(files[first:], first):
        for count, piece in enumerate(pieces(file, reading)):
            if (number, count) < begun.place:
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
        print("left out: more lines, which are only counted", file=sys.stderr)


def _require_text(writers: Mapping[str, ShardWriter], files: Sequence[Path], problems: Sequence[Problem]) -> None:
    if not any(writer.documents for writer in writers.values()):
        why = f" (line {problems[0].line} of {problems[0].path.name}: {problems[0].what})" if problems else ""
        remedy = "name the field that holds it (--field), or other files" if problems else "name others"
        found = "the file has none" if len(files) == 1 else f"none of {len(files)} files has any"
        raise ArgumentError(f"paths must hold text, but {found}{why}: {remedy}.")
