"""Image folders with one class per picture. Imports no torch."""

from __future__ import annotations

import contextlib
import csv
import functools
import os
import warnings
from pathlib import Path, PurePath

from mesascope.data.files import data_folders
from mesascope.errors import ArgumentError, refuse

_PICTURES = (".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_UNREAD = (".avif", ".heic", ".heif", ".svg", ".npy")
# Accepted names for the table or the folder of each part.
_NAMES = {
    "train": ("train", "training"), "validation": ("val", "validation", "valid"), "test": ("test", "testing"),
}  # fmt: skip
_ALL_NAMES = tuple(name for names in _NAMES.values() for name in names)
# Folders and tables by which parts are told apart.
_PLACES = (*_ALL_NAMES, *(f"{name}.csv" for name in _ALL_NAMES))


def is_hidden(path: PurePath) -> bool:
    """True if any part of the path begins with a dot, such as .git and ._a.png, or is __MACOSX.

    Pass a path relative to the dataset's folder, which may itself be inside a hidden folder.
    """
    return any(name.startswith(".") or name == "__MACOSX" for name in path.parts)


def visible_files(folder: Path, pattern: str = "**/*") -> list[Path]:
    """Visible files of ``folder`` that match ``pattern``, sorted by name."""
    found = (path for path in folder.glob(pattern) if not is_hidden(path.relative_to(folder)))
    return sorted(path for path in found if path.is_file())


def folder_of(dataset: str) -> Path:
    """Folder at a path, such as ``./split`` or ``~/split``; a bare name is searched in `data_folders`."""
    if not dataset.strip():
        refuse("dataset", "name a dataset or a folder", dataset, "pass digits, say")
    if Path(dataset).name != dataset or dataset.startswith(("~", "..")):
        folder = Path(dataset).expanduser().absolute()
        if not folder.is_dir():
            what = "a file" if folder.exists() else "not there"
            raise ArgumentError(f"dataset must name a folder, but {folder} is {what}: correct the path.")
        return folder
    for folder in data_folders():
        if (folder / dataset).is_dir():
            return folder / dataset
    places = " or ".join(str(folder / dataset) for folder in data_folders())
    raise ArgumentError(
        f"dataset must be digits, mnist, fashion-mnist, omniglot or a folder, but there is no {places}: put the folder "
        "there (with images/ beside train.csv, val.csv and test.csv, columns filename and label; with "
        "train/CLASS/PICTURE; or with CLASS/PICTURE), set MESASCOPE_DATA to its parent folder, or pass its path, such "
        f"as ./{dataset}."
    )


def state_of(folder: Path) -> tuple[tuple[str, int], ...]:
    """Modification times of a dataset's tables and folders, which change if files are added, removed or renamed."""
    parts = (folder / name for name in (*_ALL_NAMES, "images"))
    entries = (entry for place in (folder, *filter(Path.is_dir, parts)) for entry in os.scandir(place))
    decisive = (one for one in entries if one.is_dir() or (one.name.endswith(".csv") and one.is_file()))
    return tuple((one.path, one.stat().st_mtime_ns) for one in decisive)


def pictures_of(folder: Path, part: str) -> tuple[list[Path], list[str]]:
    """Paths of the pictures of a part, and the class of each."""
    for name in _NAMES[part]:
        if (folder / f"{name}.csv").is_file():
            return _by_table(folder, folder / f"{name}.csv")
        if (folder / name).is_dir():
            paths = _pictures(folder / name)
            if paths:
                return paths, [path.parent.name for path in paths]
    classes, divided = _class_folders(folder), any((folder / name).exists() for name in _PLACES)
    if not classes and not divided and (folder / "images").is_dir():  # as CUB is shipped
        return pictures_of(folder / "images", part)
    if classes and not divided:
        own = classes_of(part, list(classes), folder)
        return [path for name in own for path in classes[name]], [name for name in own for _ in classes[name]]
    raise ArgumentError(
        f"{folder} must have {_NAMES[part][0]}.csv (columns filename and label) beside images/, "
        f"{_NAMES[part][0]}/CLASS/PICTURE, or CLASS/PICTURE whose classes are split, but has "
        f"{_in_place_of_pictures(folder, _NAMES[part][0])}."
    )


@functools.lru_cache(64)
def warn_of_shared_classes(dataset: str, part: str) -> None:
    """Warn, once, if another part of a dataset's folder has classes of this part: its classes are then not new."""
    folder = folder_of(dataset)
    own = {*pictures_of(folder, part)[1]}
    for other in _NAMES.keys() - {part}:
        names: list[str] = []
        with contextlib.suppress(ArgumentError):  # raised where that part is loaded
            _, names = pictures_of(folder, other)
        if shared := sorted(own.intersection(names)):
            warnings.warn(
                f"{part} and {other} of {folder} share {len(shared)} of {len(own)} classes ({shared[0]}, say): tasks "
                "of one are not of classes that are new to the other.",
                stacklevel=4,
            )


def classes_of(part: str, classes: list[str], folder: Path) -> list[str]:
    """Classes of a part, sorted by name: the first 64 % for training, the next 16 % for validation, the rest for test.

    Validation and test have at least one class each. The shares are those of miniImageNet.

    >>> classes_of("test", list("jihgfedcba"), Path("birds"))
    ['i', 'j']
    """
    if len(classes) < 3:
        raise ArgumentError(
            f"{folder} must have at least 3 classes, to be split into train, validation and test, but has "
            f"{', '.join(sorted(classes))}: add folders of classes, or put them into train/, val/ and test/ yourself."
        )
    validation, test = (max(1, round(share * len(classes))) for share in (0.16, 0.2))
    train = len(classes) - validation - test
    slices = {"train": slice(train), "validation": slice(train, train + validation), "test": slice(-test, None)}
    return sorted(classes)[slices[part]]


def _class_folders(folder: Path) -> dict[str, list[Path]]:
    """Pictures of each class of ``folder/CLASS/PICTURE``."""
    found: dict[str, list[Path]] = {}
    for path in _pictures(folder):
        found.setdefault(path.parent.name, []).append(path)
    found.pop("images", None)  # the pictures of tables
    return found


def _pictures(folder: Path) -> list[Path]:
    """Pictures ``folder/CLASS/PICTURE``, sorted; raise if one is a link to nothing, and warn of unknown formats."""
    paths = (path for path in folder.glob("*/*") if not is_hidden(path.relative_to(folder)))
    visible = sorted(path for path in paths if not path.is_dir())
    found = [path for path in visible if path.suffix.lower() in _PICTURES]
    broken = [path for path in found if not path.exists()]
    if broken:
        raise ArgumentError(
            f"{folder} must hold its pictures, but {len(broken)} of them are links to nothing, such as "
            f"{broken[0].relative_to(folder)}: fetch the files that they stand for."
        )
    others = [path for path in visible if path.suffix.lower() in _UNREAD]
    if found and others:
        endings = ", ".join(sorted({path.suffix for path in others}))
        warnings.warn(f"{len(others)} images in {folder} are left out, as {endings} is not read.", stacklevel=2)
    return found


def _in_place_of_pictures(folder: Path, name: str) -> str:
    """End of an error message: things found in the folder instead of pictures, and the remedy."""
    classes = list(_class_folders(folder))
    if classes and not {*classes} & {*_ALL_NAMES}:
        return f"the classes {', '.join(classes[:3])} in no part: move their folders into {folder / name}"
    for path in (path for pattern in ("*", "*/*", "*/*/*") for path in visible_files(folder, pattern)):
        if path.suffix.lower() in (".npy", ".npz"):
            return f"the array {path.name}: save its images as pictures, with PIL.Image.fromarray(image).save(path)"
        if path.suffix.lower() in (".zip", ".tar", ".tgz", ".gz"):
            return f"{path.name}: unpack it"
    return f"none of them: use one of these layouts and endings ({', '.join(_PICTURES)}), or choose another part"


def _by_table(folder: Path, table: Path) -> tuple[list[Path], list[str]]:
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:  # with or without the BOM that Excel writes
            rows = list(csv.DictReader(file, skipinitialspace=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ArgumentError(f"{table} must be a table in UTF-8, but is not ({error}): save it as one.") from None
    if not rows or not {"filename", "label"} <= set(rows[0]):
        raise ArgumentError(
            f"{table} must have the columns filename and label, and one row per picture: mend its first line."
        )
    seen: set[str] = set()
    for number, row in enumerate(rows, 2):
        name, label = os.path.normpath(row["filename"] or ""), row["label"]
        if not row["filename"] or not label or name in seen:
            what = f"lists {name} again" if name in seen else "lacks one of them"
            raise ArgumentError(
                f"{table} must have a label and a different filename in each row, but row {number} {what}: mend it."
            )
        seen.add(name)
    paths = [folder / "images" / row["filename"] for row in rows]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise ArgumentError(
            f"{folder / 'images'} must hold what {table.name} lists, but lacks "
            f"{missing[0].relative_to(folder / 'images')}{more}: copy the pictures there."
        )
    return paths, [row["label"] for row in rows]
