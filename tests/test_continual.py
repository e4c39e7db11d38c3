"""Streams of tasks, and methods that learn from them, are what their rules say."""

import copy

import pytest
import torch
from examples import examples
from torch import nn
from torch.nn.functional import cross_entropy, linear

from mesascope.data import images
from mesascope.errors import ArgumentError, ArgumentTypeError, MesascopeError
from mesascope.meta import (
    GEM,
    MER,
    ContinualBatch,
    ContinualState,
    ExperienceReplay,
    Gradient,
    LaMAML,
    OnlineSGD,
    Reservoir,
    SparseLaMAML,
    Sync,
    batch_of,
    retained_accuracy,
)
from mesascope.meta.continual import _dual
from mesascope.meta.gradients import MLPGradient, mlp_gradient
from mesascope.nets import MLP, ClassifierConfig
from mesascope.records import from_record, to_record
from mesascope.streams import stream
from mesascope.tasks import Context, Episode, PermutedDigits, RotatedDigits, SwitchingImages
from mesascope.training import Training, fit
from mesascope.training.family import stacked

METHODS = dict(examples("method", of="tasks"))
NET = ClassifierConfig("mlp", width=20, size=8, classes=10)


def streams(*seeds, tasks=3, samples=20):
    """Streams of several seeds, stacked."""
    drawn = [RotatedDigits(samples, 30).sample(tasks, stream(seed, "tasks")) for seed in seeds]
    x, y, xq, yq = (
        torch.stack(parts) for parts in zip(*((*one.context, one.xq, one.yq) for one in drawn), strict=True)
    )
    return Episode(Context(x, y), xq, yq)


def state_of(method, *seeds):
    return ContinualState([NET.build(stream(seed, "init")) for seed in seeds], method, seeds)


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_that_is_not_finite_changes_nothing(name):
    state, batches = state_of(METHODS[name](), 0), [batch_of(streams(0), step, 5) for step in range(2)]
    state.update(batches[0])
    before = {key: value.clone() for key, value in state.tensors().items()}
    with pytest.raises(MesascopeError, match="the data must be finite, but at step 2"):
        state.update(batches[1]._replace(x=batches[1].x * float("nan")))
    assert all(torch.equal(value, before[key]) for key, value in state.tensors().items())
    assert state.update(batches[1])["loss"].isfinite().all()
    with pytest.raises(ArgumentTypeError, match="task must be the index of the batch's task"):
        state.update(batches[1]._replace(task=torch.tensor(0)))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_inverse_of_its_record(name):
    method = METHODS[name]()
    assert from_record(to_record(method)) == method


