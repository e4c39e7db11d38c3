"""Your own images: from arrays, from the path of an .npy file, or from a dataset of pairs (image, label)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mesascope.errors import ArgumentError, refuse
from mesascope.shapes import Int, Tensor
from mesascope.tensors import checksum

_GREY = ("1", "L", "LA", "I", "I;16", "I;16B")  # Pillow's modes without colour


class Images(NamedTuple):
    """Images and their classes: ``pixels (images, channels, size, size)`` are bytes (255: white) or your own floats."""

    pixels: Tensor
    labels: Int[Tensor, " images"]
    classes: tuple[str, ...]

    @property
    def checksum(self) -> str:
        """Checksum of pixels and labels, in 16 hexadecimal digits."""
        return _checksum(self.pixels, self.labels)


@functools.lru_cache(16)
def _checksum(pixels: Tensor, labels: Tensor) -> str:
    return checksum({"pixels": pixels, "labels": labels})[:16]


def images_of(found: Any, labels: Any = None) -> Images:
    """Images and classes from the arguments of `mesascope.tasks.FewShotArrays`.

    Raises:
        ArgumentError: they do not have its shapes or dtypes.
    """
    if isinstance(found, str | Path):
        found = _loaded(Path(found))
    if labels is None:
        found, labels = _pairs(found)
    pixels = _pixels(found)
    if pixels.ndim != 4 or not len(pixels) or pixels.shape[-1] != pixels.shape[-2]:
        rule = "have the shape (n, size, size) or (n, channels, size, size)"
        refuse("images", rule, tuple(pixels.shape), "reshape them")
    if pixels.dtype != torch.uint8:
        if not pixels.is_floating_point():
            refuse("images", "be bytes or finite floats", str(pixels.dtype), "convert them")
        pixels = pixels.float()
        if bad := int((~pixels.isfinite()).sum()):
            raise ArgumentError(
                f"images must be finite in float32, but {bad} of {pixels.numel()} numbers are not: mend or scale them."
            )
    classes, index = _classes(labels)
    if index.shape != (len(pixels),):
        refuse("labels", f"have shape ({len(pixels)},), one per image", tuple(index.shape), "pass one class per image")
    return Images(pixels, torch.as_tensor(index), classes)


def as_shown(picture: Any) -> Any:
    """Picture of Pillow as viewers show it, in grey, colour or a palette: upright, and white where transparent."""
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):  # 16 bits: keep the upper eight
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.mode[-1:] in "Aa" or "transparency" in picture.info:
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture.convert("RGBA"))
    return picture


def is_grey(picture: Any) -> bool:
    """True if a Pillow image is grey, by its mode or its palette."""
    if picture.mode != "P":
        return picture.mode in _GREY
    colours = np.reshape(picture.getpalette("RGB") or [], (-1, 3))
    return bool((colours == colours[:, :1]).all())


def _loaded(path: Path) -> np.ndarray:
    try:
        found = np.load(path.expanduser(), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        remedy = "write it with numpy.save"
        raise ArgumentError(f"images must be an .npy file of numbers, but {path} is not ({error}): {remedy}.") from None
    if not isinstance(found, np.ndarray):
        found.close()
        refuse("images", "be an .npy file, with one array", str(path), "write the array with numpy.save")
    return found


def _pairs(dataset: Any) -> tuple[list[Any], list[Any]]:
    """Images and labels of a dataset of pairs."""
    if isinstance(dataset, np.ndarray | Tensor):
        refuse("labels", "be given with an array of images", None, "pass the class of each image")
    try:
        pairs = [dataset[index] for index in range(len(dataset))]
        if pairs and isinstance(pairs[0], Mapping):  # as in Hugging Face's datasets
            pairs = [(one["image"], one["label"]) for one in pairs]
        return [_array(image) for image, *_ in pairs], [label for _, label, *_ in pairs]
    except (TypeError, ValueError, LookupError, NotImplementedError) as error:
        raise ArgumentError(
            f"images must be a dataset of pairs (image, label) if there are no labels, but is {type(dataset).__name__} "
            f"({error}): pass labels."
        ) from None


def _pixels(found: Any) -> Tensor:
    """Tensor ``(n, channels, size, size)`` of an array, a tensor, or a sequence of them or of pictures of Pillow."""
    if isinstance(found, Tensor):
        pixels = found.detach().clone()
    else:
        try:
            whole = np.stack(_alike([*map(_array, found)])) if isinstance(found, list | tuple) else np.asarray(found)
            pixels = torch.as_tensor(np.array(whole, whole.dtype.newbyteorder("="), order="C"))  # a copy
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"images must be an array, or images of one shape, but {type(found).__name__} has none ({error}): "
                "stack them."
            ) from None
    return pixels[:, None] if pixels.ndim == 3 else pixels


def _array(image: Any) -> np.ndarray:
    """Pixels of an image; those of a picture of Pillow as ``(channels, height, width)``."""
    if hasattr(image, "getbands") and image.mode != "F":
        pixels = np.asarray(as_shown(image).convert("L" if is_grey(image) else "RGB"))
        return np.moveaxis(pixels, -1, 0) if pixels.ndim == 3 else pixels[None]
    return np.asarray(image.detach().cpu() if isinstance(image, Tensor) else image)


def _alike(pictures: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Pictures with three channels each if some are grey and others in colour."""
    channels = {one.shape[0] for one in pictures if one.ndim == 3}
    return [np.repeat(one, 4 - len(one), 0) for one in pictures] if channels == {1, 3} else pictures


def _classes(labels: Any) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the classes, sorted, and the index of each label among them."""
    rule = "be whole numbers or names"
    try:
        each = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
        whole = each.dtype.kind in "biuUS" or np.array_equal(each, np.round(each))  # or floats, None, a mixture
        classes, index = np.unique(each, return_inverse=True)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"labels must {rule}, but are not ({error}): convert them.") from None
    if not whole:
        refuse("labels", rule, str(labels)[:60], "mend them")
    return tuple(map(str, classes)), index
