"""Image datasets: digits, MNIST, Fashion-MNIST, Omniglot, and your own folders."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from torch.nn import functional

from mesascope.data.arrays import Images, as_shown, is_grey
from mesascope.data.files import Source, cache_folder, found
from mesascope.data.folders import folder_of, is_hidden, pictures_of, state_of
from mesascope.errors import ArgumentError, require_choice, require_count, require_instance, require_package
from mesascope.files import replacing
from mesascope.progress import tracked
from mesascope.shapes import Tensor
from mesascope.tensors import read_tensors, tensors_bytes

PARTS = ("train", "validation", "test")
_TEN = tuple("0123456789")
_AT_ONCE = 4096  # images to resize per batch
_KEPT = 16  # number of (dataset, part, size) results kept in memory
_DECODER = 4  # version of the decoder; cache files of older versions are ignored
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_OMNIGLOT = "https://github.com/brendenlake/omniglot/raw/master/python/"
_IDX = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz")  # fmt: skip


def images(dataset: str, part: str = "train", size: int | None = None) -> Images:
    """Load the images of a dataset; decoded images are cached.

    ==============  ======================================================================================
    ``dataset``     images
    ==============  ======================================================================================
    digits          1,797 handwritten digits, 8 x 8, from scikit-learn; a quarter for test
    mnist           60,000 (train) and 10,000 (test) handwritten digits, 28 x 28
    fashion-mnist   60,000 (train) and 10,000 (test) articles of clothing, 28 x 28
    omniglot        20 drawings of each of 1,623 characters, 105 x 105: 964 from 30 alphabets for training,
                    659 from the other 20 alphabets for test
    another         pictures in a folder with this name or path, such as ./split: see below
    ==============  ======================================================================================

    Folders with these names are searched under MESASCOPE_DATA and in the cache. Missing files of mnist, fashion-mnist
    and omniglot are downloaded to the cache. Your own folder has one of three layouts:

    - ``images/``, with tables ``train.csv``, ``val.csv`` and ``test.csv`` (columns ``filename`` and ``label``), as for
      miniImageNet and CUB;
    - ``train/CLASS/PICTURE``, ``val/CLASS/PICTURE`` and ``test/CLASS/PICTURE``;
    - ``CLASS/PICTURE``, also in ``images/``: the first 64 % of the classes, sorted by name, are for training, the next
      16 % for validation and the last 20 % for test, as in miniImageNet.

    Hidden files are skipped. Pictures are rotated by their EXIF orientation; transparent parts become white. There is
    one channel if the pictures of all parts are grey, otherwise three. A folder is reloaded if files are added, removed
    or renamed; files overwritten in place are reloaded by the next process. Tasks share the tensors that are returned:
    clone them before changing them in place.

    Args:
        part: train, validation or test.
        size: side of the result in pixels; if None, the files' side, and they must be square and of one size and kind.

    Raises:
        DownloadError: the files are not on this machine, and the download failed.
        ArgumentError: the dataset, part or layout is unknown, a file is damaged, or the pictures need a ``size``.

    >>> digits = images("digits")
    >>> tuple(digits.pixels.shape), len(digits.classes)
    ((1347, 1, 8, 8), 10)
    """
    require_instance("dataset", dataset, str, "pass a name, or a path as text, such as './split'")
    require_choice("part", part, PARTS)
    if size is not None:
        require_count("size", size)
    place = dataset if dataset in DATASETS else folder_of(dataset)
    return _images(place, part, size, () if isinstance(place, str) else state_of(place))


@functools.lru_cache(_KEPT)
def _images(dataset: str | Path, part: str, size: int | None, state: tuple[Any, ...]) -> Images:
    if isinstance(dataset, Path):
        return _of_folder(dataset, part, size)
    if part == "validation":
        raise ArgumentError(f"part must be train or test for {dataset}, but is {part!r}: choose one of them.")
    return _resized(DATASETS[dataset](part), size)


def _resized(whole: Images, size: int | None) -> Images:
    if size is None or size == whole.pixels.shape[-1]:
        return whole
    parts = [
        functional.interpolate(part.float(), (size, size), mode="bilinear", antialias=True).round().byte()
        for part in whole.pixels.split(_AT_ONCE)
    ]
    return whole._replace(pixels=torch.cat(parts))


def _digits(part: str) -> Images:
    rows = require_package("sklearn.datasets", "the dataset digits", "sklearn").load_digits()
    pixels = torch.as_tensor(rows.images * (255 / 16)).round().byte()[:, None]
    cut = 3 * len(pixels) // 4
    kept = slice(cut) if part == "train" else slice(cut, None)
    return Images(pixels[kept].contiguous(), torch.as_tensor(rows.target)[kept].long(), _TEN)


def _idx(dataset: str, address: str, sums: tuple[str, ...], part: str) -> Images:
    """Read idx files: four bytes for type and axes, a big-endian count for each axis, and the numbers."""
    paths = found(dataset, [Source(name, address + name, md5) for name, md5 in zip(_IDX, sums, strict=True)])
    pixels, labels = (_read_idx(path) for path in (paths[:2] if part == "train" else paths[2:]))
    if pixels.ndim != 3 or labels.shape != pixels.shape[:1] or not labels.max(initial=0) < 10:
        raise ArgumentError(
            f"{paths[0].parent} must hold images and as many labels of ten classes, but does not: restore its files."
        )
    return Images(torch.as_tensor(pixels)[:, None], torch.as_tensor(labels).long(), _TEN)


def _read_idx(path: Path) -> np.ndarray:
    try:
        data = gzip.decompress(path.read_bytes())
        kind, axes = data[2], data[3]
        shape = np.frombuffer(data, ">i4", axes, 4)
        if kind != 8:
            raise ValueError(kind)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape).copy()
    except (ValueError, OSError, EOFError, IndexError, zlib.error):
        raise ArgumentError(f"{path} must be a gzipped idx file of bytes, but is not: restore it.") from None


def _omniglot(part: str) -> Images:
    names = {"images_background.zip": "68d2efa1b9178cc56df9314c21c6e718",
             "images_evaluation.zip": "6b91aef0f799c5bb55b94e3f2daec811"}  # fmt: skip
    paths = found("omniglot", [Source(name, _OMNIGLOT + name, md5) for name, md5 in names.items()])
    path = paths[0 if part == "train" else 1]
    try:
        with zipfile.ZipFile(path) as archive:
            names = (name for name in archive.namelist() if not is_hidden(PurePath(name)))
            drawings = sorted(name for name in names if name.endswith(".png"))
            pixels = np.stack([_decoded(archive.read(name), "L") for name in drawings])
    except (zipfile.BadZipFile, OSError, ValueError, zlib.error):
        raise ArgumentError(f"{path} must be a zip file of Omniglot's drawings, but is not: restore it.") from None
    characters = ["/".join(name.split("/")[-3:-1]) for name in drawings]
    classes, labels = np.unique(characters, return_inverse=True)
    ink = 255 - torch.as_tensor(pixels)[:, None]  # white on black, as in the other datasets
    return Images(ink, torch.as_tensor(labels).long(), tuple(map(str, classes)))


def _decoded(data: bytes | Path, mode: str, size: int | None = None) -> np.ndarray:
    """Decode a picture as viewers show it, in one of Pillow's modes."""
    from PIL import Image

    with Image.open(io.BytesIO(data) if isinstance(data, bytes) else data) as picture:
        shown = as_shown(picture).convert(mode)
        return np.asarray(shown if size is None else shown.resize((size, size), Image.Resampling.BILINEAR))


