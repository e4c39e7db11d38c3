"""Networks for images read rows of pixels and images alike, in the widths that the papers give."""

import pytest
import torch
from torch import nn

from mesascope.errors import ArgumentError
from mesascope.nets import ConvNet4


def test_it_is_four_blocks_and_a_linear_layer():
    """Written out by torch's own functions, with batch statistics."""
    torch.manual_seed(0)
    net, images = ConvNet4(6, 2, 28, 5).double(), torch.randn(3, 2, 28, 28, dtype=torch.float64)
    hidden = images
    for block in net.blocks:
        conv, norm = block[0], block[1]
        hidden = nn.functional.conv2d(hidden, conv.weight, conv.bias, padding=1)
        hidden = nn.functional.batch_norm(hidden, None, None, norm.weight, norm.bias, training=True)
        hidden = nn.functional.max_pool2d(hidden.relu(), 2)
    torch.testing.assert_close(net(images), hidden.flatten(1) @ net.head.weight.T + net.head.bias)
    torch.testing.assert_close(net(images.flatten(1)), net(images))


@pytest.mark.parametrize(("size", "features"), [(84, 25), (28, 1), (8, 1), (1, 1)])
def test_each_block_halves_the_sides_as_long_as_it_can(size, features):
    net = ConvNet4(4, 3, size, 7)
    assert net.head.weight.shape == (7, 4 * features)
    assert net(torch.zeros(2, 3, size, size)).shape == (2, 7)


def test_the_convnet_of_the_paper_has_its_number_of_parameters():
    assert sum(one.numel() for one in ConvNet4(64, 3, 84, 5).parameters()) == 121_093


@pytest.mark.parametrize("shape", [(2, 1, 27, 28), (2, 783), (784,)])
def test_images_of_another_size_are_refused(shape):
    with pytest.raises(ArgumentError, match=r"images must have shape \(n, 1, 28, 28\), but is"):
        ConvNet4(4)(torch.zeros(shape))
