"""Networks for images, as few-shot learning has them."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn

from mesascope.errors import refuse, require_count, require_instance
from mesascope.shapes import Float, Tensor

__all__ = ["ConvNet4"]

_BLOCKS = 4


class ConvNet4(nn.Module):
    """Four blocks of a 3 x 3 convolution, BatchNorm, ReLU and max-pooling by 2, and a linear layer.

    Args:
        filters: channels of each block.
        in_channels, size: of the images; each block halves their sides, rounded down, as long as it can.
        classes: width of the output.

    Source: Vinyals et al. (2016); the ConvNet of thesis, section 4.3.

    >>> ConvNet4(filters=8, in_channels=1, size=28, classes=5)(torch.zeros(2, 784)).shape
    torch.Size([2, 5])
    """

    def __init__(self, filters: int = 64, in_channels: int = 1, size: int = 28, classes: int = 5) -> None:
        super().__init__()
        for name, value in (("filters", filters), ("in_channels", in_channels), ("size", size), ("classes", classes)):
            require_count(name, value)
        self.images = (in_channels, size, size)
        widths, blocks = [in_channels] + [filters] * _BLOCKS, []
        for read, written in itertools.pairwise(widths):
            pool = nn.MaxPool2d(2) if size > 1 else nn.Identity()
            size = max(size // 2, 1)
            blocks.append(
                nn.Sequential(nn.Conv2d(read, written, 3, padding=1), nn.BatchNorm2d(written), nn.ReLU(), pool)
            )
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(filters * size**2, classes)

    def forward(self, images: Float[Tensor, "n ..."]) -> Float[Tensor, "n classes"]:
        """Scores of images ``(n, channels, size, size)``, or of as many pixels in a row, channels first."""
        require_instance("images", images, Tensor)
        if images.ndim < 2 or images.shape[1:].numel() != math.prod(self.images):
            refuse("images", f"have shape (n, {', '.join(map(str, self.images))})", tuple(images.shape), "reshape them")
        # With channels last a step of training takes a third less time on CPU.
        pixels = images.reshape(-1, *self.images).to(memory_format=torch.channels_last)
        return self.head(self.blocks(pixels).flatten(1))

    def extra_repr(self) -> str:
        return f"images={self.images}"