def _of_folder(folder: Path, part: str, size: int | None) -> Images:
    """Read the pictures of a folder, or their decoded pixels from the cache if no file has changed."""
    paths, names = pictures_of(folder, part)
    classes, labels = np.unique(names, return_inverse=True)
    every = _of_all_parts(folder, part, paths)
    state = [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in every]
    key = hashlib.sha256(json.dumps([_DECODER, part, size, state]).encode()).hexdigest()[:16]
    kept = cache_folder() / "decoded" / f"{key}.safetensors"
    try:
        pixels = read_tensors(kept)[0]["pixels"]
    except (OSError, SafetensorError, KeyError):  # missing or damaged
        pixels = _all_decoded(paths, every, size)
        _keep(kept, pixels)
    return Images(pixels, torch.as_tensor(labels).long(), tuple(map(str, classes)))


def _of_all_parts(folder: Path, part: str, own: list[Path]) -> list[Path]:
    """Pictures ``own`` of a part and those of the folder's other parts; raise if a picture is in several."""
    every = set(own)
    for other in PARTS:
        paths: list[Path] = []
        with contextlib.suppress(ArgumentError):  # raised where that part is loaded
            paths, _ = ([], []) if other == part else pictures_of(folder, other)
        if twice := every.intersection(paths):
            raise ArgumentError(
                f"{folder} must have each picture in one part, but has {min(twice)} in several: remove it from all but "
                "one of their tables."
            )
        every.update(paths)
    return sorted(every)


