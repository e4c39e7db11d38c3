"""Checkpoints of an interrupted preparation. Imports no torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from mesascope.errors import refuse
from mesascope.language.documents import Problem
from mesascope.language.shards import TOKENIZER, ShardWriter, Split
from mesascope.runs.files import write_aside

PROGRESS = "progress.json"


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
        made_from = _checksum([settings, [str(file.resolve()) for file in files]])
        if not ((folder / PROGRESS).exists() and (folder / TOKENIZER).exists()):
            return cls(folder, files, Kept(1, made_from))
        kept = None
        with contextlib.suppress(msgspec.DecodeError):
            kept = msgspec.json.decode((folder / PROGRESS).read_bytes(), type=Kept)
        if kept is None or kept.made_from != made_from or kept.read not in ("", _state(files, kept.file)):
            rule = "hold no beginning of a corpus of other files or settings"
            refuse("out", rule, str(folder), "name another folder, or remove what it holds")
        return cls(folder, files, kept)

    @property
    def place(self) -> tuple[int, int]:
        """Index of the first file to read, and of its first piece."""
        return self._kept.file, self._kept.pieces

    @property
    def is_begun(self) -> bool:
        """True if a checkpoint with tokens was saved."""
        return bool(self._kept.read)

    def begin(self, tokenizer: bytes) -> None:
        """Save the tokenizer, unless an earlier call has saved it."""
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
        """Continue the writers from the checkpoint, and close them; after an error, delete unneeded files."""
        made = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        for split, kept in self._kept.splits.items():
            writers[split].go_on(kept)
        try:
            yield writers
            for writer in writers.values():
                writer.close()
        except BaseException:
            for writer in writers.values():
                writer.drop() if self.is_begun else writer.remove()
            if not self.is_begun:
                for name in (PROGRESS, TOKENIZER):
                    (self.folder / name).unlink(missing_ok=True)
                if made:
                    with contextlib.suppress(OSError):
                        self.folder.rmdir()
            raise


def _checksum(described: Any) -> str:
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _state(files: Sequence[Path], last: int) -> str:
    """Checksum of the sizes and modification times of the files up to ``last``."""
    return _checksum([(state.st_size, state.st_mtime_ns) for state in (file.stat() for file in files[: last + 1])])
