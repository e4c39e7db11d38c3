"""Learners of a stream whose task switches are judged before they learn, and notice the switches."""

import dataclasses

import numpy as np
import pytest
import torch
from examples import examples
from torch.nn.functional import mse_loss

from mesascope.errors import ArgumentError, ArgumentTypeError, NumericalError
from mesascope.meta import BayesianDescent, BayesianDescentState, ContinualMAML, MetaLearnerConfig, OnlineDescent
from mesascope.nets import ClassifierConfig
from mesascope.records import from_record, to_record
from mesascope.streams import stream
from mesascope.studies.sparse.following import Streams
from mesascope.tasks import Context, SwitchingImages
from mesascope.training import Training, fit
from mesascope.training.randomness import drawing_from

METHODS = dict(examples("method", of="batches"))
NET = ClassifierConfig("mlp", 16, size=8, classes=4)
STREAM = SwitchingImages(stay=0.8, ways=4, shots=5, domains=("digits",), size=8)
PLAN = Training(learning_rate=1e-3, schedule="constant")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_inverse_of_its_record(name):
    method = METHODS[name]()
    assert from_record(to_record(method)) == method


@pytest.mark.parametrize("name", METHODS)
def test_learning_goes_on_bit_for_bit(name):
    batches = STREAM.stream(24, 0)
    whole, first, second = (METHODS[name]().state(0) for _ in range(3))
    for step in range(24):
        expected = whole.update(batches(step))
        if step < 15:
            first.update(batches(step))
        else:
            assert second.update(batches(step)) == expected
        if step == 14:
            second.load({key: value.clone() for key, value in first.tensors().items()})
    for key, value in whole.tensors().items():
        assert torch.equal(value, second.tensors()[key]), key


@pytest.mark.parametrize("name", METHODS)
def test_learners_on_streams_of_their_own_learn_as_alone_and_go_on_bit_for_bit(name):
    def begun():
        return Streams([METHODS[name]().state(seed) for seed in (0, 1)], 12)

    streams = [STREAM.stream(12, seed) for seed in (0, 1)]
    whole, first, second = begun(), begun(), begun()
    for step in range(12):
        batches = [one(step) for one in streams]
        whole.update(batches)
        (first if step < 7 else second).update(batches)
        if step == 6:
            second.load({key: value.clone() for key, value in first.tensors().items()})
    assert whole.tensors().keys() == second.tensors().keys()
    assert all(torch.equal(value, second.tensors()[key]) for key, value in whole.tensors().items())
    alone = METHODS[name]().state(1)
    assert whole.metrics["loss"][1].tolist() == [alone.update(streams[1](step))["loss"] for step in range(12)]


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_is_judged_before_it_is_learned_from(name):
    """The first accuracy is that of the network at its start."""
    method, batch = METHODS[name](), STREAM.stream(1, 0)(0)
    network = NET.build(stream(0, "init"))
    found = method.state(0).update(batch)
    told = network(batch.x).argmax(-1) == batch.y.argmax(-1)
    assert found["accuracy"] == pytest.approx(told.float().mean().item())


@pytest.mark.parametrize("kind", ["transductive", "running"])
def test_a_batch_is_judged_with_the_statistics_that_the_method_names(kind):
    net = ClassifierConfig("convnet4", 4, size=8, classes=4)
    method = ContinualMAML(MetaLearnerConfig(net, "maml", 0.1, 1, batch_stats=kind), PLAN)
    state, batch = method.state(0), STREAM.stream(1, 0)(0)
    model = net.build(stream(0, "init")).train(kind == "transductive")
    found = state.update(batch)
    assert found["loss"] == pytest.approx(torch.nn.functional.cross_entropy(model(batch.x), batch.y).item(), rel=1e-5)


@pytest.mark.parametrize("method", ["sparse-maml-plus", "maml"])
def test_what_is_drawn_follows_the_seed(method):
    def told(seed):
        torch.manual_seed(seed)
        state = ContinualMAML(MetaLearnerConfig(NET, method, 0.1, 2), PLAN).state(0)
        return [state.update(batches(step)) for step in range(5)]

    batches = STREAM.stream(5, 0)
    assert told(0) == told(1)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_neither_reads_nor_moves_the_global_generator(name):
    batch, told = STREAM.stream(1, 0)(0), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before, state = torch.get_rng_state(), METHODS[name]().state(0)
        told.append([state.update(batch) for _ in range(3)])
        assert torch.equal(torch.get_rng_state(), before)
    assert told[0] == told[1]


