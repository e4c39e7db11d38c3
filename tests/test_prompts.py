"""Prompts: what a frozen predictor reads besides, how that is learned, and the loss of pairs."""

import pytest
import torch

from mesascope.errors import ArgumentError, ArgumentTypeError
from mesascope.lenses import prompt_tune
from mesascope.nets import (
    AttentionConfig,
    CausalTransformerConfig,
    Prompted,
    PromptedConfig,
    SequencePredictorConfig,
)
from mesascope.streams import stream
from mesascope.tasks import FewShotSequence
from mesascope.training import Ensemble, Training, half_mse, pair_half_mse

D = 3
FAMILY = FewShotSequence(D, pairs=4)
SEQUENCES = FAMILY.sample(5, stream(0, "pairs"))


def network(seed=0):
    heads = AttentionConfig(8, 2, positions=4)
    return SequencePredictorConfig(CausalTransformerConfig(heads, 2, "softmax"), D).build(stream(seed, "init"))


@pytest.mark.parametrize("t", [1, 2, 3, 7, 8])
def test_a_prompt_stands_before_the_sequence_and_between_its_pairs(t):
    net, sequence = network(), SEQUENCES[:, :t]
    prompted = Prompted(PromptedConfig(net.config, prefix=2, eos=True), stream(1, "prompt"), net)
    rows = [*prompted.prefix.expand(5, -1, -1).unbind(1)]
    own = []
    for place, element in enumerate(sequence.unbind(1)):
        if place and place % 2 == 0:
            rows.append(prompted.eos.expand(5, -1))
        own.append(len(rows))
        rows.append(element)
    shown, places = prompted.shown(sequence)
    assert torch.equal(shown, torch.stack(rows, 1))
    assert places.tolist() == own
    torch.testing.assert_close(prompted(sequence), net(torch.stack(rows, 1))[:, own])


def test_without_a_prompt_it_is_the_network():
    net = network()
    assert torch.equal(Prompted(PromptedConfig(net.config), network=net)(SEQUENCES), net(SEQUENCES))


def test_only_what_is_asked_for_is_learned_and_it_helps():
    net = network()
    before = {name: weight.clone() for name, weight in net.state_dict().items()}
    plan = Training(steps=30, batch=32, learning_rate=0.05)
    first = prompt_tune(net, FAMILY, eos=True, training=plan)
    second = prompt_tune(first, FAMILY, prefix=3, training=plan)
    assert torch.equal(first.eos, second.eos)
    assert second.prefix.shape == (3, D)
    for prompted in (first, second):
        assert all(torch.equal(weight, before[name]) for name, weight in prompted.network.state_dict().items())
    assert all(torch.equal(weight, before[name]) for name, weight in net.state_dict().items())
    fresh = FAMILY.sample(2000, stream(0, "fresh"))
    start = Prompted(first.config, stream(0, "init"), net)
    losses = [pair_half_mse(one, fresh).item() for one in (start, first, second)]
    assert losses[0] > losses[1] > losses[2]


def test_the_loss_of_pairs_is_that_of_targets_alone():
    nets = [network(0), network(1)]
    found = pair_half_mse(Ensemble(nets), SEQUENCES.expand(2, -1, -1, -1))
    for one, loss in zip(nets, found, strict=True):
        error = one(SEQUENCES)[:, 0::2] - SEQUENCES[:, 1::2]
        torch.testing.assert_close(loss, 0.5 * error.square().mean())
        torch.testing.assert_close(pair_half_mse(one, SEQUENCES), loss)
        assert loss != half_mse(one, SEQUENCES)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: prompt_tune(network(), FAMILY), ArgumentTypeError, "eos or prefix must be set, but are"),
        (
            lambda: prompt_tune(Prompted(PromptedConfig(network().config, eos=True)), FAMILY, eos=True),
            ArgumentError,
            "eos must be left out, as the network has one",
        ),
        (lambda: PromptedConfig(network().config, prefix=-1), ArgumentError, "prefix must be at least 0"),
        (
            lambda: Prompted(PromptedConfig(network().config))(torch.ones(2, 4, 5)),
            ArgumentError,
            "sequence must have width 3",
        ),
        (lambda: pair_half_mse(network(), SEQUENCES[:, :3]), ArgumentError, "sequences must have an even"),
    ],
)
def test_what_is_no_prompt_is_refused(call, error, message, unchecked):
    with pytest.raises(error, match=message):
        call()
