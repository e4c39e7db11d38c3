"""Trainings of parameters with strides, and states, members and checkpoints that do not fit."""

import dataclasses

import pytest
import torch
from torch import nn
from training_cases import BASE, Memory, Net, batch_at, loss

from mesascope.errors import ArgumentError
from mesascope.streams import stream
from mesascope.training import Ensemble, ModuleState, fit


def plan(**changes):
    return dataclasses.replace(BASE, **changes)


class Strided(nn.Module):
    """A linear map whose weight is a view with strides."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return x @ self.weight


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_parameters_that_are_strided_views_train_as_their_copies_and_leave_other_memory_alone(optimizer):
    whole = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    before, how = whole.clone(), plan(optimizer=optimizer, momentum=0.9 if optimizer == "sgd" else 0.0)
    for view in (lambda w: w[:, 2:], lambda w: w[:, ::2], lambda w: w[:2, :2].t()):
        nets = Strided(view(whole)), Strided(view(before.clone()).contiguous())
        x = torch.randn(8, nets[0].weight.shape[0], generator=torch.Generator().manual_seed(1))
        for net in nets:
            fit(ModuleState(net, lambda net, batch: (net(batch) - 1).square().mean(), how), lambda step, x=x: x, how)
        torch.testing.assert_close(nets[0].weight, nets[1].weight)
        changed = whole != before
        view(changed)[:] = False
        assert not changed.any()
        whole.copy_(before)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_resumed_training_of_strided_weights_repeats_the_run(optimizer):
    how = plan(optimizer=optimizer, momentum=0.9 if optimizer == "sgd" else 0.0, checkpoint_every=4)
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))

    def go(memory):
        state = ModuleState(Strided(weight.clone().t()), lambda net, x: (net(x) - 1).square().mean(), how)
        return fit(state, lambda step: torch.randn(8, 3, generator=stream(0, "x", step)), how, checkpoints=memory)

    memory = Memory()
    whole = go(memory)
    for step, tensors in memory.saved.items():
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        assert torch.equal(go(Memory((step, tensors))).weight, whole.weight)


def test_a_state_trains_once_and_expanded_parameters_not_at_all():
    state = ModuleState(Net(0), loss, BASE)
    fit(state, batch_at, BASE)
    with pytest.raises(ArgumentError, match="state must be new, but is 'of 10 steps': make a new one of its model"):
        fit(state, batch_at, BASE)
    with pytest.raises(ArgumentError, match="memory of its own for each entry of a parameter, but weight is expanded"):
        ModuleState(Strided(torch.ones(3, 1).expand(3, 2)), loss, BASE)


@pytest.mark.parametrize(("members", "said"), [
    ([nn.Sequential(nn.Linear(2, 2), nn.Tanh()), nn.Sequential(nn.Linear(2, 2), nn.ReLU())], "Tanh.* has ReLU"),
    ([nn.Sequential(nn.Linear(2, 2), nn.Dropout(p)) for p in (0.0, 0.9)], "p=0.0.* has Dropout.p=0.9"),
    ([nn.Linear(2, 2), nn.Linear(2, 2).double()], "weight of torch.float32 and member 1 has weight of torch.float64"),
    ([nn.Linear(2, 2), nn.Linear(2, 2).eval()], "same training/eval mode"),
])  # fmt: skip
def test_members_of_an_ensemble_differ_in_their_weights_alone(members, said):
    with pytest.raises(ArgumentError, match=said):
        Ensemble(members)


def test_checkpoints_of_other_weights_optimisers_or_generators_are_refused():
    def saved(net, how):
        memory = Memory()
        fit(ModuleState(net, loss, how), batch_at, how, checkpoints=memory)
        return memory.saved[how.steps]

    frozen, own = Net(0), Net(0, noise=True)
    frozen.first.weight.requires_grad_(False)
    sgd = plan(optimizer="sgd", momentum=0.9)
    for net, how, tensors, said in (
        (frozen, BASE, saved(Net(0), BASE), "weights that train, but holds that of first.weight"),
        (Net(0), BASE, saved(Net(0), sgd), "of the plan's optimiser, Adam, but has other moments .momentum_buffer."),
        (Net(0), sgd, saved(Net(0), BASE), "of the plan's optimiser, SGD, but has other moments .exp_avg"),
        (own, BASE, saved(Net(0), BASE), "state of each generator of the model, but not that of .noise"),
    ):
        with pytest.raises(ArgumentError, match=said):
            ModuleState(net, loss, how).load(tensors)
