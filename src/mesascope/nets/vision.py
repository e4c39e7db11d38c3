"""Networks for images in few-shot and continual learning."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import msgspec
import torch
from torch import nn
from torch.nn.functional import leaky_relu

from mesascope.errors import refuse, require_count, require_instance
from mesascope.nets.pretrained import Pretrained
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.streams import seeded
from mesascope.validate import Count, frozen

_Net = TypeVar("_Net", bound=nn.Module)

_BLOCKS = 4
# Negative slope of ResNet12's leaky ReLUs.
_SLOPE = 0.1


def _build(make: Callable[[], _Net], generator: torch.Generator | None) -> _Net:
    """Build a network whose layers draw from torch's global generator, seeded from ``generator`` if given."""
    if generator is None:
        return make()
    with seeded(int(torch.randint(2**31, (), generator=generator, device=generator.device))):
        return make()


class ConvNet4(Pretrained):
    """Four blocks of a 3 x 3 convolution, BatchNorm, max-pooling by 2 and ReLU, and a linear layer.

    Args:
        filters: channels of each block.
        in_channels, size: channels and side of the images; each block halves the side, rounded down, to at least 1.
        classes: width of the output.

    Source: Vinyals et al. (2016); the ConvNet of von Oswald (2024), section 4.3.

    >>> ConvNet4(filters=8, in_channels=1, size=28, classes=5)(torch.zeros(2, 784)).shape
    torch.Size([2, 5])
    """

    def __init__(self, filters: int = 64, in_channels: int = 1, size: int = 28, classes: int = 5) -> None:
        super().__init__()
        require_count("filters", filters)
        self.config = ClassifierConfig("convnet4", filters, in_channels, size, classes)
        self.shape = (in_channels, size, size)
        widths, blocks = [in_channels] + [filters] * _BLOCKS, []
        for read, written in itertools.pairwise(widths):
            pool = nn.MaxPool2d(2) if size > 1 else nn.Identity()
            size = max(size // 2, 1)
            # with pooling first, ReLU runs on a quarter of the entries, with the same values and gradients
            blocks.append(
                nn.Sequential(nn.Conv2d(read, written, 3, padding=1), nn.BatchNorm2d(written), pool, nn.ReLU())
            )
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(filters * size**2, classes)

    def forward(self, images: Float[Tensor, "n ..."]) -> Float[Tensor, "n classes"]:
        """Class scores of images ``(n, channels, size, size)``, or of flat rows of pixels, channels first."""
        return self.head(self.blocks(_as_images(images, self.shape)).flatten(1))


class ResNet12(Pretrained):
    """Four residual blocks of three 3 x 3 convolutions, the mean over pixels, and a linear layer.

    Each convolution is followed by BatchNorm and, except for the last in a block, a leaky ReLU. The residual path is a
    1 x 1 convolution with BatchNorm. After the sum come a leaky ReLU and max-pooling by 2.

    Args:
        filters: channels of the first block; each further block has twice as many.
        in_channels, size: channels and side of the images; each block halves the side, rounded down, to at least 1.
        classes: width of the output.

    Source: Lee et al. (2019); von Oswald (2024), section 4.3.1.

    >>> ResNet12(filters=4, in_channels=3, size=84, classes=5)(torch.zeros(2, 3, 84, 84)).shape
    torch.Size([2, 5])
    """

    def __init__(self, filters: int = 64, in_channels: int = 3, size: int = 84, classes: int = 5) -> None:
        super().__init__()
        require_count("filters", filters)
        self.config = ClassifierConfig("resnet12", filters, in_channels, size, classes)
        self.shape = (in_channels, size, size)
        widths = [in_channels, *(filters * 2**block for block in range(_BLOCKS))]
        self.blocks = nn.Sequential()
        for read, written in itertools.pairwise(widths):
            self.blocks.append(_Residual(read, written, halve=size > 1))
            size = max(size // 2, 1)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: Float[Tensor, "n ..."]) -> Float[Tensor, "n classes"]:
        """Class scores of images ``(n, channels, size, size)``, or of flat rows of pixels, channels first."""
        return self.head(self.blocks(_as_images(images, self.shape)).mean((-2, -1)))


class _Residual(nn.Module):
    """Residual block: three 3 x 3 convolutions plus a 1 x 1 convolution."""

    def __init__(self, read: int, written: int, halve: bool) -> None:
        super().__init__()
        widths = [read, written, written, written]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(*pair, 3, padding=1, bias=False) for pair in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(written) for _ in self.convolutions)
        self.beside = nn.Sequential(nn.Conv2d(read, written, 1, bias=False), nn.BatchNorm2d(written))
        self.pool = nn.MaxPool2d(2) if halve else nn.Identity()

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = pixels
        for index, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            hidden = norm(convolution(hidden if index == 0 else leaky_relu(hidden, _SLOPE)))
        return self.pool(leaky_relu(hidden + self.beside(pixels), _SLOPE))


@frozen
class MLPConfig:
    """Config of an `MLP`.

    Args:
        sizes: widths of the input, of each hidden layer and of the output.
    """

    sizes: Annotated[tuple[Count, ...], msgspec.Meta(min_length=2)]

    def build(self, generator: torch.Generator | None = None) -> MLP:
        """Build the network with torch's default initial weights, from ``generator`` or torch's global one if None."""
        return _build(lambda: MLP(self), generator)


class MLP(Pretrained):
    """Linear layers with ReLU between them, from flat inputs to class scores.

    Args:
        sizes: widths of the input, of each hidden layer and of the output; or the config.

    >>> MLP([784, 100, 100, 10])(torch.zeros(2, 784)).shape
    torch.Size([2, 10])
    """

    built_from = MLPConfig

    def __init__(self, sizes: Sequence[int] | MLPConfig) -> None:
        super().__init__()
        sizes = tuple(sizes) if isinstance(sizes, list) else sizes
        self.config = sizes if isinstance(sizes, MLPConfig) else MLPConfig(sizes)  # type: ignore[arg-type]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(self.config.sizes))

    def forward(self, inputs: Float[Tensor, "*members n d"]) -> Float[Tensor, "*members n classes"]:
        require_instance("inputs", inputs, Tensor)
        width = self.layers[0].in_features
        if inputs.ndim < 2 or inputs.shape[-1] != width:
            refuse("inputs", f"have shape (n, {width})", tuple(inputs.shape), "reshape them")
        hidden = inputs
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden if index == 0 else hidden.relu())
        return hidden


