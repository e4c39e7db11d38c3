"""Modules in states: modes, buffers, frozen parameters, randomness, and options of a single module."""

import dataclasses
import math

import pytest
import torch
from torch import nn
from training_cases import BASE, Net, batch_at, loss

from mesascope.errors import ArgumentError, NumericalError
from mesascope.modules import at_once
from mesascope.tasks.calling import predict
from mesascope.training import Ensemble, EnsembleState, ModuleState, ParameterGroup, fit

EACH_OPTIMIZER = pytest.mark.parametrize(
    "optimizer",
    [{"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "adam"}, {"optimizer": "adamw", "weight_decay": 0.1}],
    ids=["sgd", "adam", "adamw"],
)


def plan(**changes):
    return dataclasses.replace(BASE, **changes)


def members_at(step):
    return batch_at(step, (3,))


def member_at(index):
    return lambda step: {name: tensor[index] for name, tensor in members_at(step).items()}


def assert_same(found, expected, **tolerances):
    found, expected = found.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, **tolerances)


# Arguments of both kinds


@EACH_OPTIMIZER
def test_members_end_as_modules_trained_alone(optimizer):
    """Clipped, averaged, and with BatchNorm's running statistics."""
    how = plan(clip=0.2, average=1.0, **optimizer)
    ensemble = fit(
        EnsembleState([Net(seed, batch_norm=True) for seed in range(3)], loss, how),
        members_at,
        how,
    )
    for index in range(3):
        alone = fit(ModuleState(Net(index, batch_norm=True), loss, how), member_at(index), how)
        assert_same(ensemble.member(index), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 3])
def test_frozen_parameters_and_their_moments_stay(count):
    def frozen(seed):
        net = Net(seed)
        net.first.requires_grad_(False)
        return net

    how = plan(optimizer="adamw", weight_decay=0.5, average=1.0)
    ensemble = fit(
        EnsembleState([frozen(seed) for seed in range(count)], loss, how), lambda i: batch_at(i, (count,)), how
    )
    alone = fit(ModuleState(frozen(0), loss, how), batch_at, how)
    for trained in (ensemble.member(0), alone):
        assert torch.equal(trained.first.weight, Net(0).first.weight)
        assert not torch.equal(trained.second.weight, Net(0).second.weight)
        assert not trained.first.weight.requires_grad


class Watching(nn.Module):
    """Notes its modes at every call; its BatchNorm is frozen if wished."""

    def __init__(self, frozen=False):
        super().__init__()
        self.net, self.seen = Net(0, batch_norm=True, dropout=0.2), []
        if frozen:
            self.net.norm.eval()

    def forward(self, x):
        self.seen.append((self.training, self.net.dropout.training, self.net.norm.training))
        return self.net(x)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", [EnsembleState, ModuleState])
def test_updates_run_in_train_mode_and_evaluations_in_eval_mode(kind, frozen):
    module = Watching(frozen)
    alone = kind is ModuleState
    state = kind(module, loss, BASE) if alone else kind([module], loss, BASE)
    seen = module.seen if alone else state.ensemble.module.seen
    shape = () if alone else (1,)
    calls = []

    def evaluate(step, model):
        del seen[:]
        model(batch_at(step, shape)["x"])
        calls.append(seen.pop())

    result = fit(state, lambda step: batch_at(step, shape), BASE, evaluate=evaluate)
    assert calls == [(False, False, False)] * 4
    assert not (result if alone else result.member(0)).training
    state.update(batch_at(0, shape))
    assert seen[-1] == (True, True, not frozen)
    if not alone:  # members are copied
        assert module.training
        assert module.net.norm.training != frozen


@pytest.mark.parametrize("kind", [EnsembleState, ModuleState])
def test_a_module_that_comes_in_eval_mode_is_trained_in_train_mode(kind):
    module = Watching().eval()
    state = kind(module, loss, BASE) if kind is ModuleState else kind([module], loss, BASE)
    state.update(batch_at(0, () if kind is ModuleState else (1,)))
    seen = module.seen if kind is ModuleState else state.ensemble.module.seen
    assert seen == [(True, True, True)]


# Random states


