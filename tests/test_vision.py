"""Networks for images read rows of pixels and images alike, in the widths that the papers give."""

import pytest
import torch
from torch import nn

from mesascope.errors import ArgumentError
from mesascope.nets import MLP, ClassifierConfig, ConvNet4, ResNet12


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


@pytest.mark.parametrize("shape", [(2, 1, 27, 28), (2, 28, 28, 1), (2, 783), (784,)])
def test_images_of_another_size_are_refused(shape):
    with pytest.raises(ArgumentError, match=r"images must have shape \(n, 1, 28, 28\), but is"):
        ConvNet4(4)(torch.zeros(shape))


def test_bytes_are_refused(unchecked):
    with pytest.raises(ArgumentError, match="images must be floats"):
        ConvNet4(4)(torch.zeros(2, 784, dtype=torch.uint8))


def test_resnet12_is_three_convolutions_beside_one_of_a_pixel_four_times():
    """Written out by torch's own functions, with batch statistics."""
    torch.manual_seed(0)
    net, images = ResNet12(2, 1, 20, 5).double(), torch.randn(3, 1, 20, 20, dtype=torch.float64)
    hidden = images
    for block in net.blocks:
        read = hidden
        for index, (conv, norm) in enumerate(zip(block.convolutions, block.norms, strict=True)):
            hidden = nn.functional.conv2d(hidden, conv.weight, padding=1)
            hidden = nn.functional.batch_norm(hidden, None, None, norm.weight, norm.bias, training=True)
            hidden = nn.functional.leaky_relu(hidden, 0.1) if index < 2 else hidden
        beside = nn.functional.conv2d(read, block.beside[0].weight)
        beside = nn.functional.batch_norm(
            beside, None, None, block.beside[1].weight, block.beside[1].bias, training=True
        )
        hidden = nn.functional.max_pool2d(nn.functional.leaky_relu(hidden + beside, 0.1), 2)
    torch.testing.assert_close(net(images), hidden.mean((2, 3)) @ net.head.weight.T + net.head.bias)


def test_resnet12_of_the_paper_has_its_widths():
    net = ResNet12()
    assert [block.norms[0].num_features for block in net.blocks] == [64, 128, 256, 512]
    assert 7.9e6 < sum(one.numel() for one in net.parameters()) < 8.1e6


def test_an_mlp_is_linear_layers_with_relu_between_them():
    torch.manual_seed(0)
    net, inputs = MLP([4, 6, 5, 3]), torch.randn(7, 4)
    hidden = inputs
    parameters = list(net.parameters())
    for index, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
        hidden = nn.functional.linear(hidden if index == 0 else hidden.relu(), weight, bias)
    torch.testing.assert_close(net(inputs), hidden)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MLP([4]), r"sizes must have 2 or more entries, but is \(4,\): pass as many"),
        (lambda: MLP([4, 0]), "sizes must be at least 1"),
        (lambda: MLP([4, 2])(torch.zeros(3, 5)), r"inputs must have shape \(n, 4\), but is \(3, 5\)"),
        (lambda: ResNet12(2, 1, 8)(torch.zeros(2, 63)), r"images must have shape \(n, 1, 8, 8\)"),
        (lambda: ClassifierConfig("resnet"), "architecture must be one of"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises((ArgumentError, TypeError), match=message):
        call()
