"""Data files, their folders and their download. Imports no torch."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mesascope.errors import ArgumentError, MesascopeError
from mesascope.files import replacing
from mesascope.progress import tracked

_BLOCK = 1 << 20  # bytes per read
_TIMEOUT = 30


class DownloadError(MesascopeError, OSError):
    """A file is not on this machine, and the download failed."""


class Source(NamedTuple):
    """Name, public URL and published MD5 checksum of a file."""

    name: str
    url: str
    md5: str


def cache_folder() -> Path:
    """Folder of downloaded and decoded files: MESASCOPE_CACHE if set, otherwise in the user's cache folder."""
    named = os.environ.get("MESASCOPE_CACHE")
    if named:
        return Path(named).expanduser()
    home = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    if home.startswith("~"):
        raise ArgumentError(
            "MESASCOPE_CACHE must be set for a user without a home folder, but is not: set it to a writable folder."
        )
    return Path(home) / "mesascope"


def data_folders() -> list[Path]:
    """Folders to search for data: MESASCOPE_DATA if set, then the cache."""
    named = os.environ.get("MESASCOPE_DATA")
    return [*([Path(named).expanduser()] if named else []), cache_folder()]


def found(dataset: str, sources: Sequence[Source]) -> list[Path]:
    """Paths of a dataset's files, in a data folder or downloaded into the cache.

    Raises:
        DownloadError: the files are not on this machine, and the download failed.
    """
    for folder in data_folders():
        paths = [folder / dataset / source.name for source in sources]
        if all(path.is_file() for path in paths):
            return paths
    return [_fetched(dataset, source) for source in sources]


def _fetched(dataset: str, source: Source) -> Path:
    """Path of a file in the cache, downloaded if missing. The file is renamed after its checksum is verified."""
    path = cache_folder() / dataset / source.name
    if path.is_file():
        return path
    try:
        with replacing(path, str(os.getpid())) as aside:
            digest = _downloaded(source, aside)
            if digest != source.md5:
                raise ArgumentError(
                    f"{source.url} must have the MD5 checksum {source.md5}, but the download has {digest}: try again, "
                    f"or put the file into {path.parent}."
                )
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise DownloadError(
            f"{dataset} must be on this machine or on the network, but {source.url} does not answer "
            f"({type(error).__name__}): put {source.name} into {path.parent}, or set MESASCOPE_DATA to a folder "
            f"with {dataset}/{source.name}."
        ) from None
    return path


def _downloaded(source: Source, path: Path) -> str:
    """Download a file to ``path``, and return its checksum."""
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "wb") as file, urllib.request.urlopen(source.url, timeout=_TIMEOUT) as answer:
        length = answer.headers.get("Content-Length")
        total = None if length is None else -(-int(length) // _BLOCK)
        for block in tracked(iter(lambda: answer.read(_BLOCK), b""), source.name, total):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()
