"""Tokens on disk: memory-mapped shards and their index. Imports no torch."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from pathlib import Path
from typing import IO, Literal

import msgspec
import numpy as np

from mesascope.errors import ArgumentError, refuse, require_choice
from mesascope.files import naming, replacing
from mesascope.progress import tracked
from mesascope.runs.files import as_path

INDEX, TOKENIZER, CHECKED = "index.json", "tokenizer.json", "checked.json"
SPLITS = ("train", "validation")


class Shard(msgspec.Struct):
    """Index entry of a file of tokens."""

    file: str
    tokens: int = 0
    sha256: str = ""


class Split(msgspec.Struct):
    """One part of the corpus: documents for training or for validation."""

    tokens: int
    documents: int
    shards: list[Shard]


class Index(msgspec.Struct):
    """Content of the index: SHA-256 of the tokenizer, vocabulary size, end-of-document token, shards."""

    schema: Literal[1]
    tokenizer: str
    vocabulary: int
    end: int
    dtype: Literal["uint16", "uint32"]
    splits: dict[str, Split]
    files: int
    skipped: int
    """Number of lines that could not be read."""
    mesascope: str


class ShardWriter:
    """Write the tokens of a split into files of at most ``size`` tokens of ``dtype``."""

    def __init__(self, folder: Path, split: str, dtype: str, size: int) -> None:
        self.folder, self.split, self.dtype, self.size = folder, split, dtype, size
        self.documents = 0
        self.shards: list[Shard] = []
        self._file: IO[bytes] | None = None

    def write(self, tokens: np.ndarray) -> None:
        while len(tokens):
            file, shard = self._open()
            part, tokens = np.split(tokens, [self.size - shard.tokens])
            data = part.astype(self.dtype).tobytes()
            with naming(file.name):
                file.write(data)
            shard.tokens += len(part)
            if shard.tokens == self.size:
                self.close()

    def close(self) -> None:
        """Flush the open shard to disk, and close it."""
        if self._file is not None:
            self.keep()
            self._file.close()
            self._file, self.shards[-1].sha256 = None, _digest(self.folder / self.shards[-1].file)

    def keep(self) -> Split:
        """Flush all tokens to disk, and return the record for `go_on`."""
        if self._file is not None:
            with naming(self._file.name):
                self._file.flush()
                os.fsync(self._file.fileno())
        return self.record()

    def go_on(self, kept: Split) -> None:
        """Continue from the record of `keep`, and remove later tokens; raise if a shard is too short."""
        self.documents, self.shards = kept.documents, kept.shards
        for later in self.folder.glob(f"{self.split}-*.bin"):
            if later.name not in {shard.file for shard in kept.shards}:
                later.unlink()
        for shard in kept.shards:
            path, length = self.folder / shard.file, shard.tokens * np.dtype(self.dtype).itemsize
            if not path.is_file() or path.stat().st_size < length:
                raise _damaged(path, f"have {shard.tokens} tokens", "has fewer", "remove the folder, and ")
            if not shard.sha256:
                os.truncate(path, length)
                self._file = path.open("ab")

    def take(self, count: int) -> np.ndarray:
        """Remove the last ``count`` tokens from disk and return them. The writer must be closed."""
        found = []
        while count:
            shard = self.shards[-1]
            path = self.folder / shard.file
            part = np.fromfile(path, self.dtype)
            left = max(len(part) - count, 0)
            found.append(part[left:])
            count -= len(part) - left
            if not left:
                path.unlink()
                self.shards.pop()
                continue
            os.truncate(path, left * part.itemsize)
            shard.tokens, shard.sha256 = left, _digest(path)
        return np.concatenate(found[::-1])

    def last(self) -> int:
        """Return the last token. The writer must be closed."""
        shard = self.shards[-1]
        return int(np.memmap(self.folder / shard.file, self.dtype, "r")[-1])

    def adopt(self, other: ShardWriter) -> None:
        """Append all shards of another writer to this one's. Both writers must be closed."""
        for number, shard in enumerate(other.shards, len(self.shards)):
            name = f"{self.split}-{number:05d}.bin"
            os.replace(other.folder / shard.file, self.folder / name)
            self.shards.append(Shard(name, shard.tokens, shard.sha256))
        self.documents += other.documents
        other.documents, other.shards = 0, []

    def drop(self) -> None:
        """Close the open shard; tokens that are not on disk may be lost."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # the buffer cannot be flushed to a full disk
                self._file.close()
            self._file = None

    def remove(self) -> None:
        self.drop()
        for shard in self.shards:
            (self.folder / shard.file).unlink(missing_ok=True)

    def record(self) -> Split:
        return Split(sum(shard.tokens for shard in self.shards), self.documents, self.shards)

    def _open(self) -> tuple[IO[bytes], Shard]:
        if self._file is None:
            shard = Shard(f"{self.split}-{len(self.shards):05d}.bin")
            self._file = (self.folder / shard.file).open("wb")
            self.shards.append(shard)
        return self._file, self.shards[-1]


class Corpus:
    """Tokens from `prepare`: ``corpus["train"]`` is the list of memory-mapped shards of a split."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder, self.index = folder, index
        self._maps: dict[str, list[np.ndarray]] = {}

    def __getitem__(self, split: str) -> list[np.ndarray]:
        require_choice("split", split, SPLITS)
        if split not in self._maps:
            self._maps[split] = [
                np.memmap(self.folder / shard.file, self.index.dtype, "r") for shard in self.index.splits[split].shards
            ]
        return self._maps[split]

    @property
    def checksum(self) -> str:
        """Checksum of the tokenizer and of all shards."""
        shards = [shard.sha256 for split in SPLITS for shard in self.index.splits[split].shards]
        return hashlib.sha256(" ".join([self.index.tokenizer, *shards]).encode()).hexdigest()[:16]

    def tokens(self, split: str) -> int:
        require_choice("split", split, SPLITS)
        return self.index.splits[split].tokens

    def windows(self, split: str, starts: np.ndarray, length: int) -> np.ndarray:
        """Windows of ``length`` tokens, ``(len(starts), length)``; starts index the concatenated shards."""
        parts = self[split]
        offsets = np.cumsum([0, *map(len, parts)])
        starts = np.asarray(starts)
        if starts.size and not 0 <= starts.min() <= starts.max() <= offsets[-1] - length:
            rule = f"lie in 0 to {offsets[-1] - length}, as the split has {offsets[-1]} tokens"
            refuse("starts", rule, [int(starts.min()), int(starts.max())], "pass others")
        found = np.empty((len(starts), length), np.int64)
        for row, start in zip(found, starts.tolist(), strict=True):
            filled = 0
            while filled < length:
                place = np.searchsorted(offsets, start + filled, "right") - 1
                part = parts[place][start + filled - offsets[place] :][: length - filled]
                row[filled : filled + len(part)] = part
                filled += len(part)
        if found.size and not found.max() < self.index.vocabulary:
            raise ArgumentError(
                f"{self.folder} must hold tokens below {self.index.vocabulary}, but holds {found.max()}: prepare the "
                "text anew."
            )
        return found

    def verify(self, split: str) -> None:
        """Raise if a checksum differs from the index.

        checked.json, beside the shards, holds size, modification time and checksum of each verified shard. Only shards
        that differ from it are read.
        """
        require_choice("split", split, SPLITS)
        known = _checked(self.folder)
        for shard in tracked(self.index.splits[split].shards, f"checking tokens of {split}"):
            file = self.folder / shard.file
            state = file.stat()
            found = (state.st_size, state.st_mtime_ns, shard.sha256)
            if known.get(shard.file) == found:
                continue
            if _known_digest(file, state.st_mtime_ns) != shard.sha256:
                raise _damaged(file, "have its checksum in the index", "has another")
            content = msgspec.json.encode(_checked(self.folder) | {shard.file: found})
            with contextlib.suppress(OSError), replacing(self.folder / CHECKED, str(os.getpid())) as aside:
                aside.write_bytes(content)  # the folder may be read-only


