"""Where files of data are, and how they get there. Imports no torch."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mesascope.errors import ArgumentError, MesascopeError
from mesascope.progress import tracked

__all__ = ["DownloadError", "Source", "cache_folder", "data_folders", "found"]

# Bytes read at once.
_BLOCK = 1 << 20
_TIMEOUT = 30


class DownloadError(MesascopeError, OSError):
    """A file is on no disk here, and could not be fetched."""


class Source(NamedTuple):
    """A file, where it is public, and the MD5 checksum that its publisher gives."""

    name: str
    url: str
    md5: str


def cache_folder() -> Path:
    """What is downloaded or decoded is kept here: MESASCOPE_CACHE, or a folder of the user's caches."""
    named = os.environ.get("MESASCOPE_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mesascope"


def data_folders() -> list[Path]:
    """Where data is looked for: MESASCOPE_DATA, where it is set, and the cache."""
    named = os.environ.get("MESASCOPE_DATA")
    return [*([Path(named).expanduser()] if named else []), cache_folder()]


def found(dataset: str, sources: Sequence[Source]) -> list[Path]:
    """The files of a dataset, from a folder of its name; fetched into the cache where they are in none.

    Raises:
        DownloadError: they are on no disk here, and cannot be fetched.
    """
    for folder in data_folders():
        paths = [folder / dataset / source.name for source in sources]
        if all(path.is_file() for path in paths):
            return paths
    return [_fetched(dataset, source) for source in sources]


def _fetched(dataset: str, source: Source) -> Path:
    """A file of the cache; one that is there is whole, as it got its name after its checksum was seen to."""
    path = cache_folder() / dataset / source.name
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")  # several processes may fetch one file
    try:
        with open(aside, "wb") as file:
            digest = _copied(source, file)
        if digest != source.md5:
            raise ArgumentError(
                f"{source.url} must have the MD5 checksum {source.md5}, but what came has {digest}: try again, or "
                f"put the file into {path.parent}."
            )
        os.replace(aside, path)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise DownloadError(
            f"{dataset} must be on this machine or on the network, but {source.url} does not answer "
            f"({type(error).__name__}): put {source.name} into {path.parent}, or set MESASCOPE_DATA to a folder "
            f"with {dataset}/{source.name}."
        ) from None
    finally:
        aside.unlink(missing_ok=True)
    return path


def _copied(source: Source, file) -> str:
    """Copy what is at the address, and return its checksum."""
    digest = hashlib.md5(usedforsecurity=False)
    with urllib.request.urlopen(source.url, timeout=_TIMEOUT) as answer:
        length = answer.headers.get("Content-Length")
        total = None if length is None else -(-int(length) // _BLOCK)
        for block in tracked(iter(lambda: answer.read(_BLOCK), b""), source.name, total):
            digest.update(block)
            file.write(block)
    file.flush()
    return digest.hexdigest()
