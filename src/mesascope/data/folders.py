"""Folders of pictures in classes. Imports no torch."""

from __future__ import annotations

import csv
from pathlib import Path

from mesascope.data.files import data_folders
from mesascope.errors import ArgumentError

__all__ = ["folder_of", "pictures_of"]

_PICTURES = (".jpg", ".jpeg", ".png")
# What a part's table or folder may be called.
_NAMES = {"train": ("train",), "validation": ("val", "validation"), "test": ("test",)}


def folder_of(dataset: str) -> Path:
    """The folder of this name among those where data is looked for."""
    for folder in data_folders():
        if (folder / dataset).is_dir():
            return folder / dataset
    places = " or ".join(str(folder / dataset) for folder in data_folders())
    raise ArgumentError(
        f"dataset must be digits, mnist, fashion-mnist, omniglot or a folder, but there is no {places}, with images/ "
        "beside train.csv, val.csv and test.csv (columns filename and label), or with train/CLASS/PICTURE: put it "
        "there, or set MESASCOPE_DATA to the folder that it is in."
    )


def pictures_of(folder: Path, dataset: str, part: str) -> tuple[list[Path], list[str]]:
    """The pictures of a part and the class of each."""
    for name in _NAMES[part]:
        if (folder / f"{name}.csv").is_file():
            return _by_table(folder, folder / f"{name}.csv")
        if (folder / name).is_dir():
            paths = sorted(path for path in (folder / name).glob("*/*") if path.suffix.lower() in _PICTURES)
            if paths:
                return paths, [path.parent.name for path in paths]
    raise ArgumentError(
        f"{dataset} must have {_NAMES[part][0]}.csv (columns filename and label) beside images/, or "
        f"{_NAMES[part][0]}/CLASS/PICTURE, but {folder} has neither: lay it out so, or choose another part."
    )


def _by_table(folder: Path, table: Path) -> tuple[list[Path], list[str]]:
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:  # with or without a mark, which Excel leaves
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ArgumentError(f"{table} must be a table in UTF-8, but is not ({error}): save it as one.") from None
    if not rows or not {"filename", "label"} <= set(rows[0]):
        raise ArgumentError(
            f"{table} must have the columns filename and label and a row a picture: mend its first line."
        )
    seen: set[str] = set()
    for number, row in enumerate(rows, 2):
        name, label = row["filename"], row["label"]
        if not name or not label or name in seen:
            what = f"lists {name} again" if name in seen else "lacks one of them"
            raise ArgumentError(
                f"{table} must have a filename of its own and a label in each row, but row {number} {what}: mend it."
            )
        seen.add(name)
    paths = [folder / "images" / row["filename"] for row in rows]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise ArgumentError(
            f"{folder / 'images'} must hold what {table.name} lists, but lacks {missing[0].name} and "
            f"{len(missing) - 1} more: copy the pictures there."
        )
    return paths, [row["label"] for row in rows]