class Dropping(nn.Module):
    """Answers with its mask, times a weight that is never moved by much."""

    def __init__(self):
        super().__init__()
        self.weight, self.dropout = nn.Parameter(torch.rand(())), nn.Dropout(0.5)

    def forward(self, x):
        return self.weight * self.dropout(torch.ones_like(x))


def masks(seed, steps=2):
    drawn = []

    def watched(ensemble, batch):
        output = ensemble(batch)
        drawn.append((output != 0).flatten(1))
        return output.square().flatten(1).mean(1)

    how = plan(steps=steps, learning_rate=1e-6)
    fit(EnsembleState([Dropping() for _ in range(3)], watched, how, seed=seed), lambda step: torch.ones(3, 40, 50), how)
    return torch.stack(drawn).double()


def test_dropout_masks_are_independent_between_members_steps_and_seeds_and_depend_on_nothing_else():
    torch.manual_seed(1)
    first = masks(seed=0)
    torch.manual_seed(2)
    assert torch.equal(masks(seed=0), first)
    assert (first.mean(-1) - 0.5).abs().max() < 0.06  # 2000 draws: five standard errors
    rows = torch.cat([first.flatten(0, 1), masks(seed=1).flatten(0, 1)])
    correlations = torch.corrcoef(rows) - torch.eye(12)
    assert correlations.abs().max() < 0.12


@pytest.mark.parametrize("kind", [EnsembleState, ModuleState])
def test_training_leaves_the_global_generator_as_it_was(kind):
    state = kind(Net(0, dropout=0.5), loss, BASE) if kind is ModuleState else kind([Net(0, dropout=0.5)], loss, BASE)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    state.update(batch_at(0, () if kind is ModuleState else (1,)))
    assert torch.equal(torch.get_rng_state(), before)


# Ensembles: buffers and what vmap can run


class Replacing(nn.Module):
    """Replaces a buffer in its forward pass where others change theirs in place."""

    def __init__(self, seed):
        super().__init__()
        self.net = Net(seed)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.net(x - self.mean)


@pytest.mark.usefixtures("members")
def test_buffers_that_a_module_replaces_are_kept():
    ensemble = fit(EnsembleState([Replacing(seed) for seed in range(3)], loss, BASE), members_at, BASE)
    single = fit(
        EnsembleState([Replacing(0)], loss, BASE), lambda step: {k: v[:1] for k, v in members_at(step).items()}, BASE
    )
    for index in range(3):
        alone = fit(ModuleState(Replacing(index), loss, BASE), member_at(index), BASE)
        assert alone.mean.abs().max() > 0.01
        assert_same(ensemble.member(index), alone, rtol=1e-4, atol=1e-5)
    assert_same(single.member(0), ensemble.member(0), rtol=1e-4, atol=1e-5)


class Branching(nn.Module):
    """Asks for a number in the middle, which vmap cannot give for several members at once."""

    def __init__(self, seed):
        super().__init__()
        self.net = Net(seed)

    def forward(self, x):
        return self.net(x) if x.sum() > 0 else -self.net(x)