def open_corpus(folder: str | os.PathLike[str]) -> Corpus:
    """Open a corpus from `prepare`, and check that its files are complete; `Corpus.verify` compares checksums.

    Raises:
        ArgumentError: there is no corpus, its index is damaged, a shard is missing or has another length, or the
            tokenizer is not that of the index.
    """
    path = as_path("corpus", folder)
    if not (path / INDEX).is_file():
        refuse("corpus", f"be a folder with {INDEX}", str(path), "write one with mesascope language prepare")
    try:
        index = msgspec.json.decode((path / INDEX).read_bytes(), type=Index)
    except msgspec.DecodeError as error:
        raise _damaged(path / INDEX, "be an index of tokens", f"is not ({error})") from None
    if not _agrees(index):
        raise _damaged(path / INDEX, "be an index of tokens", "has numbers that do not agree")
    size = np.dtype(index.dtype).itemsize
    for split in SPLITS:
        for shard in index.splits[split].shards:
            file = path / Path(shard.file).name
            length = file.stat().st_size if file.is_file() else -1
            if length != size * shard.tokens:
                found = "is missing" if length < 0 else f"has {length // size}"
                raise _damaged(file, f"have {shard.tokens} tokens, as in the index", found)
    tokenizer = path / TOKENIZER
    if not tokenizer.is_file() or _digest(tokenizer) != index.tokenizer:
        raise _damaged(tokenizer, "be the tokenizer of the index", "is not")
    return Corpus(path, index)


def _agrees(index: Index) -> bool:
    """True if token counts match the shards in both splits, and the vocabulary contains the end-of-document token."""
    counts = {name: sum(shard.tokens for shard in split.shards) for name, split in index.splits.items()}
    stated = {name: split.tokens for name, split in index.splits.items()}
    return set(counts) == set(SPLITS) and counts == stated and min(counts.values()) > 0 and index.end < index.vocabulary


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Size, modification time and checksum of verified shards; empty if there is no valid record."""
    try:
        return msgspec.json.decode((folder / CHECKED).read_bytes(), type=dict[str, tuple[int, int, str]])
    except (OSError, msgspec.DecodeError):  # none yet, or damaged
        return {}


@functools.cache
def _known_digest(path: Path, changed: int) -> str:
    """SHA-256 of a file, cached by its modification time."""
    return _digest(path)


def _damaged(path: Path, rule: str, found: str, first: str = "") -> ArgumentError:
    return ArgumentError(f"{path} must {rule}, but {found}: {first}prepare the text anew.")
