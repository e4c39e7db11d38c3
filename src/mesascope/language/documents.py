"""Reading of documents from text files, in pieces of limited size. Imports no torch."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from mesascope.data.folders import visible_files
from mesascope.errors import ArgumentError, one_line, refuse, require_package, shown
from mesascope.validate import frozen

PIECE = 1 << 20  # characters per piece of a document, the unit held in memory
_TEXT = (".txt", ".md", ".rst", ".py", ".text", ".html", ".tex")
_ROWS = (".jsonl", ".ndjson", ".json")
_TABLES = (".parquet", ".arrow")
_PACKED = {".gz": "gzip", ".zst": "Zstandard"}
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_KEPT_BYTES = "surrogateescape"  # error handler that keeps bytes which are not UTF-8
_FILE = b"ARROW1"  # first bytes of the Arrow file format (not the stream format)


class Piece(NamedTuple):
    """Text of a document, or of one part of a long document."""

    text: str
    begins: bool
    """True for the first piece of a document."""
    place: tuple[int, int] = (0, 0)
    """Index of the file, and index of the piece in it."""


class Problem(NamedTuple):
    """An unreadable part of a file."""

    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


@frozen
class Reading:
    """Settings for reading files.

    Args:
        field: field that contains the text in JSONL, Parquet and Arrow rows.
        delimiter: separator of documents in a text file, with line ends as ``\\n``; None if a file is one document.
        report: called with each skipped line.
        undivided: called with each plain text file that does not contain the delimiter.
    """

    field: str = "text"
    delimiter: str | None = None
    report: Callable[[Problem], None] = lambda problem: None
    undivided: Callable[[Path], None] = lambda path: None

    def __post_init__(self) -> None:
        if self.delimiter == "":
            refuse("delimiter", "have at least one character", self.delimiter, "pass None for one document per file")
        if self.delimiter is not None:
            object.__setattr__(self, "delimiter", self.delimiter.replace("\r\n", "\n").replace("\r", "\n"))


def files_of(paths: Sequence[str | Path]) -> list[Path]:
    """Files with text at the paths, without duplicates; the visible files of a folder are sorted by name.

    A folder may contain plain text (.txt, .py, .md, ...), JSON Lines (.jsonl, .ndjson) and tables (.parquet, .arrow).
    Caches of Hugging Face's datasets are skipped. Text and JSON Lines may be compressed with gzip or Zstandard. A path
    may also name one file: plain text with any name, or JSON Lines named .json (skipped in folders).

    Raises:
        ArgumentError: ``paths`` is one path, a path does not exist, or a folder contains no such files.
    """
    if isinstance(paths, str | Path):
        refuse("paths", "be a list", paths, "pass [path]")
    if not paths:
        refuse("paths", "name at least one file or folder", [*paths], "check the pattern, or pass the files")
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not (path.is_dir() or path.is_file()):
            refuse("paths", "exist", str(path), "name files or folders of text")
        own = [file for file in visible_files(path) if _is_of_texts(file)] if path.is_dir() else [path]
        if not own:
            known = ", ".join((*_TEXT, *_ROWS[:2], *_TABLES))
            refuse("paths", f"hold files of text ({known})", str(path), "name the files themselves")
        for file in own:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def size_of(files: Sequence[Path]) -> int | None:
    """Approximate number of bytes of text; None if a file is compressed."""
    packed = any(_is_packed(file) or file.suffix.lower() == ".parquet" for file in files)
    return None if packed else sum(file.stat().st_size for file in files)


def standard_library(part: str = "") -> list[Path]:
    """Source files of Python's standard library on this machine: about 30 MB of text without a download.

    Args:
        part: a folder of the library, such as ``"asyncio"``; the whole library if empty.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    found = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    if not found:
        raise ArgumentError(
            f"the standard library must have its sources in {root}, but has none (Python {sys.version.split()[0]}): "
            "name files of text."
        )
    found = [path for path in found if path.is_relative_to(root / part)]
    if not found:
        refuse("part", "name a folder of the standard library", part, "pass asyncio, or leave it out")
    return found


def pieces(path: Path, reading: Reading) -> Iterator[Piece]:
    """Yield the documents of a file in pieces, in order; unreadable lines and files are skipped and reported."""
    return {_ROWS: _of_rows, _TABLES: _of_table}.get(_kind(path) or _TEXT, _of_text)(path, reading)


def is_utf8(text: str) -> bool:
    """True if the text can be encoded in UTF-8; a JSON string may contain half of a surrogate pair."""
    return text.isascii() or text.encode(errors="ignore").decode() == text


def _kind(path: Path) -> tuple[str, ...] | None:
    return next((kind for kind in (_TEXT, _ROWS, _TABLES) if _suffix(path) in kind), None)


def _suffix(path: Path) -> str:
    """Suffix of a file's name without .gz or .zst, in lower case."""
    return (Path(path.stem) if _is_packed(path) else path).suffix.lower()


def _is_of_texts(path: Path) -> bool:
    """True if a file in a folder contains documents; false for .json (often metadata) and cache-*.arrow (copies)."""
    return _kind(path) is not None and _suffix(path) != ".json" and not path.match("cache-*.arrow")


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() in _PACKED