@pytest.mark.parametrize("name", METHODS)
def test_members_learn_as_they_would_alone(name):
    tasks, both = streams(0, 1), state_of(METHODS[name](), 0, 1)
    fit(both, lambda step: batch_of(tasks, step, 5), Training(steps=12))
    for member, seed in enumerate((0, 1)):
        alone, own = state_of(METHODS[name](), seed), tasks.map(lambda part, m=member: part[m : m + 1])
        fit(alone, lambda step, own=own: batch_of(own, step, 5), Training(steps=12))
        for key, value in alone.tensors().items():
            if not key.startswith("step") and value.ndim:
                torch.testing.assert_close(both.tensors()[key][member], value[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_learning_goes_on_bit_for_bit(name):
    tasks = streams(0, 1)
    whole, first, second = (state_of(METHODS[name](), 0, 1) for _ in range(3))
    for step in range(12):
        whole.update(batch_of(tasks, step, 5))
        (first if step < 7 else second).update(batch_of(tasks, step, 5))
        if step == 6:
            second.load({key: value.clone() for key, value in first.tensors().items()})
    assert whole.tensors().keys() == second.tensors().keys()
    for key, value in whole.tensors().items():
        assert torch.equal(value, second.tensors()[key]), key


@pytest.mark.parametrize("name", METHODS)
def test_a_method_learns_its_first_task(name, unchecked):
    tasks = streams(0, tasks=1, samples=500)
    state = state_of(METHODS[name](), 0)
    fit(state, lambda step: batch_of(tasks, step, 10, passes=3), Training(steps=150))
    assert retained_accuracy(state.result(), tasks).item() > 0.4


def in_torch(net):
    """The same network of torch's own layers."""
    parts = []
    for layer in net.layers:
        parts += [torch.nn.ReLU(), copy.deepcopy(layer)] if parts else [copy.deepcopy(layer)]
    return torch.nn.Sequential(*parts)


def test_any_module_learns():
    tasks, nets = streams(0, 1), [NET.build(stream(seed, "init")) for seed in range(2)]
    ours, other = (ContinualState(own, LaMAML(glances=2), [0, 1]) for own in (nets, [in_torch(net) for net in nets]))
    for step in range(6):
        ours.update(batch_of(tasks, step, 5))
        other.update(batch_of(tasks, step, 5))
    for own, theirs in zip(ours.result(), other.result(), strict=True):
        torch.testing.assert_close(own(tasks.xq[0, 0]), theirs(tasks.xq[0, 0]), rtol=1e-3, atol=1e-4)


class Scaled(torch.nn.Linear):
    """A layer whose outputs are multiplied by a number that is learned."""

    def __init__(self):
        super().__init__(64, 10)
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * super().forward(x)


@pytest.mark.parametrize("name", METHODS)
def test_a_parameter_of_one_number_is_learned_too(name):
    torch.manual_seed(0)
    state, tasks = ContinualState([Scaled()], METHODS[name](), [0]), streams(0, tasks=2)
    fit(state, lambda step: batch_of(tasks, step, 5), Training(steps=8))
    closed = state.sparsity_by_parameter()[0]
    assert set(closed) in ({"weight", "bias", "scale"}, set())
    assert closed.get("scale", 0.0) in (0.0, 1.0)
    assert state.result()[0].scale.isfinite()


def test_a_convolutional_network_learns_with_the_statistics_of_each_batch():
    net = ClassifierConfig("convnet4", width=4, size=8, classes=10).build(stream(0, "init"))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = ContinualState([net], OnlineSGD(0.1), [0])
    state.update(batch_of(streams(0), 0, 10))
    after = state.result()[0].state_dict()
    assert not torch.equal(after["head.weight"], before["head.weight"])
    assert not torch.equal(after["blocks.0.1.running_mean"], before["blocks.0.1.running_mean"])
    assert "buffers/blocks.0.1.running_mean" in state.tensors()


class Bent(MLP):
    """A network of another law than the one that it is a subclass of."""

    def forward(self, x):
        return super().forward(x).tanh()


def test_a_subclass_learns_by_its_own_gradient():
    tasks, net = streams(0), NET.build(stream(0, "init"))
    bent = copy.deepcopy(net)
    bent.__class__ = Bent
    state, x, y = ContinualState([bent], OnlineSGD(0.1), [0]), *batch_of(tasks, 0, 5)[:2]
    state.update(batch_of(tasks, 0, 5))
    leaves = [one.detach().requires_grad_() for one in net.parameters()]
    names = [name for name, _ in net.named_parameters()]
    scores = torch.func.functional_call(net, dict(zip(names, leaves, strict=True)), (x[0],)).tanh()
    found = torch.autograd.grad(cross_entropy(scores, y[0]), leaves)
    for now, before, step in zip(state.result().weights.values(), leaves, found, strict=True):
        torch.testing.assert_close(now[0], before.detach() - 0.1 * step)


@pytest.mark.parametrize("name", METHODS)
def test_frozen_parameters_stay(name):
    net, tasks = NET.build(stream(0, "init")), streams(0)
    net.layers[0].requires_grad_(False)
    before = copy.deepcopy(net.state_dict())
    state = ContinualState([net], METHODS[name](), [0])
    fit(state, lambda step: batch_of(tasks, step, 5), Training(steps=6))
    after = state.result()[0].state_dict()
    assert torch.equal(after["layers.0.weight"], before["layers.0.weight"])
    assert not torch.equal(after["layers.1.weight"], before["layers.1.weight"])
    state.load(state.tensors())
    assert torch.equal(state.result()[0].state_dict()["layers.1.weight"], after["layers.1.weight"])


def test_dropout_of_a_learner_follows_its_seed():
    def learned(seed):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(in_torch(NET.build(stream(0, "init"))), torch.nn.Dropout(0.5))
        state = ContinualState([net], OnlineSGD(0.1), [0])
        return fit(state, lambda step: batch_of(tasks, step, 5), Training(steps=6)).weights

    tasks = streams(0)
    for one, other in zip(learned(0).values(), learned(1).values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", METHODS)
def test_a_member_that_diverges_is_told_and_leaves_the_others_alone(name):
    tasks = streams(0, 1)
    tasks.context.x[0, 1, 3] = 3e38  # finite, but its products are not
    state, alone = state_of(METHODS[name](), 0, 1), state_of(METHODS[name](), 1)
    with pytest.warns(UserWarning, match="member 0 diverged at step"):
        found = fit(state, lambda step: batch_of(tasks, step, 5), Training(steps=12))
    assert found.diverged[0] > 0 == found.diverged[1]
    own = tasks.map(lambda part: part[1:])
    whole = fit(alone, lambda step: batch_of(own, step, 5), Training(steps=12))
    for key, value in whole.weights.items():
        torch.testing.assert_close(found.weights[key][1], value[0], rtol=1e-4, atol=1e-5)
    state.load(state.tensors())
    assert state.result().diverged == found.diverged


@pytest.mark.usefixtures("unchecked")
def test_a_class_of_methods_is_no_method():
    with pytest.raises(ArgumentTypeError, match=r"method must be a method, .* class OnlineSGD: pass an instance"):
        ContinualState([NET.build()], OnlineSGD, [0])


def test_a_reservoir_that_goes_on_from_the_start_is_empty():
    memory = Reservoir(3)
    memory.add(torch.ones(1, 5, 2), torch.ones(1, 5).long(), [stream(0, "draws")])
    memory.load({})
    assert (memory.seen, memory.tensors()) == (0, {})


def slow_la_maml(weights, rates, applied, batch):
    """Outer gradients by weights and by what gradients are multiplied by, step by step, before there is a past."""
    phi, sums = list(weights), [torch.zeros_like(one) for one in weights]
    by_weights, by_applied = ([torch.zeros_like(one) for one in weights] for _ in range(2))
    for x, y in zip(*batch, strict=True):
        inner = gradient(phi, x[None], y[None])
        phi = [one - applied(rate) * g for one, rate, g in zip(phi, rates, inner, strict=True)]
        outer = gradient(phi, *batch)
        for index, (g, o) in enumerate(zip(inner, outer, strict=True)):
            sums[index] = sums[index] + g
            by_weights[index] += o / len(batch[0])
            by_applied[index] -= o * sums[index] / len(batch[0])
    return by_weights, by_applied


def gradient(weights, x, y):
    leaves = [one.detach().requires_grad_() for one in weights]
    hidden = x
    for index in range(3):
        hidden = linear(hidden if index == 0 else hidden.relu(), *leaves[2 * index : 2 * index + 2])
    return torch.autograd.grad(cross_entropy(hidden, y), leaves)


def clipped(gradients, most=2.0):
    norm = torch.sqrt(sum(one.square().sum() for one in gradients))
    return [one * min(1.0, float(most / norm)) for one in gradients]


@pytest.mark.parametrize("kind", [LaMAML, Sync, SparseLaMAML])
def test_a_glance_is_what_its_equations_say(kind):
    """The first batch, for which there is no past."""
    method = kind(learning_rate=5.0, glances=1)
    state, tasks = state_of(method, 0), streams(0)
    weights = [one[0].clone() for one in state._at.weights]
    for rate in state._at.rates:  # some below zero
        rate += 0.2 * torch.randn(rate.shape, generator=stream(0, "rates"))
    rates = [one[0].clone() for one in state._at.rates]
    sparse = kind is SparseLaMAML
    applied = (lambda m: 0.15 * (m >= 0)) if sparse else (lambda a: a.clamp(min=0))
    batch = batch_of(tasks, 0, 4)
    order = torch.randperm(4, generator=stream(0, "continual", 0))
    outer, by_applied = slow_la_maml(weights, rates, applied, (batch.x[0, order], batch.y[0, order]))
    factors = [torch.full_like(rate, 0.15) if sparse else (rate > 0).float() for rate in rates]
    by_rates = clipped([f * g for f, g in zip(factors, by_applied, strict=True)])
    moved = [rate - 5.0 * one for rate, one in zip(rates, by_rates, strict=True)]
    if kind is Sync:
        expected = [w - 0.1 * g for w, g in zip(weights, clipped(outer), strict=True)]
    else:
        expected = [w - applied(rate) * g for w, rate, g in zip(weights, moved, clipped(outer), strict=True)]
    state.update(batch)
    torch.testing.assert_close([one[0] for one in state._at.rates], moved)
    torch.testing.assert_close([one[0] for one in state._at.weights], expected)
    shares = [(applied(rate) == 0).float().mean().item() for rate in moved]
    assert list(state.sparsity_by_parameter()[0].values()) == pytest.approx(shares)
    assert 0 < shares[0] < 1


@pytest.mark.parametrize("sizes", [[4, 3], [4, 6, 3], [4, 6, 5, 3]])
@pytest.mark.parametrize("rows", [1, 7])
def test_the_gradient_of_several_mlps_is_that_of_autograd(sizes, rows):
    torch.manual_seed(0)
    nets = [MLP(sizes).double() for _ in range(2)]
    x, y = torch.randn(2, rows, 4, dtype=torch.float64), torch.randint(3, (2, rows))
    stacked = [torch.stack(parts).detach() for parts in zip(*(net.parameters() for net in nets), strict=True)]
    before = [one.clone() for one in stacked]
    losses, found = mlp_gradient(stacked, x, y)
    for member, net in enumerate(nets):
        loss = cross_entropy(net(x[member]), y[member])
        torch.testing.assert_close(losses[member], loss.detach())
        expected = torch.autograd.grad(loss, list(net.parameters()))
        torch.testing.assert_close([one[member] for one in found], list(expected))
    assert all(torch.equal(one, other) for one, other in zip(stacked, before, strict=True))


@pytest.mark.parametrize("sizes", [[7, 3], [7, 6, 3], [7, 6, 5, 3]])
@pytest.mark.parametrize(("rows", "steps"), [(1, 1), (4, 4), (9, 5)])
def test_an_mlp_steps_and_looks_ahead_without_a_step_of_its_first_layer(sizes, rows, steps):
    """In float64, with rates of which some are 0 and weights that move by as much as they are."""
    generator = stream(0, "look ahead")
    torch.manual_seed(0)
    nets = [MLP(sizes).double() for _ in range(2)]
    weights = [torch.stack(parts).detach() for parts in zip(*(net.parameters() for net in nets), strict=True)]
    rates = [torch.randn(one.shape, generator=generator).clamp(min=0).to(one) for one in weights]
    x = torch.randn(2, rows, 7, generator=generator).double()
    y = torch.randint(3, (2, rows), generator=generator)
    quick, slow, before = MLPGradient(), Gradient(mlp_gradient), [one.clone() for one in weights]
    for one, other in zip(
        quick.look_ahead(weights, rates, x, y, steps), slow.look_ahead(weights, rates, x, y, steps), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    assert all(torch.equal(one, other) for one, other in zip(weights, before, strict=True))
    slow.descend(weights, x, y, 0.7)
    quick.descend(before, x, y, 0.7)
    torch.testing.assert_close(before, weights, rtol=1e-10, atol=1e-12)


def test_replay_adds_examples_of_the_past():
    state, tasks = state_of(ExperienceReplay(0.1, memory=50, replay=6), 0), streams(0)
    state.update(batch_of(tasks, 0, 5))
    weights, past = [one[0].clone() for one in state._at.weights], state._at.memory
    drawn = past.draw(6, [stream(0, "continual", 1)])
    batch = batch_of(tasks, 1, 5)
    expected = gradient(weights, torch.cat([drawn[0][0], batch.x[0]]), torch.cat([drawn[1][0], batch.y[0]]))
    state.update(batch)
    torch.testing.assert_close(
        [one[0] for one in state._at.weights], [w - 0.1 * g for w, g in zip(weights, expected, strict=True)]
    )


def test_a_reservoir_is_a_uniform_sample_of_what_was_seen():
    counts = torch.zeros(30)
    for seed in range(800):
        memory = Reservoir(6)
        for part in range(3):
            x = torch.arange(10 * part, 10 * part + 10.0).view(1, 10, 1)
            memory.add(x, x[..., 0].long(), [stream(seed, "reservoir", part)])
        assert memory.x.unique().numel() == 6
        counts[memory.x.flatten().long()] += 1
    assert (counts / 800 - 0.2).abs().max() < 0.05


def test_gem_moves_along_no_direction_that_raises_the_loss_of_a_past_task():
    generator = stream(0, "gem")
    for _ in range(20):
        rows, own = torch.randn(4, 30, generator=generator), torch.randn(30, generator=generator)
        rows = rows - 0.5 * own
        dual = _dual(rows @ rows.T, rows @ own, 0.0).float()
        found = own + rows.T @ dual
        assert (rows @ found > -1e-2).all()
        for _ in range(50):  # no other direction that keeps the rule is nearer
            v = dual * (1 + 0.2 * torch.randn(4, generator=generator))
            other = own + rows.T @ v
            if (rows @ other >= -1e-6).all():
                assert (other - own).norm() >= (found - own).norm() - 1e-3


def test_gem_is_gradient_descent_where_nothing_is_at_odds():
    tasks = streams(0, tasks=1)
    plain, gem = state_of(OnlineSGD(0.05), 0), state_of(GEM(0.05), 0)
    for step in range(4):
        for state in (plain, gem):
            state.update(batch_of(tasks, step, 5))
    for one, other in zip(plain._at.weights, gem._at.weights, strict=True):
        assert torch.equal(one, other)


def test_mer_is_slow_steps_towards_quick_ones():
    """The first example, for which there is no past: three steps of the learning rate, of which a share is kept."""
    state, tasks = state_of(MER(0.3, within=0.2, across=0.5, batches=3), 0), streams(0)
    start = weights = [one[0].clone() for one in state._at.weights]
    batch = batch_of(tasks, 0, 1)
    for _ in range(3):
        step = gradient(weights, batch.x[0], batch.y[0])
        weights = [w - 0.2 * 0.3 * g for w, g in zip(weights, step, strict=True)]
    state.update(batch)
    expected = [s + 0.5 * (w - s) for s, w in zip(start, weights, strict=True)]
    torch.testing.assert_close([one[0] for one in state._at.weights], expected)


def test_each_task_is_seen_as_often_as_asked_and_then_the_next():
    tasks = streams(0, samples=10)
    order = [batch_of(tasks, step, 5, passes=3) for step in range(18)]
    assert [one.task for one in order] == [0] * 6 + [1] * 6 + [2] * 6
    assert torch.equal(order[0].x, order[2].x)
    assert torch.equal(order[6].x[0], tasks.context.x[0, 1, :5])
    assert torch.equal(torch.nn.functional.one_hot(order[7].y, 10).float()[0], tasks.context.y[0, 1, 5:])
    with pytest.raises(ArgumentError, match="size must divide the 10 examples of a task, but is 4"):
        batch_of(tasks, 0, 4)


def test_retained_is_the_share_of_queries_that_are_told():
    tasks, state = streams(0, 1), state_of(OnlineSGD(), 0, 1)
    found = retained_accuracy(state.result(), tasks)
    for member in range(2):
        for task in range(3):
            told = state.result()[member](tasks.xq[member, task]).argmax(-1) == tasks.yq[member, task].argmax(-1)
            assert found[member, task].item() == pytest.approx(told.float().mean().item())


@pytest.mark.parametrize(("task", "share", "quarters"), [(0, 0.0, 0), (1, 0.0, 1), (0, 1.0, 1), (1, 1.0, 2)])
def test_task_t_of_two_turns_digits_by_an_angle_of_its_half(task, share, quarters, monkeypatch):
    image = torch.rand(1, 1, 9, 9, generator=stream(0, "image"))
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: torch.tensor(share))
    turned = RotatedDigits()._changed(image, task, 2, stream(0, "angle"))
    torch.testing.assert_close(turned, image.rot90(quarters, (2, 3)), rtol=0, atol=1e-5)


def test_permuted_tasks_hold_the_same_pixels_in_other_places():
    tasks = PermutedDigits(200, 50).sample(3, stream(0, "tasks"))
    for part in (tasks.context.x, tasks.xq):
        assert part.min() >= 0
        assert part.max() <= 1
    means = tasks.context.x.mean(1)
    for task in (1, 2):
        assert not torch.allclose(means[0], means[task], atol=0.1)
        torch.testing.assert_close(means[0].sort().values, means[task].sort().values, atol=0.08, rtol=0)


def test_a_stream_switches_as_often_as_asked_and_is_the_same_again():
    settings = SwitchingImages(stay=0.8, ways=4, shots=2, domains=("digits",), size=8)
    found, again, other = settings.stream(2000, 0), settings.stream(2000, 0), settings.stream(2000, 1)
    assert 0.17 < (found.tasks[1:] != found.tasks[:-1]).float().mean() < 0.23
    assert torch.equal(found(7).x, again(7).x)
    assert not torch.equal(found.tasks, other.tasks)
    first = found(0)
    assert first.x.shape == (8, 64)
    assert torch.equal(first.y.sum(0), torch.full((4,), 2.0))
    start = int((found.tasks == 3).nonzero()[0])
    assert not torch.equal(found(start).x, found(start + 1).x)


def test_steps_of_one_task_number_its_classes_alike():
    """Means of the images of a class are alike within a task, and of classes are not."""
    settings = SwitchingImages(stay=1.0, ways=5, shots=20, domains=("digits",), size=8)
    found = settings.stream(2, 0)
    means = [found(step).y.T @ found(step).x / 20 for step in range(2)]
    distances = torch.cdist(*means)
    assert torch.equal(distances.argmin(1), torch.arange(5))


@pytest.mark.parametrize("part", ["train", "test"])
def test_streams_are_of_the_images_of_their_part(part, monkeypatch):
    """A permutation leaves the pixels of an image, sorted by brightness, as they are; rotations are left out."""
    monkeypatch.setattr(RotatedDigits, "_changed", lambda family, pixels, *of: pixels)
    tasks = stacked([family(50, 50).sample(2, stream(0, "tasks")) for family in (PermutedDigits, RotatedDigits)])
    drawn = {"train": tasks.context.x, "test": tasks.xq}[part].flatten(0, 2)
    switching = SwitchingImages(ways=4, shots=5, domains=("digits",), size=8, part=part).stream(1, 0)(0).x
    rows = images("digits", part).pixels.flatten(1).float() / 255
    known = set(map(tuple, rows.sort().values.tolist()))
    assert all(tuple(row) in known for row in torch.cat([drawn, switching]).sort().values.tolist())


def test_tasks_of_a_stream_number_their_classes_anew():
    found = SwitchingImages(stay=0.0, ways=10, shots=20, domains=("digits",), size=8).stream(2, 0)
    means = [found(step).y.T @ found(step).x / 20 for step in range(2)]
    assert (torch.cdist(*means).argmin(1) != torch.arange(10)).sum() > 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: OnlineSGD(learning_rate=0), "learning_rate must be greater than 0"),
        (lambda: LaMAML(glances=0), "glances must be at least 1"),
        (lambda: Reservoir(0), "size must be at least 1"),
        (lambda: RotatedDigits(samples=2000).sample(1, stream(0, "tasks")), "samples must be at most the 1347 images"),
        (lambda: ContinualState([NET.build()], OnlineSGD(), [0, 1]), r"seeds must have one entry per member \(1\)"),
        (lambda: SwitchingImages(stay=1.5), "stay must be at most 1"),
        (
            lambda: SwitchingImages(domains=("digits",), ways=4, size=8).stream(3, 0)(3),
            "step must be below the 3 steps of the stream, but is 3",
        ),
        (
            lambda: ContinualState([torch.nn.Linear(60, 10)], OnlineSGD(), [0]).update(batch_of(streams(0), 0, 5)),
            "members must learn examples of 64 numbers in classes 4 to 9, .* but Linear.* does not",
        ),
        (
            lambda: ContinualState(
                [ClassifierConfig("mlp", width=9, size=8, classes=2).build()], OnlineSGD(), [0]
            ).update(batch_of(streams(0), 0, 5)),
            "members must learn examples of 64 numbers in classes 4 to 9, .* but MLP.* does not",
        ),
        (lambda: batch_of(streams(0), 12, 5), "step must be below the 12 batches of the stream, but is 12"),
        (lambda: batch_of(streams(0), -1, 5), "step must be at least 0"),
        (lambda: SwitchingImages(ways=11, domains=("digits",)).stream(3, 0), "ways must be at most 10 for digits"),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def _hooked(net):
    net.layers[0].register_forward_hook(lambda module, inputs, output: output.tanh())


def _hooked_whole(net):
    net.register_forward_hook(lambda module, inputs, output: 3 * output)


def _without_bias(net):
    net.layers[0] = nn.Linear(6, 5, bias=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda net: None, _hooked, _hooked_whole, _without_bias,
        lambda net: net.layers.__setitem__(1, nn.Sequential(nn.Linear(5, 3), nn.Softplus())),
        lambda net: net.layers.__setitem__(1, Doubled(5, 3)),
        lambda net: nn.utils.parametrizations.weight_norm(net.layers[0]),
    ],
)  # fmt: skip
def test_changed_networks_learn_as_they_predict(change):
    torch.manual_seed(0)
    net, x, y = MLP([6, 5, 3]), torch.randn(1, 4, 6), torch.randint(0, 3, (1, 4))
    change(net)
    loss = cross_entropy(net(x[0]), y[0])
    parameters = dict(net.named_parameters())
    after = {name: one.detach() - 0.1 * found for (name, one), found in
             zip(parameters.items(), torch.autograd.grad(loss, list(parameters.values())), strict=True)}  # fmt: skip
    state = ContinualState([net], OnlineSGD(0.1), [0])
    torch.testing.assert_close(state.update(ContinualBatch(x, y, 0))["loss"], loss.detach()[None])
    for name, one in state.result()[0].named_parameters():
        torch.testing.assert_close(one, after[name])


def test_unused_parameters_and_wrong_seeds(unchecked):
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.other = nn.Linear(6, 3), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    batch = ContinualBatch(torch.randn(1, 4, 6), torch.randint(0, 3, (1, 4)), 0)
    assert ContinualState([Unused()], OnlineSGD(0.1), [0]).update(batch)["loss"].isfinite()
    for seeds, said in ((0, "seeds must be of type Sequence"), (["a"], "a seed must be")):
        with pytest.raises(MesascopeError, match=said):
            ContinualState([Unused()], OnlineSGD(0.1), seeds)
