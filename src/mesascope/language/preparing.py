"""Preparation of a corpus: tokenize text files and write the tokens to disk. Imports no torch."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

import mesascope
from mesascope.errors import ArgumentError, refuse, require_choice, require_count, require_number
from mesascope.language import tokenizing
from mesascope.language.documents import Piece, Problem, Reading, files_of, pieces, size_of, standard_library
from mesascope.language.shards import INDEX, SPLITS, TOKENIZER, Corpus, Index, ShardWriter, Split, open_corpus
from mesascope.language.tokenizing import Encoded, encoded
from mesascope.progress import tell, tracked
from mesascope.runs.files import as_path, write_aside
from mesascope.runs.locks import LOCKS, locked
from mesascope.runs.results import record_hash

PROGRESS = "progress.json"
_AT_ONCE = 1 << 21  # characters per tokenizer call, which uses all cores
_TRAINED_ON = 1 << 28  # number of characters for byte-pair training
_TOLD = 20  # maximum number of skipped lines that are printed
_KEPT_EVERY = 1 << 24  # tokens between two checkpoints


def prepare(
    paths: Sequence[str | Path] | None, out: str | os.PathLike[str], tokenizer: str | os.PathLike[str] = "bytes", *,
    validation: float = 0.01, field: str = "text", delimiter: str | None = None, broken: str = "skip",
    shard: int = 1 << 26,
) -> Corpus:  # fmt: skip
    """Tokenize text files into a folder, with a share of the documents for validation.

    A hash of a document's first characters selects its split, so copies are in the same split. If a split stays empty,
    as with a single document, the last tokens are for validation. Memory does not grow with the text. The same call
    continues an interrupted preparation.

    Args:
        paths: files and folders, see `files_of`; if None, the sources of Python's standard library.
        out: a folder without a corpus, or with an interrupted preparation of this corpus.
        tokenizer: ``bytes``, ``bpe:VOCABULARY`` (byte pairs, trained on the first 2^28 characters), or a
            ``tokenizer.json``.
        validation: share of the documents for validation, or of the tokens if a split stays empty.
        field: field of rows that contains the text.
        delimiter: separator of documents in a plain text file; None if a file is one document.
        broken: ``"skip"`` or ``"refuse"`` (with an error) lines that are not UTF-8 or hold zero bytes, rows that are
            not JSON or lack text, and damaged files.
        shard: maximum number of tokens per file.

    Raises:
        ArgumentError: there is no text, a line is broken and refused, or ``out`` contains another corpus.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "text.txt").write_text("one\\n\\ntwo\\n\\nthree\\n\\nfour\\n\\nfive")
    >>> corpus = prepare([folder / "text.txt"], folder / "tokens", delimiter="\\n\\n", validation=0.4)
    >>> corpus.tokens("train") + corpus.tokens("validation")  # one per byte and per end of a document
    24
    """
    folder, kind = as_path("out", out), tokenizing.TokenizerKind(tokenizer)  # type: ignore[arg-type]
    validation = require_number("validation", validation, above=0, most=0.5)
    require_choice("broken", broken, ("skip", "refuse"))
    shard = require_count("shard", shard)
    files = standard_library() if paths is None else files_of(paths)
    problems: list[Problem] = []
    undivided: list[Path] = []
    reading = Reading(field, delimiter, lambda problem: _broken(problem, problems, broken), undivided.append)
    settings = [kind.identity, validation, field, reading.delimiter, broken, shard]
    with _alone_in(folder):
        _require_no_corpus(folder)
        progress = PreparationCheckpoint.of(folder, files, settings)
        words = _tokenizer(kind, progress, Reading(field, delimiter))
        index = _empty_index(words, len(files))
        with progress.writing({split: ShardWriter(folder, split, index.dtype, shard) for split in SPLITS}) as writers:
            progress.begin(words.to_str().encode())
            total = None if (size := size_of(files)) is None else -(-size // _AT_ONCE)
            batches = tracked(_batches(files, reading, progress.place), "tokenizing", total)
            parts = encoded(words, batches)
            _write(parts, index.end, writers, validation, lambda place: progress.keep(writers, place, problems))
            _require_text(writers, files, problems)
            _tell_of_undivided(undivided, reading.delimiter)
            _divide(writers["train"], writers["validation"], validation, index.end)
        index.splits = {split: writer.record() for split, writer in writers.items()}
        index.skipped = progress.skipped_before + len(problems)
        write_aside(folder / INDEX, msgspec.json.format(msgspec.json.encode(index)))
        (folder / PROGRESS).unlink(missing_ok=True)
    return open_corpus(folder)


def _tokenizer(kind: tokenizing.TokenizerKind, progress: PreparationCheckpoint, reading: Reading) -> Any:
    if progress.is_begun:
        return tokenizing.load_tokenizer(progress.folder / TOKENIZER)
    return tokenizing.make_tokenizer(kind, tracked(_trained_on(progress.files, reading), "training byte pairs"))


def _empty_index(words: Any, files: int) -> Index:
    size, end = tokenizing.vocabulary_of(words), tokenizing.end_of_document(words)
    dtype = "uint16" if size <= 1 << 16 else "uint32"
    return Index(1, tokenizing.tokenizer_checksum(words), size, end, dtype, {}, files, 0, mesascope.__version__)


def _require_no_corpus(folder: Path) -> None:
    foreign = (folder / TOKENIZER).exists() and not any(folder.glob("*.bin"))  # ours has shards beside it
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


def _tell_of_undivided(files: Sequence[Path], delimiter: str | None) -> None:
    if files:
        others = f", nor in {len(files) - 1} more" if files[1:] else ""
        tell(f"delimiter {delimiter!r} is not in {files[0]}{others}: each file is one document")


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
        refuse("validation", f"be at least one of the {tokens:,} tokens", validation, "pass a larger share")
    moved = train.take(count)
    held.write(moved)
    held.close()
    held.documents = int((moved == end).sum())
    train.documents += (train.last() != end) - held.documents
    which = "the only document" if documents == 1 else f"the {documents} documents, which all fall into one part"
    tell(f"validation: the last {count:,} of {tokens:,} tokens of {which}")


def _split(text: str, validation: float) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "validation" if int.from_bytes(digest[:8]) < validation * 2**64 else "train"


def _batches(files: Sequence[Path], reading: Reading, begun: tuple[int, int]) -> Iterator[list[Piece]]:
    """Yield batches of pieces of all files, starting at the place ``begun``."""
    batch, length = [], 0
    for number, file in enumerate(files[begun[0] :], begun[0]):
        for count, piece in enumerate(pieces(file, reading)):
            if (number, count) < begun:
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
            f"{problem.path} must be readable text, but line {problem.line} is broken, {problem.what}: mend it, or "
            "skip broken lines."
        )
    problems.append(problem)
    if len(problems) <= _TOLD:
        tell(f"left out: {problem}")
    elif len(problems) == _TOLD + 1:
        tell("left out: more lines (counted, not printed)")


def _require_text(writers: Mapping[str, ShardWriter], files: Sequence[Path], problems: Sequence[Problem]) -> None:
    if not any(writer.documents for writer in writers.values()):
        why = f" (line {problems[0].line} of {problems[0].path.name}: {problems[0].what})" if problems else ""
        fields = any("no text in" in one.what for one in problems)
        remedy = "name the field that holds it (--field), or other files" if fields else "mend the file, or name others"
        found = "the file has none" if len(files) == 1 else f"none of {len(files)} files has any"
        raise ArgumentError(f"paths must hold text, but {found}{why}: {remedy}.")


class Kept(msgspec.Struct):
    """Content of the checkpoint file: the position reached in the text files, and the shards written."""

    schema: Literal[1]
    made_from: str
    read: str = ""
    file: int = 0
    pieces: int = 0
    skipped: int = 0
    splits: dict[str, Split] = {}


class PreparationCheckpoint:
    """Checkpoint of a preparation of ``files`` into a folder."""

    def __init__(self, folder: Path, files: Sequence[Path], kept: Kept) -> None:
        self.folder, self.files, self._kept = folder, files, kept
        self.skipped_before = kept.skipped

    @classmethod
    def of(cls, folder: Path, files: Sequence[Path], settings: Any) -> PreparationCheckpoint:
        """Open the folder's checkpoint, or make a new one; raise if it belongs to other files or settings."""
        made_from = record_hash([settings, [str(file.resolve()) for file in files]])
        if not ((folder / PROGRESS).exists() and (folder / TOKENIZER).exists()):
            return cls(folder, files, Kept(1, made_from))
        kept = None
        with contextlib.suppress(msgspec.DecodeError):
            kept = msgspec.json.decode((folder / PROGRESS).read_bytes(), type=Kept)
        if kept is None or kept.made_from != made_from or kept.read not in ("", _state(files, kept.file)):
            rule = "not hold an unfinished corpus of other files or settings"
            refuse("out", rule, str(folder), "name another folder, or remove what it holds")
        return cls(folder, files, kept)

    @property
    def place(self) -> tuple[int, int]:
        """Index of the first file to read, and index of its first piece."""
        return self._kept.file, self._kept.pieces

    @property
    def is_begun(self) -> bool:
        return bool(self._kept.read)

    def begin(self, tokenizer: bytes) -> None:
        """Save the tokenizer and an empty checkpoint, unless `keep` has saved a later one."""
        if not self.is_begun:
            write_aside(self.folder / PROGRESS, msgspec.json.encode(self._kept))
            write_aside(self.folder / TOKENIZER, tokenizer)

    def keep(self, writers: Mapping[str, ShardWriter], place: tuple[int, int], problems: Sequence[Problem]) -> None:
        """Save a checkpoint when all documents before ``place`` are written."""
        done = {*self.files[: place[0]]}
        skipped = self.skipped_before + sum(problem.path in done for problem in problems)
        splits = {split: writer.keep() for split, writer in writers.items()}
        self._kept = Kept(1, self._kept.made_from, _state(self.files, place[0]), *place, skipped, splits)
        write_aside(self.folder / PROGRESS, msgspec.json.encode(self._kept))

    @contextlib.contextmanager
    def writing(self, writers: dict[str, ShardWriter]) -> Iterator[dict[str, ShardWriter]]:
        """Continue writers from the checkpoint and close them; an error before any checkpoint deletes all files."""
        for split, kept in self._kept.splits.items():
            writers[split].go_on(kept)
        try:
            yield writers
            for writer in writers.values():
                writer.close()
        except BaseException:
            for writer in writers.values():
                writer.drop() if self.is_begun else writer.remove()
            for name in () if self.is_begun else (PROGRESS, TOKENIZER):
                (self.folder / name).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Make a folder, and keep other processes from writing to it; remove it if it stays empty."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder):
            try:
                yield
            finally:
                for lock in LOCKS:
                    (folder / lock).unlink(missing_ok=True)
    finally:
        if made:
            with contextlib.suppress(OSError):  # it has files
                folder.rmdir()


def _state(files: Sequence[Path], last: int) -> str:
    """Checksum of the sizes and modification times of the files up to ``last``."""
    return record_hash([(state.st_size, state.st_mtime_ns) for state in (file.stat() for file in files[: last + 1])])