def _lines(path: Path, reading: Reading, newline: str | None, most: int = -1) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each UTF-8 line; a line of more than ``most`` characters is split."""
    number, ended = 0, True
    with path.open("rb") as raw, _unpacked(path, raw) as file:
        try:
            start = file.peek(1)  # type: ignore[attr-defined]
            if start.startswith(_WIDE):
                reading.report(Problem(path, 1, "in UTF-16, not in UTF-8, like the whole file"))
                return
            if b"\0" in start:
                reading.report(Problem(path, 1, "zero bytes, so the whole file is not text"))
                return
            text = io.TextIOWrapper(file, "utf-8-sig", _KEPT_BYTES, newline)
            while line := text.readline(most):
                number += ended
                ended = line.endswith("\n")
                if "\0" in line:
                    reading.report(Problem(path, number, "zero bytes"))
                    continue
                try:
                    yield number, line if line.isascii() else line.encode(errors=_KEPT_BYTES).decode()
                except UnicodeDecodeError as error:
                    reading.report(Problem(path, number, f"not UTF-8 ({error.reason} at byte {error.start})"))
        except (EOFError, OSError, zlib.error) as error:
            if getattr(error, "errno", None) or not _is_packed(path):  # not damaged data
                raise
            what = f"not a whole {_PACKED[path.suffix.lower()]} file ({one_line(error)})"
            reading.report(Problem(path, number + 1, what))


def _unpacked(path: Path, raw: IO[bytes]) -> Any:
    """Buffered file of the decompressed bytes."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=raw))  # type: ignore[arg-type]
    if suffix == ".zst":
        arrow = require_package("pyarrow", ".zst files", "language")
        return io.BufferedReader(arrow.CompressedInputStream(raw, "zstd"), 1 << 16)
    return raw


def _of_text(path: Path, reading: Reading) -> Iterator[Piece]:
    """Yield the documents of a plain text file, split at delimiters; long documents come in pieces."""
    held, begins, divided = "", True, reading.delimiter is None
    for _, line in _lines(path, reading, None, PIECE):
        new = max(len(held) - len(reading.delimiter or ""), 0)  # a delimiter not yet found begins here or later
        held += line
        if reading.delimiter is not None and reading.delimiter in held[new:]:
            *whole, held = held.split(reading.delimiter)
            divided = True
            for text in whole:
                if text.strip() or not begins:
                    yield Piece(text, begins)
                begins = True
        elif len(held) >= PIECE + (kept := len(reading.delimiter or " ") - 1):  # the end may begin a delimiter
            cut = len(held) - kept
            yield Piece(held[:cut], begins)
            held, begins = held[cut:], False
    if held.strip() or not begins:
        yield Piece(held, begins)
    if not divided:
        reading.undivided(path)


def _of_rows(path: Path, reading: Reading) -> Iterator[Piece]:
    for number, line in _lines(path, reading, "\n"):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # ValueError: also integers with thousands of digits
            why = "nested too deeply" if isinstance(error, RecursionError) else getattr(error, "msg", str(error))
            reading.report(Problem(path, number, f"not JSON ({why})"))
            continue
        yield from _of_row(row if isinstance(row, dict) else {}, path, number, reading)


def _of_row(row: Mapping[str, Any], path: Path, number: int, reading: Reading) -> Iterator[Piece]:
    """Yield the text of a row, in pieces if it is long."""
    text = row.get(reading.field)
    if not isinstance(text, str):
        reading.report(_no_text(path, number, row, reading))
    elif not is_utf8(text):
        reading.report(Problem(path, number, f"half of a character in {reading.field!r}"))
    elif text.strip():
        for start in range(0, len(text), PIECE):
            yield Piece(text[start : start + PIECE], start == 0)


def _no_text(path: Path, number: int, names: Iterable[str], reading: Reading) -> Problem:
    others = [name for name in names if name != reading.field]
    return Problem(path, number, f"no text in {reading.field!r}{f'; other fields: {shown(others)}' if others else ''}")


def _of_table(path: Path, reading: Reading) -> Iterator[Piece]:
    for first, batch in _batches(path, reading):
        if reading.field not in batch.schema.names:
            reading.report(_no_text(path, first, batch.schema.names, reading))
            return
        for row, value in enumerate(batch.column(reading.field), first):
            try:
                text = value.as_py()
            except UnicodeDecodeError as error:
                reading.report(Problem(path, row, f"not UTF-8 ({error.reason} at byte {error.start})"))
            else:
                yield from _of_row({reading.field: text}, path, row, reading)


def _batches(path: Path, reading: Reading) -> Iterator[tuple[int, Any]]:
    """Yield batches of rows, each with the number of its first row, counted from 1."""
    arrow, row = require_package("pyarrow", f"{path.suffix} files", "language"), 1
    try:
        if path.suffix.lower() == ".parquet":
            yield from _of_parquet(path, reading, arrow)
            return
        ipc = require_package("pyarrow.ipc", ".arrow files", "language")
        with arrow.memory_map(str(path)) as source:
            whole = source.read(len(_FILE)) == _FILE
            source.seek(0)
            file = ipc.open_file(source) if whole else ipc.open_stream(source)
            for batch in map(file.get_batch, range(file.num_record_batches)) if whole else file:
                yield row, batch
                row += len(batch)
    except (arrow.ArrowInvalid, OSError) as error:
        if getattr(error, "errno", None):  # not damaged data
            raise
        reading.report(Problem(path, row, f"not a whole {path.suffix} file ({one_line(error)})"))


def _of_parquet(path: Path, reading: Reading, arrow: Any) -> Iterator[tuple[int, Any]]:
    """Yield batches of rows; in a damaged row group, the rows after the damage are skipped and reported."""
    parquet = require_package("pyarrow.parquet", ".parquet files", "language")
    file, start = parquet.ParquetFile(path), 1
    columns = [reading.field] if reading.field in file.schema_arrow.names else None
    for group in range(file.num_row_groups):
        row = start
        try:
            for batch in file.iter_batches(64, [group], columns):
                yield row, batch
                row += len(batch)
        except (arrow.ArrowInvalid, OSError) as error:
            reading.report(Problem(path, row, f"not a whole row group ({one_line(error)})"))
        start += file.metadata.row_group(group).num_rows