@register("net", "classifier", of="classifier")
@dataclass(frozen=True)
class ClassifierConfig:
    """Config of a network that classifies images.

    Args:
        architecture: "convnet4" (`ConvNet4`), "resnet12" (`ResNet12`), or "mlp" (`MLP` with two hidden layers).
        width: filters of a convolutional network's first block, or units of each hidden layer.
        in_channels, size: channels and side of the images.
        classes: width of the output.
    """

    architecture: Literal["convnet4", "resnet12", "mlp"] = "convnet4"
    width: Count = 64
    in_channels: Count = 1
    size: Count = 28
    classes: Count = 5

    def build(self, generator: torch.Generator | None = None) -> Pretrained:
        """Build the network with torch's default initial weights, from ``generator`` or torch's global one if None."""
        net = _build(self._new, generator)
        net.config = self
        return net

    def _new(self) -> Pretrained:
        if self.architecture == "mlp":
            return MLP([self.in_channels * self.size**2, self.width, self.width, self.classes])
        kind = ConvNet4 if self.architecture == "convnet4" else ResNet12
        return kind(self.width, self.in_channels, self.size, self.classes)


def _as_images(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Images ``(n, channels, size, size)`` from images or flat rows of pixels, in channels-last memory format."""
    require_instance("images", images, Tensor)
    if images.shape[1:] not in (shape, (math.prod(shape),)):
        refuse("images", f"have shape (n, {', '.join(map(str, shape))})", tuple(images.shape), "reshape them")
    if not images.is_floating_point():
        refuse("images", "be floats", str(images.dtype), "convert them, to 0 to 1 say")
    # A training step on CPU takes a third less time in this format. vmap does not accept memory_format.
    channels, height, width = shape
    if channels == 1:
        return images.reshape(-1, height, width, 1).movedim(-1, 1)
    return images.reshape(-1, *shape).movedim(1, -1).contiguous().movedim(-1, 1)