def _keep(path: Path, pixels: Tensor) -> None:
    try:
        with replacing(path, str(os.getpid())) as aside:
            aside.write_bytes(tensors_bytes({"pixels": pixels}))
    except OSError as error:
        warnings.warn(
            f"{path.parent} cannot be written ({error}), so pictures are decoded each time: set MESASCOPE_CACHE to a "
            "writable folder.",
            stacklevel=2,
        )


def _all_decoded(paths: list[Path], every: list[Path], size: int | None) -> Tensor:
    """Pixels ``(pictures, channels, size, size)``, with one channel if the pictures of all parts are grey."""
    looks = [_read(path, _look) for path in every]
    if size is None:
        size = _side(every, looks)
    mode, channels = ("L", 1) if all(look.grey for look in looks) else ("RGB", 3)
    pixels = torch.empty(len(paths), size, size, channels, dtype=torch.uint8)
    for index in tracked(range(len(paths)), "pictures"):
        decoded = _read(paths[index], functools.partial(_decoded, mode=mode, size=size))
        pixels[index] = torch.as_tensor(decoded.copy()).reshape(size, size, channels)
    return pixels.movedim(-1, 1).contiguous()


class _Look(NamedTuple):
    """Size and kind (grey or colour) of a picture."""

    width: int
    height: int
    grey: bool

    def __str__(self) -> str:
        return f"{self.width} x {self.height} in {'grey' if self.grey else 'colour'}"


def _look(path: Path) -> _Look:
    from PIL import Image

    with Image.open(path) as picture:
        return _Look(*picture.size, is_grey(picture))


def _side(paths: list[Path], looks: list[_Look]) -> int:
    """Side of the pictures; raise unless all are square and of one size and kind."""
    for path, look in zip(paths, looks, strict=True):
        if look != looks[0] or look.width != look.height:
            other = f"{paths[0]} is {looks[0]} and " if look != looks[0] else ""
            raise ArgumentError(
                f"size must be given unless pictures are square and of one size and kind, but {other}{path} is {look}: "
                "pass size=84, say."
            )
    return looks[0].width


def _read(path: Path, how: Callable[[Path], Any]) -> Any:
    from PIL import Image

    try:
        return how(path)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ArgumentError(f"{path} must be a picture, but is not ({error}): restore or remove it.") from None


# Readers of the datasets, called with the part.
DATASETS: dict[str, Callable[[str], Any]] = {
    "digits": _digits,
    "mnist": functools.partial(
        _idx, "mnist", _MNIST,
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432", "9fb629c4189551a2d022fa330f9573f3",
         "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    "fashion-mnist": functools.partial(
        _idx, "fashion-mnist", _FASHION,
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe", "bef4ecab320f06d8554ea6380940ec79",
         "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    "omniglot": _omniglot,
}  # fmt: skip