@pytest.mark.parametrize("make", [lambda plan: OnlineDescent(NET, plan), lambda plan: ContinualMAML(
    MetaLearnerConfig(NET, "maml", 0.1, 2), plan)])  # fmt: skip
def test_rates_that_fall_are_refused_where_nothing_ends(make):
    with pytest.raises(ArgumentError, match="schedule must be constant, as a stream has no last step, but is 'linear'"):
        make(Training(learning_rate=1e-3))


@pytest.mark.parametrize("make", [
    lambda: OnlineDescent(torch.nn.Linear(2, 2)), lambda: MetaLearnerConfig("mlp"), lambda: BayesianDescent("mlp"),
])  # fmt: skip
def test_what_builds_no_network_is_refused(make):
    with pytest.raises(ArgumentTypeError, match=r"must be the config of a network, but is .*: pass ClassifierConfig"):
        make()


def test_learning_starts_from_what_was_learned_before():
    for make in METHODS.values():
        method = make()
        learned = method.state(1).result().state_dict()
        before = {key: torch.full_like(value, 0.01) for key, value in learned.items()}
        found = method.state(0, before).result().state_dict()
        assert all(torch.equal(value, before[key]) for key, value in found.items())


def test_descent_is_that_of_the_optimiser():
    method = OnlineDescent(NET, dataclasses.replace(PLAN, optimizer="sgd", learning_rate=0.1), steps=2)
    state, batch, network = method.state(0), STREAM.stream(1, 0)(0), NET.build(stream(0, "init"))
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(network(batch.x), batch.y)
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            parameter.data -= 0.1 * gradient
    state.update(batch)
    for own, expected in zip(state.result().parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(own, expected)


def softmax_regression():
    """A linear classifier in float64, and a batch whose first input is always 0."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(30, 5, generator=draw, dtype=torch.float64)
    x[:, 0] = 0
    y = torch.nn.functional.one_hot(torch.randint(3, (30,), generator=draw), 3).double()
    return torch.nn.Linear(5, 3, dtype=torch.float64), Context(x, y)


def bayesian(network, **settings):
    return BayesianDescentState(network, BayesianDescent(NET, **settings))


@pytest.mark.parametrize("draws", [1, 4])
def test_a_bayesian_step_is_the_formula(draws):
    """Against NumPy, a draw at a time, with the gradient X^T (softmax - y) / n."""
    network, batch = softmax_regression()
    state = bayesian(network, spread=0.7, rate=0.3, samples=draws)
    rows, n = torch.cat([batch.x, torch.ones(30, 1)], 1).numpy(), 30
    mean = np.c_[network.weight.detach().numpy(), network.bias.detach().numpy()].copy()
    spread = np.full_like(mean, 0.7)
    for step in range(3):
        with drawing_from(0, "online", step, torch.device("cpu")):
            noise = [torch.randn(draws, *one.shape, dtype=torch.float64).numpy() for one in network.parameters()]
        first, second = np.zeros_like(mean), np.zeros_like(mean)
        for weight, bias in zip(*noise, strict=True):
            eps = np.c_[weight, bias]
            scores = rows @ (mean + spread * eps).T
            shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
            gradient = (shares - batch.y.numpy()).T @ rows / n
            first, second = first + gradient / draws, second + gradient * eps / draws
        mean = mean - 0.3 * spread**2 * first
        spread = spread * np.sqrt(1 + (spread * second / 2) ** 2) - spread**2 * second / 2
        state.update(batch)
        for own, expected in ((dict(network.named_parameters()), mean), (state.spreads, spread)):
            found = np.c_[own["weight"].detach().numpy(), own["bias"].detach().numpy()]
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_with_next_to_no_spread_a_bayesian_step_is_one_of_gradient_descent():
    network, batch = softmax_regression()
    state = bayesian(network, spread=1e-13, rate=0.1 / 1e-26)
    loss = torch.nn.functional.cross_entropy(network(batch.x), batch.y)
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    expected = [one.detach() - 0.1 * own for one, own in zip(network.parameters(), gradients, strict=True)]
    state.update(batch)
    for own, other in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(own.detach(), other, rtol=1e-12, atol=1e-13)


def test_weights_grow_certain_where_the_loss_curves_and_nowhere_else():
    """Precision grows by the curvature of the loss, E[g eps] / sigma; inputs that are always 0 teach nothing."""
    network, batch = softmax_regression()
    with torch.no_grad():
        network.weight.zero_()
        network.bias.zero_()
    state = bayesian(network, spread=0.05, rate=1e-9, samples=20_000)
    state.update(batch)
    spread = state.spreads["weight"]
    assert (spread[:, 0] == 0.05).all()
    # With equal shares 1/3 of three classes, the second derivative for each weight is mean x^2 times 1/3 (1 - 1/3).
    curvature = batch.x.square().mean(0) * 2 / 9
    torch.testing.assert_close((spread**-2 - 0.05**-2)[:, 1:], curvature[1:].expand(3, 4), rtol=0.35, atol=0.02)
    assert (spread[:, 1:] < 0.05).all()


def test_spreads_stay_above_zero_when_gradients_are_huge():
    network, batch = softmax_regression()
    state = bayesian(network, spread=1e9, rate=1e-9, samples=3)
    for _ in range(5):
        state.update(batch)
    assert all((one > 0).all() and one.isfinite().all() for one in state.spreads.values())


def test_running_averages_are_those_of_the_mean_weights():
    """The same averages as if the network had seen each batch in train() mode before it learned from it."""
    method = BayesianDescent(ClassifierConfig("convnet4", 4, size=8, classes=4), samples=2)
    state, batch = method.state(0), STREAM.stream(1, 0)(0)
    network = method.net.build(stream(0, "init")).train()
    network(batch.x)
    state.update(batch)
    for (name, own), other in zip(state.result().named_buffers(), network.buffers(), strict=True):
        torch.testing.assert_close(own, other, msg=name)
    assert not state.result().training


def continual(method="maml", steps=8, **settings):
    learner = MetaLearnerConfig(NET, method, inner_lr=0.5, steps=steps)
    return ContinualMAML(learner, PLAN, **{"threshold": 0.5, **settings})


def test_a_task_with_other_labels_is_noticed():
    """A switch is a batch on which newly adapted weights have a loss lower by the threshold."""
    first = STREAM.stream(1, 0)(0)
    other = Context(first.x, first.y.roll(1, 1))
    state, switches = continual(steps=60).state(0), []
    for batch in (first, first, first, other, other, first, first):
        switches.append(state.update(batch)["switch"])
    assert switches == [0, 0, 0, 1, 0, 1, 0]
    never = continual(steps=60, threshold=50.0).state(0)
    assert [never.update(batch)["switch"] for batch in (first, first, first, other)] == [0, 0, 0, 0]


def test_no_switch_no_outer_step():
    """Slow weights move where a task ends, and only there."""
    batches = SwitchingImages(stay=1.0, ways=4, shots=5, domains=("digits",), size=8).stream(6, 0)
    state = continual(threshold=50.0).state(0)
    before = {name: value.clone() for name, value in state.result().state_dict().items()}
    accuracy = [state.update(batches(step))["accuracy"] for step in range(6)]
    assert all(torch.equal(value, before[name]) for name, value in state.result().state_dict().items())
    assert accuracy[-1] > accuracy[0] + 0.2, "fast weights learn all the same"
    assert len(state.task) == 4


def test_the_outer_step_is_maml_on_the_task_that_ended():
    """The loss of later batches after adapting to the first, weighed by how large it is, one step of SGD."""
    plan = dataclasses.replace(PLAN, optimizer="sgd", learning_rate=0.1)
    method = dataclasses.replace(continual(modulation=0.7), training=plan)
    state, batches = method.state(0), STREAM.stream(3, 0)
    learner = method.learner.build(stream(0, "init"))
    state.task = [batches(0), batches(1), batches(2)]
    state.fast = state._adapted(batches(0), None)
    later = Context(torch.cat([batches(1).x, batches(2).x]), torch.cat([batches(1).y, batches(2).y]))
    scores = torch.func.functional_call(learner.model, learner.method.adapt(learner.model, batches(0)), (later.x,))
    loss = torch.nn.functional.cross_entropy(scores, later.y)
    gradients = torch.autograd.grad(loss, list(learner.model.parameters()))
    state._learn()
    weight = 1 - torch.exp(-0.7 * loss.detach())
    for own, start, gradient in zip(
        state.result().model.parameters(), learner.model.parameters(), gradients, strict=True
    ):
        torch.testing.assert_close(own, start - 0.1 * weight * gradient)


@pytest.mark.parametrize("method", ["sparse-maml", "sparse-relu-maml"])
def test_sparse_ones_learn_their_masks_and_change_only_what_is_open(method):
    batches, state = STREAM.stream(40, 0), continual(method, threshold=0.2, mask_lr=0.1).state(0)
    numbers = [one.clone() for one in state.learner.method.numbers.values()]
    shares = [state.update(batches(step))["closed"] for step in range(40)]
    assert any(
        not torch.equal(one, new) for one, new in zip(numbers, state.learner.method.numbers.values(), strict=True)
    )
    assert 0 <= min(shares) <= max(shares) <= 1
    slow, factors = dict(state.learner.model.named_parameters()), state.learner.method.factors(state.learner.model)
    fast = state._adapted(batches(0), None)
    for name, factor in factors.items():
        assert torch.equal(fast[name][factor == 0], slow[name][factor == 0])


def test_the_loop_trains_it():
    batches, accuracy = STREAM.stream(30, 0), []
    fit(continual().state(0), batches, Training(steps=30), observe=lambda step, m: accuracy.append(m["accuracy"]))
    assert len(accuracy) == 30


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": -1}, "threshold must be at least 0"),
        ({"kept": 1}, "kept must be at least 2"),
        ({"modulation": 0}, "modulation must be greater than 0"),
        ({"spread": 0}, "spread must be greater than 0"),
        ({"rate": -1.0}, "rate must be greater than 0"),
        ({"samples": 0}, "samples must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused(settings, message):
    with pytest.raises(ArgumentError, match=message):
        BayesianDescent(NET, **settings) if settings.keys() & {"spread", "rate", "samples"} else continual(**settings)


@pytest.mark.parametrize("name", METHODS)
def test_indices_are_classes_and_batches_that_cannot_be_learned_are_refused(name, unchecked):
    one, other = METHODS[name]().state(0), METHODS[name]().state(0)
    for x, y in (STREAM.stream(3, 0)(step) for step in range(3)):
        assert one.update(Context(x, y)) == pytest.approx(other.update(Context(x, y.argmax(-1))))
    for batch, error, sentence in (
        ((x, y), ArgumentTypeError, "context must be of type Context"),
        (Context(x[:0], y[:0]), ArgumentError, r"context must be \(n, dx\) and \(n, dy\)"),
        (Context(x, y[:3]), ArgumentError, r"context must be \(n, dx\) and \(n, dy\)"),
        (Context(x, y[:, :3]), ArgumentError, "must"),
        (Context(x, y.argmax(-1) + 9), ArgumentError, "net must return a score for each class of targets"),
        (Context(x * torch.nan, y), NumericalError, "the data must be finite"),
        (Context(x, y - 0.5), ArgumentError, "(batch.y must hold classes|not be cross_entropy for targets other)"),
    ):
        with pytest.raises(error, match=sentence):
            one.update(batch)
    assert one.update(Context(x, y)) == pytest.approx(other.update(Context(x, y)))
    with pytest.raises(ArgumentError, match="start must be weights of this network"):
        METHODS[name]().state(0, start={"other": x})
    with pytest.raises(ArgumentError, match="device must be one that torch can use here"):
        METHODS[name]().state(0, device="nowhere")


def test_continual_maml_is_judged_by_the_loss_of_its_learner():
    batch = STREAM.stream(1, 0)(0)
    config = MetaLearnerConfig(NET, "maml", loss="mean-squares")
    state = ContinualMAML(config).state(0)
    expected = mse_loss(state._scores({}, batch.x), batch.y)
    assert state.update(batch)["loss"] == pytest.approx(float(expected))


def test_networks_and_starts_that_cannot_learn_are_refused(unchecked):
    with pytest.raises(ArgumentError, match="net must not be a meta-learner, which needs contexts"):
        OnlineDescent(MetaLearnerConfig(NET))
    with pytest.raises(ArgumentTypeError, match="start must be of type Mapping"):
        OnlineDescent(NET).state(0, start="a")
    with pytest.raises(ArgumentError, match="network must have parameters that require gradients"):
        BayesianDescentState(NET.build(stream(0, "init")).requires_grad_(False), BayesianDescent(NET))