class Recurrent(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.layer, self.net = nn.GRU(3, 3), Net(seed)

    def forward(self, x):
        return self.net(self.layer(x)[0])


class Halving(nn.Module):
    """Changes a buffer in place before it asks for a number; draws in place after."""

    def __init__(self, seed):
        super().__init__()
        self.net = Net(seed)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        half = 0.5 if self.calls.item() % 2 else 1.0
        return self.net(half * x + 0.0 * torch.empty(2).bernoulli_(0.5).sum())


class Shared(nn.Module):
    """One part under two names, tied weights and a buffer of two parts."""

    def __init__(self, seed):
        super().__init__()
        self.net, self.norms = Net(seed), nn.ModuleList(nn.BatchNorm1d(3) for _ in range(2))
        self.norms[1].running_mean = self.norms[0].running_mean
        self.norms[1].weight = self.norms[0].weight
        self.again = self.net

    def forward(self, x):
        return self.net(self.norms[0](x)) + self.again(self.norms[1](x + 1.0))


class Remembering(nn.Module):
    """Keeps what it made of its last batch, and lists of it, and changes its gradients by a hook."""

    def __init__(self, seed):
        super().__init__()
        self.net, self.last, self.seen, self.all = Net(seed), None, [], []
        self.net.second.register_full_backward_pre_hook(lambda module, outward: tuple(3 * one for one in outward))

    def forward(self, x):
        self.last = self.net(x)
        self.seen = [self.last]
        self.all.append(self.last)
        return self.last


def test_a_module_runs_at_once_again_when_its_backward_hooks_are_removed():
    module = Net(0)
    hook = module.first.register_full_backward_hook(lambda *_: None)
    ways = (module, torch.square, (torch.ones(2),), lambda: "in turn")
    assert at_once(*ways) == "in turn"
    hook.remove()
    assert torch.equal(at_once(*ways), torch.ones(2))


def test_a_function_that_refers_to_its_module_is_refused_as_copies_use_the_weights_of_the_first():
    module = Net(0)
    module.first.register_forward_hook(lambda part, inward, outward: outward + 0 * module.second.weight.sum())
    state = EnsembleState([module], lambda ensemble, batch: ensemble(batch).square().mean((1, 2)), BASE)
    with pytest.raises(
        ArgumentError, match=r"no function that refers to the module .* copies of Net still use the orig"
    ):
        state.update(torch.ones(1, 4, 3))


def normed(norm):
    def make(seed):
        net = Net(seed)
        net.first = norm(net.first)
        return net

    return make


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated", "ignore:There is a performance drop")
@pytest.mark.parametrize("average", [None, 1.0])
@pytest.mark.parametrize(
    "make",
    [
        Branching,
        Recurrent,
        Halving,
        Shared,
        Remembering,
        normed(nn.utils.parametrizations.spectral_norm),
        normed(nn.utils.spectral_norm),
        normed(nn.utils.weight_norm),
    ],
)
def test_any_module_trains_with_others_as_it_does_alone(make, average):
    """Modules that vmap cannot run, that share parts, and that create tensors; also from a checkpoint."""

    def made(seed):
        torch.manual_seed(seed)
        return make(seed)

    how = plan(average=average, optimizer="sgd")
    state = EnsembleState([made(seed) for seed in range(3)], loss, how)
    for step in range(5):
        state.update(members_at(step))
    again = EnsembleState([made(seed) for seed in range(3)], loss, how)
    again.load({name: tensor.clone() for name, tensor in state.tensors().items()})
    for step in range(5, 10):
        again.update(members_at(step))
    for index in range(3):
        alone = fit(ModuleState(made(index), loss, how), member_at(index), how)
        assert_same(again.result().member(index), alone, rtol=1e-4, atol=1e-5)


def test_errors_of_a_module_that_are_not_of_vmap_are_those_of_a_plain_call():
    ensemble, fine, calls = Ensemble([Net(0), Net(1)]), torch.ones(2, 8, 3), []
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        ensemble(torch.ones(2, 8, 4))
    forward = ensemble.module.forward
    ensemble.module.forward = lambda x: calls.append(1) or forward(x)
    ensemble(fine)
    assert len(calls) == 1, "it still runs all at once"


def test_running_out_of_memory_is_not_tried_again():
    ensemble, calls = Ensemble([Net(0), Net(1)]), []

    def forward(x):
        calls.append(1)
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    ensemble.module.forward = forward
    with pytest.raises(RuntimeError, match="allocate memory"):
        ensemble(torch.ones(2, 8, 3))
    assert len(calls) == 1


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
@pytest.mark.parametrize(("kind", "made"), [(ModuleState, lambda: Net(0)), (EnsembleState, lambda: [Net(0), Net(1)])])
def test_a_batch_that_does_not_fit_into_memory_names_what_halves_it(kind, made, error):
    def raising(model, batch):
        raise error

    said = "^a batch must fit into memory, but Net ran out of it with accumulate=2: train with accumulate=4, which"
    with pytest.raises(ArgumentError, match=said):
        kind(made(), raising, plan(), accumulate=2).update(torch.ones(2, 8, 3))
    greedy = kind(made(), lambda model, batch: predict(lambda x: x.new_empty(2**60), batch), plan())
    with pytest.raises(ArgumentError, match="accumulate=1: train with accumulate=2"):
        greedy.update(torch.ones(2, 8, 3))


# One module


@EACH_OPTIMIZER
def test_accumulating_over_parts_of_a_batch_equals_the_whole_batch(optimizer):
    how = plan(clip=0.2, **optimizer)

    def draw(step):
        return batch_at(step, dtype=torch.float64)

    whole = fit(ModuleState(Net(0).double(), loss, how), draw, how)
    for parts in (2, 8):
        accumulated = fit(ModuleState(Net(0).double(), loss, how, accumulate=parts), draw, how)
        assert_same(accumulated, whole, rtol=1e-9, atol=1e-10)
    once, in_parts = (ModuleState(Net(0).double(), loss, how, accumulate=n).update(draw(0)) for n in (1, 4))
    assert in_parts == pytest.approx(once, rel=1e-9)


@EACH_OPTIMIZER
def test_ensembles_accumulate_over_parts_of_their_batches_as_modules_do(optimizer):
    how = plan(clip=0.2, **optimizer)

    def draw(step):
        return {name: tensor.double() for name, tensor in members_at(step).items()}

    def state(**options):
        return EnsembleState([Net(seed).double() for seed in range(3)], loss, how, **options)

    whole, in_parts = fit(state(), draw, how), fit(state(accumulate=4), draw, how)
    for index in range(3):
        assert_same(in_parts.member(index), whole.member(index), rtol=1e-9, atol=1e-10)
    once, parts = (state(accumulate=count).update(draw(0)) for count in (1, 4))
    for name in ("loss", "gradient_norm"):
        torch.testing.assert_close(parts[name], once[name], rtol=1e-9, atol=0)


@pytest.mark.parametrize("state", [ModuleState(Net(0), loss, BASE, accumulate=3),
                                   EnsembleState([Net(0)], loss, BASE, accumulate=3)])  # fmt: skip
def test_batches_that_cannot_be_run_in_equal_parts_are_refused(state):
    batch = batch_at(0) if isinstance(state, ModuleState) else batch_at(0, (1,))
    with pytest.raises(ArgumentError, match="accumulate must divide the size of the batch, but is 3 for 8 tasks"):
        state.update(batch)
    with pytest.raises(ArgumentError, match="with an axis of tasks to be run in parts, but holds a str"):
        state.update("abc")


def test_groups_train_with_rates_and_decays_of_their_own():
    """Against gradient descent by hand."""
    how = plan(optimizer="sgd", learning_rate=0.1, weight_decay=0.2, schedule="linear", decay_from=0.0)
    groups = [ParameterGroup(("*.bias", "first.*"), learning_rate=0.5), ParameterGroup(("*.bias",), weight_decay=0.0)]
    net, by_hand = Net(0), Net(0)
    settings = {
        "first.weight": (0.5, 0.2),
        "first.bias": (0.5, 0.2),
        "second.bias": (0.5, 0.2),
        "second.weight": (0.1, 0.2),
    }
    fit(ModuleState(net, loss, how, parameter_groups=groups), batch_at, how)
    for step in range(how.steps):
        gradients = torch.autograd.grad(loss(by_hand, batch_at(step)), list(by_hand.parameters()))
        with torch.no_grad():
            for (name, weight), gradient in zip(by_hand.named_parameters(), gradients, strict=True):
                rate, decay = settings[name]
                weight -= rate * (1 - step / how.steps) * (gradient + decay * weight)
    assert_same(net, by_hand)
    no_decay = [ParameterGroup(("*.bias",), weight_decay=0.0)]
    other = fit(ModuleState(Net(0), loss, how, parameter_groups=no_decay), batch_at, how)
    assert not torch.allclose(other.second.bias, net.second.bias)


def test_a_group_that_names_nothing_is_refused():
    with pytest.raises(ArgumentError, match=r"but '\*\.gain' matches none of first\.bias, first\.weight, second\.bias"):
        ModuleState(Net(0), loss, BASE, parameter_groups=[ParameterGroup(("*.bias", "*.gain"))])


def test_autocast_runs_the_forward_pass_in_its_dtype_and_keeps_weights():
    seen = []

    def watched(model, batch):
        seen.append(model(batch["x"]).dtype)
        return loss(model, batch)

    trained = fit(ModuleState(Net(0), watched, BASE, autocast=torch.bfloat16), batch_at, BASE)
    plain = fit(ModuleState(Net(0), loss, BASE), batch_at, BASE)
    assert set(seen) == {torch.bfloat16}
    assert_same(trained, plain, rtol=0.1, atol=0.03)
    assert not torch.equal(trained.first.weight, plain.first.weight)
    with pytest.raises(ArgumentError, match=r"autocast must be torch\.float16, torch\.bfloat16 or None"):
        ModuleState(Net(0), loss, BASE, autocast=torch.float64)


@pytest.mark.parametrize("count", [1, 3])
def test_autocast_of_an_ensemble_is_that_of_its_members_alone(count):
    def draw(step):
        return batch_at(step, (count,))

    def alone(step):
        return {name: tensor[0] for name, tensor in draw(step).items()}

    members = [Net(seed) for seed in range(count)]
    trained = fit(EnsembleState(members, loss, BASE, autocast=torch.bfloat16), draw, BASE).member(0)
    assert_same(
        trained, fit(ModuleState(Net(0), loss, BASE, autocast=torch.bfloat16), alone, BASE), rtol=0.1, atol=0.03
    )
    plain = fit(ModuleState(Net(0), loss, BASE), alone, BASE)
    assert trained.first.weight.dtype == torch.float32
    assert not torch.equal(trained.first.weight, plain.first.weight)
    with pytest.raises(ArgumentError, match=r"autocast must be torch\.bfloat16 or None for an ensemble"):
        EnsembleState(members, loss, BASE, autocast=torch.float16)


def test_small_gradients_survive_float16():
    """2^-22 times the loss: its gradients are below what float16 holds, unless they are scaled up."""

    def small(model, batch):
        return loss(model, batch) * 2.0**-22

    ModuleState(net := Net(0), small, plan(clip=1.0)).update(batch_at(0))
    exact = {name: weight.grad for name, weight in net.named_parameters()}
    ModuleState(net := Net(0), small, plan(clip=1.0), autocast=torch.float16).update(batch_at(0))
    half = {name: weight.grad for name, weight in net.named_parameters()}
    for name, gradient in exact.items():
        assert (half[name] - gradient).norm() < 0.02 * gradient.norm()


def test_a_step_whose_scaled_gradient_overflows_is_left_out():
    """Gradients of 2^4 overflow at the first scale, 2^16, and at half of it no more."""
    net = nn.Linear(1, 1, bias=False)
    net.weight.data.fill_(0.5)
    how = plan(optimizer="sgd", schedule="constant", learning_rate=0.01, clip=100.0)

    def linear(model, batch):
        return model(batch).sum()

    weights, norms = [], []
    state = ModuleState(net, linear, how, autocast=torch.float16)
    for _ in range(4):
        norms.append(state.update(torch.tensor([[2.0**0]]))["gradient_norm"])
        weights.append(net.weight.item())
    moved = [w != before for before, w in zip([0.5, *weights], weights, strict=False)]
    assert moved == [math.isfinite(norm) for norm in norms]
    assert moved[0] is False
    assert moved[-1] is True


@pytest.mark.parametrize("broken", ["loss", "gradient"])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_module_that_diverges_stops_with_a_sentence_and_keeps_its_weights(broken, autocast):
    def exploding(model, batch):
        value = loss(model, batch)
        if batch["x"][0, 0] == 0:
            value = value / 0 if broken == "loss" else value + (model.second.bias * 0).sqrt().sum()
        return value

    def draw(step):
        batch = batch_at(step)
        if step == 4:
            batch["x"][0, 0] = 0
        return batch

    net = Net(0)
    with pytest.raises(NumericalError, match=r"diverged at step 5 \(loss nan, gradient norm (inf|nan), learning rate"):
        fit(ModuleState(net, exploding, BASE, autocast=autocast), draw, BASE)
    short = Net(0)
    fit(ModuleState(short, loss, BASE, autocast=autocast), draw, plan(steps=4))
    assert_same(net, short, rtol=0, atol=0)
