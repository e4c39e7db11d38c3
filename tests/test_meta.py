"""Inner and outer loops of MAML's family are what their equations say."""

import copy
import functools
import math
import pickle

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.checkpoint import checkpoint

from mesascope.errors import ArgumentError, MesascopeError, NumericalError
from mesascope.meta import (
    ANIL,
    BOIL,
    MAML,
    METHODS as NAMES,
    ExpMAML,
    MetaCurvature,
    MetaLearner,
    MetaLearnerConfig,
    MetaSGD,
    MTNet,
    Shrinkage,
    SparseMAML,
    SparseMAMLPlus,
    SparseReLUMAML,
    outer_loss,
)
from mesascope.modules import copied
from mesascope.nets import ClassifierConfig
from mesascope.streams import stream
from mesascope.tasks import Context, Episode, FewShotImages, LinearRegression
from mesascope.testing import check_learner
from mesascope.training import ModuleState, ParameterGroup, Training, fit, train

METHODS = [MAML, MetaSGD, ExpMAML, SparseMAML, SparseMAMLPlus, SparseReLUMAML, ANIL, BOIL, MetaCurvature, MTNet,
           Shrinkage]  # fmt: skip
DRAWN = (SparseMAMLPlus, MTNet)
FAMILY = LinearRegression(n_context=6, d_in=3, n_query=4)


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).to(dtype)


def episode(tasks=2, dtype=torch.float64):
    return FAMILY.sample(tasks, stream(0, "meta")).to(dtype)


def gradients(loss, parameters):
    return torch.autograd.grad(loss, parameters, allow_unused=True)


def slow(model, factor, rate, steps, context, order=1):
    """Parameters after inner steps one by one, and the sum of inner gradients."""
    phi = [one if order == 2 else one.detach().clone().requires_grad_() for one in model.parameters()]
    sums = [torch.zeros_like(one) for one in phi]
    for _ in range(steps):
        w, b, v, c = phi
        loss = (torch.tanh(context.x @ w.T + b) @ v.T + c - context.y).square().mean()
        inner = torch.autograd.grad(loss, phi, create_graph=order == 2)
        sums = [total + one for total, one in zip(sums, inner, strict=True)]
        phi = [one - rate * f * g for one, f, g in zip(phi, factor, inner, strict=True)]
        if order == 1:
            phi = [one.detach().requires_grad_() for one in phi]
    return phi, sums


def query_loss(phi, xq, yq):
    w, b, v, c = phi
    return (torch.tanh(xq @ w.T + b) @ v.T + c - yq).square().mean()


def outer(method, model, tasks):
    """The outer gradient by theta and by the numbers that the method learns."""
    parameters, numbers = list(model.parameters()), list(method.numbers.values())
    found = gradients(method.outer_loss(model, tasks), [*parameters, *numbers])
    return found[: len(parameters)], found[len(parameters) :]


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_first_order_updates_are_those_of_equations_4_8_and_4_9(steps):
    model, tasks, rate = network(), episode(), 0.3
    method = SparseMAML(rate, steps, loss=mse_loss)
    method.start(model, stream(0, "masks"))
    masks = [(one >= 0).double() for one in method.numbers.values()]
    assert 0 < sum(mask.sum() for mask in masks) < sum(mask.numel() for mask in masks)
    theta, m = outer(method, model, tasks)
    expected_theta = [torch.zeros_like(one) for one in model.parameters()]
    expected_m = [torch.zeros_like(one) for one in model.parameters()]
    for x, y, xq, yq in zip(*tasks.context, tasks.xq, tasks.yq, strict=True):
        phi, sums = slow(model, masks, rate, steps, Context(x, y))
        out = gradients(query_loss(phi, xq, yq), phi)
        expected_theta = [total + one / 2 for total, one in zip(expected_theta, out, strict=True)]
        expected_m = [total - rate * one * inner / 2 for total, one, inner in zip(expected_m, out, sums, strict=True)]
    torch.testing.assert_close(list(theta), expected_theta)
    torch.testing.assert_close(list(m), expected_m)


@pytest.mark.parametrize(
    ("kind", "derivative"),
    [(MetaSGD, lambda m: 1.0), (ExpMAML, lambda m: m.exp()), (SparseReLUMAML, lambda m: 1.0)],
)
def test_learned_rates_are_differentiated_by_their_rule(kind, derivative):
    model, tasks = network(), episode(1)
    method = kind(0.2, 3, loss=mse_loss)
    method.start(model, stream(0, "rates"))
    for number in method.numbers.values():  # some below zero
        number.data += 0.3 * torch.randn(number.shape, generator=stream(0, "noise")).double()
    numbers = [one.detach() for one in method.numbers.values()]
    factors = {MetaSGD: lambda m: m, ExpMAML: torch.exp, SparseReLUMAML: lambda m: m.clamp(min=0)}[kind]
    phi, sums = slow(model, [factors(m) for m in numbers], 1.0, 3, Context(tasks.context.x[0], tasks.context.y[0]))
    out = gradients(query_loss(phi, tasks.xq[0], tasks.yq[0]), phi)
    expected = [-derivative(m) * one * inner for m, one, inner in zip(numbers, out, sums, strict=True)]
    torch.testing.assert_close(list(outer(method, model, tasks)[1]), expected)


def test_generated_masks_are_drawn_for_each_task_and_learned_through_their_map():
    model, tasks = network(), episode(1)
    plus, plain = SparseMAMLPlus(0.3, 2, latent=4, loss=mse_loss), SparseMAML(0.3, 2, loss=mse_loss)
    plus.start(model, stream(0, "masks"))
    torch.manual_seed(0)
    first, second = (plus.factors(model)["0.weight"] for _ in range(2))
    assert not torch.equal(first, second)
    with torch.no_grad():
        plus.sigma.zero_()
        plus.mu += torch.tensor([1.0, -2.0, 0.5, 0.3])
    plain.start(model, stream(0, "masks"))
    for key, number in plain.numbers.items():
        number.data = (plus.maps[key] @ plus.mu + plus.numbers[key]).detach()
    expected = outer(plain, model, tasks)
    learned = [*plus.numbers.values(), plus.mu, plus.sigma]
    found = gradients(plus.outer_loss(model, tasks), [*model.parameters(), *learned])
    torch.testing.assert_close(found[:4], expected[0])
    torch.testing.assert_close(found[4:8], expected[1])
    by_mu = sum((plus.maps[key] * one[..., None]).reshape(-1, 4).sum(0)
                for key, one in zip(plus.numbers, expected[1], strict=True))  # fmt: skip
    torch.testing.assert_close(found[8], by_mu)


@pytest.mark.parametrize("steps", [1, 3])
def test_second_order_is_the_derivative_of_the_unrolled_loop(steps):
    model, tasks, rate = network(), episode(1), 0.3
    found, _ = outer(MAML(rate, steps, order=2, loss=mse_loss), model, tasks)
    context = Context(tasks.context.x[0], tasks.context.y[0])
    phi, _ = slow(model, [1.0] * 4, rate, steps, context, order=2)
    expected = gradients(query_loss(phi, tasks.xq[0], tasks.yq[0]), list(model.parameters()))
    torch.testing.assert_close(list(found), list(expected))
    first, _ = outer(MAML(rate, steps, loss=mse_loss), model, tasks)
    assert not torch.allclose(first[0], found[0], rtol=1e-2)


def test_second_order_agrees_with_finite_differences():
    model, tasks = network(), episode(1)
    method = MAML(0.3, 2, order=2, loss=mse_loss)
    weight, step = model[0].weight, 1e-6
    found = outer(method, model, tasks)[0][0][1, 2]
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            weight[1, 2] += sign * step
        losses.append(method.outer_loss(model, tasks).item())
        with torch.no_grad():
            weight[1, 2] -= sign * step
    assert found.item() == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-5)


def moved_numbers(method, model):
    """The method with its learned numbers away from where they start."""
    method.start(model, stream(0, "numbers"))
    for number in method.numbers.values():
        number.data += 0.3 * torch.randn(number.shape, generator=stream(0, "noise")).double()
    return dict(method.numbers.items())


@pytest.mark.parametrize("order", [1, 2])
def test_curvature_multiplies_gradients_along_each_axis(order):
    model, tasks = network(), episode(1)
    method = MetaCurvature(0.3, 3, order=order, loss=mse_loss)
    numbers = moved_numbers(method, model)

    def multiplied(name, gradient):
        out, *read = (one for key, one in numbers.items() if key.startswith(name.replace(".", "/")))
        return out @ gradient @ read[0].T if gradient.ndim == 2 else out @ gradient

    phi = unrolled(model, tasks, 3, order, lambda name, gradient, _: 0.3 * multiplied(name, gradient))
    agree(method, model, tasks, phi, numbers)


def test_curvature_of_a_convolution_also_multiplies_along_its_pixels():
    method, model = MetaCurvature(0.3, 1), nn.Conv2d(2, 3, 2).double()
    numbers = moved_numbers(method, model)
    gradient = torch.randn(3, 2, 2, 2, generator=stream(0, "gradient")).double()
    out, read, pixels = (numbers[f"weight/{axis}"] for axis in range(3))
    expected = 0.3 * torch.einsum("oa,ib,pc,abc->oip", out, read, pixels, gradient.flatten(2)).reshape(gradient.shape)
    found = method.changes(method.factors(model), {"weight": gradient})["weight"]
    torch.testing.assert_close(found, expected)


def test_mt_net_steps_on_the_drawn_rows_of_a_factor_of_the_weights():
    """The same weights result if T and V are kept apart, W = T V, and a step is taken on V."""
    model, context = network(), Context(*(part[0] for part in episode(1).context))
    method = MTNet(0.3, 1, loss=mse_loss)
    numbers = moved_numbers(method, model)
    torch.manual_seed(3)
    drawn = {name: (factor / 0.3 != 0).double() for name, factor in method.factors(model).items()}
    factors, torn = {}, {}
    for name, one in model.named_parameters():
        metric = numbers[f"{name.partition('.')[0]}/weight|metric"].detach()
        torn[name] = torch.linalg.solve(metric, one.detach().reshape(len(one), -1)).reshape(one.shape).requires_grad_()
        factors[name] = (metric @ torn[name].reshape(len(one), -1)).reshape(one.shape)
    w, b, v, c = factors.values()
    loss = (torch.tanh(context.x @ w.T + b) @ v.T + c - context.y).square().mean()
    for (name, one), step in zip(torn.items(), torch.autograd.grad(loss, list(torn.values())), strict=True):
        metric = numbers[f"{name.partition('.')[0]}/weight|metric"].detach()
        factors[name] = (metric @ (one - 0.3 * drawn[name] * step).reshape(len(one), -1)).reshape(one.shape)
    torch.manual_seed(3)
    adapted = method.adapt(model, context)
    assert 0 < drawn["0.weight"].mean() < 1
    for name, one in factors.items():
        torch.testing.assert_close(adapted[name], one)
    metric, odds = (
        gradients(method.outer_loss(model, episode(9)), [numbers[f"0/weight|{key}"]])[0] for key in ("metric", "odds")
    )
    assert metric.abs().min() > 0
    assert odds.abs().min() > 0


@pytest.mark.parametrize("order", [1, 2])
def test_shrinkage_descends_the_loss_and_the_distance_from_the_start(order):
    model, tasks = network(), episode(1)
    method = Shrinkage(0.3, 3, order=order, pull=0.5, loss=mse_loss)
    numbers = moved_numbers(method, model)
    layer = {name: numbers[name.partition(".")[0]].exp() for name, _ in model.named_parameters()}
    phi = unrolled(model, tasks, 3, order, lambda name, gradient, moved: 0.3 * (gradient + layer[name] * moved))
    agree(method, model, tasks, phi, numbers)
    task = MetaLearner(model, method).clone()
    for _ in range(3):
        task.adapt(mse_loss(task(tasks.context.x[0]), tasks.context.y[0]))
    torch.testing.assert_close(list(task.parameters.values()), phi)


def unrolled(model, tasks, steps, order, change):
    """Parameters after inner steps one by one; to first order, gradients and distances are constants."""
    starts = dict(model.named_parameters())
    phi, total = starts, dict.fromkeys(starts, 0.0)
    x, y = tasks.context.x[0], tasks.context.y[0]
    for _ in range(steps):
        inner = {name: one.detach().requires_grad_() for name, one in phi.items()} if order == 1 else phi
        loss = mse_loss(torch.func.functional_call(model, inner, (x,)), y)
        found = torch.autograd.grad(loss, list(inner.values()), create_graph=order == 2)
        for (name, one), gradient in zip(phi.items(), found, strict=True):
            moved = one - starts[name]
            total[name] = total[name] + change(name, gradient, moved.detach() if order == 1 else moved)
        phi = {name: one - total[name] for name, one in starts.items()}
    return list(phi.values())


def agree(method, model, tasks, phi, numbers):
    """Adapted parameters, and outer gradients for the model and the learned numbers."""
    adapted = method.adapt(model, Context(tasks.context.x[0], tasks.context.y[0]))
    torch.testing.assert_close(list(adapted.values()), phi)
    learned = [*model.parameters(), *numbers.values()]
    expected = gradients(query_loss(phi, tasks.xq[0], tasks.yq[0]), learned)
    torch.testing.assert_close(list(gradients(method.outer_loss(model, tasks), learned)), list(expected))


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("order", [1, 2])
def test_adapting_leaves_the_model_as_it_is_and_changes_what_it_should(kind, order):
    model = network()
    before = copy.deepcopy(model.state_dict())
    adapted = kind(0.3, 3, order=order, loss=mse_loss).adapt(model, Context(*(part[0] for part in episode().context)))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    expected = {ANIL: {"2.weight", "2.bias"}, BOIL: {"0.weight", "0.bias"}}.get(kind, set(before))
    changed = {name for name, value in adapted.items() if not torch.equal(value, before[name])}
    assert changed == expected or (
        kind in (SparseMAML, *DRAWN) and expected - changed == {"2.bias"}
    )  # whose one entry is closed


@pytest.mark.parametrize("architecture", ["mlp", "convnet4", "resnet12"])
def test_the_head_is_the_last_layer_with_its_bias(architecture):
    model = ClassifierConfig(architecture, width=4, size=8, classes=3).build()
    head, body = (set(kind(0.3, 1).adapted(model)) for kind in (ANIL, BOIL))
    assert head == ({"layers.2.weight", "layers.2.bias"} if architecture == "mlp" else {"head.weight", "head.bias"})
    assert head | body == dict(model.named_parameters()).keys()
    assert not head & body


def test_a_model_whose_layers_are_no_modules_has_no_head_that_is_known():
    model = torch.nn.Module()
    model.weights = torch.nn.ParameterList([torch.ones(2, 2), torch.ones(2, 2)])
    with pytest.raises(ArgumentError, match="adapt must be a function of names"):
        ANIL(0.3, 1).adapted(model)


def test_what_is_closed_for_drawn_masks_does_not_change_from_look_to_look():
    learner = MetaLearnerConfig(ClassifierConfig("mlp", width=4, size=8, classes=3), "sparse-maml-plus").build()
    before = torch.random.get_rng_state()
    assert learner.sparsity_by_parameter() == learner.sparsity_by_parameter()
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("kind", [MAML, BOIL, MetaCurvature])
def test_normalisation_may_be_left_out_of_inner_steps(kind):
    model = ClassifierConfig("resnet12", width=4, size=8, classes=3).build()
    left = set(kind(0.3, 1).adapted(model)) - set(kind(0.3, 1, norms=False).adapted(model))
    norms = {name for name, part in model.named_modules() if isinstance(part, nn.BatchNorm2d)}
    assert left == {f"{name}.{one}" for name in norms for one in ("weight", "bias")}


def test_parameters_to_adapt_may_be_chosen_by_name():
    method = MAML(0.3, 1, adapt=lambda name: name.endswith("bias"), loss=mse_loss)
    assert set(method.adapted(network())) == {"0.bias", "2.bias"}
    assert method.sparsity_by_parameter(network()) == {"0.weight": 1.0, "0.bias": 0.0, "2.weight": 1.0, "2.bias": 0.0}
    with pytest.raises(ArgumentError, match="adapt must choose at least one parameter"):
        MAML(0.3, 1, adapt=lambda name: False).adapted(network())


def test_closed_entries_stay_and_are_counted():
    model = network()
    method = SparseMAML(0.3, 3, loss=mse_loss)
    method.start(model, stream(0, "masks"))
    adapted = method.adapt(model, Context(*(part[0] for part in episode().context)))
    for name, parameter in model.named_parameters():
        stayed = adapted[name] == parameter
        assert torch.equal(stayed, method.numbers[name.replace(".", "/")] < 0)
        assert method.sparsity_by_parameter(model)[name] == pytest.approx(stayed.double().mean().item())


@pytest.mark.parametrize("kind", [kind for kind in METHODS if kind not in DRAWN])
def test_an_adapted_model_is_a_learner(kind):
    learner = MetaLearner(network(dtype=torch.float32), kind(0.1, 2, loss=mse_loss), stream(0, "init")).eval()
    check_learner(learner, FAMILY)
    assert not learner(*FAMILY.sample(3, stream(0, "learner"))[:2]).requires_grad


def test_training_goes_on_bit_for_bit():
    def state():
        learner = MetaLearner(network(dtype=torch.float32), SparseMAML(0.1, 2, loss=mse_loss), stream(0, "init"))
        return ModuleState(learner, MetaLearner.loss, plan)

    def batch_at(step):
        return FAMILY.sample(4, stream(0, "train", step))

    plan = Training(steps=6, learning_rate=0.01)
    whole, first, second = state(), state(), state()
    fit(whole, batch_at, plan)
    for step in range(3):
        first.update(batch_at(step))
    second.load(first.tensors())
    for step in range(3, 6):
        second.update(batch_at(step))
    for name, value in whole.tensors().items():
        assert torch.equal(value, second.tensors()[name]), name


def normalised():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1)).double()


def statistics(model, x, phi):
    """Mean and variance of what BatchNorm meets."""
    hidden = nn.functional.linear(x, phi["0.weight"], phi["0.bias"])
    return hidden.mean(0), hidden.var(0, correction=0)


@pytest.mark.parametrize("kind", ["transductive", "support", "running"])
def test_batch_norm_normalises_by_what_was_asked_for(kind):
    model = normalised()
    model[1].running_mean += 0.5
    before = copy.deepcopy(model.state_dict())
    method = MAML(0.3, 2, batch_stats=kind, loss=mse_loss)
    tasks = episode(1)
    context, xq = Context(tasks.context.x[0], tasks.context.y[0]), tasks.xq[0]
    phi = method.adapt(model, context)
    mean, variance = statistics(model, xq if kind == "transductive" else context.x, phi)
    if kind == "running":
        mean, variance = model[1].running_mean, model[1].running_var
    hidden = nn.functional.linear(xq, phi["0.weight"], phi["0.bias"])
    hidden = (hidden - mean) / (variance + model[1].eps).sqrt() * phi["1.weight"] + phi["1.bias"]
    expected = nn.functional.linear(hidden.tanh(), phi["3.weight"], phi["3.bias"])
    found = method.predicted(model, Context(context.x[None], context.y[None]), xq[None])[0]
    torch.testing.assert_close(found, expected)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert model[1].training
    assert model[1].momentum == 0.1


@pytest.mark.parametrize("kind", ["transductive", "support", "running"])
@pytest.mark.parametrize(("order", "steps"), [(2, 2), (1, 0)])
def test_outer_gradients_pass_through_the_statistics_of_batch_norm(kind, order, steps, unchecked):
    model, tasks = normalised(), episode(2)
    method = MAML(0.3, steps, order=order, batch_stats=kind, loss=mse_loss)
    names, values = zip(*((name, one.detach().requires_grad_()) for name, one in model.named_parameters()), strict=True)

    def loss(*values):
        wrapped = _Called(model, lambda: method.outer_loss(model, tasks))
        return torch.func.functional_call(wrapped, {f"model.{n}": v for n, v in zip(names, values, strict=True)}, ())

    assert torch.autograd.gradcheck(loss, values)


class _Called(nn.Module):
    def __init__(self, model, call):
        super().__init__()
        self.model, self.call = model, call

    def forward(self):
        return self.call()


def test_batch_norm_without_running_averages_is_told_so():
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 1)).double()
    tasks = episode(1)
    with pytest.raises(ArgumentError, match="batch_stats must not be 'running' for a model whose BatchNorm keeps no"):
        MAML(0.3, 1, batch_stats="running", loss=mse_loss).outer_loss(model, tasks)
    support = MAML(0.3, 1, batch_stats="support", loss=mse_loss)
    few = support.predicted(model, tasks.context, tasks.xq[:, :2])
    torch.testing.assert_close(support.predicted(model, tasks.context, tasks.xq)[:, :2], few)


class Odd(nn.Module):
    """A parameter that nothing depends on, one with the name of a method, and a look at values."""

    def __init__(self):
        super().__init__()
        self.keys, self.unused = nn.Parameter(torch.ones(3, 1)), nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x @ self.keys * (2.0 if x.sum() > 0 else 1.0)


@pytest.mark.parametrize("order", [1, 2])
def test_any_module_may_adapt(order):
    model, tasks = Odd().double(), episode()
    method = SparseMAML(0.1, 2, order=order, loss=mse_loss, closed=0.0)
    method.start(model, stream(0, "masks"))
    whole = method.predicted(model, tasks.context, tasks.xq)
    for index in range(2):
        context = Context(tasks.context.x[index], tasks.context.y[index])
        phi = method.adapt(model, context)
        torch.testing.assert_close(whole[index], torch.func.functional_call(model, phi, (tasks.xq[index],)))
        torch.testing.assert_close(phi["unused"], model.unused)


def test_a_learner_answers_in_inference_mode():
    learner, tasks = MetaLearner(network(), SparseMAML(0.1, 2, loss=mse_loss)).eval(), episode()
    expected = learner(tasks.context, tasks.xq)
    with torch.inference_mode():
        inside = episode()
        torch.testing.assert_close(learner(inside.context, inside.xq), expected)


def test_a_method_is_of_one_model_and_of_the_parameters_that_it_began_with():
    first, method = network(), SparseMAML(0.1, 2, loss=mse_loss)
    first[0].requires_grad_(False)
    learner = MetaLearner(first, method)
    tasks = episode()
    before = learner(tasks.context, tasks.xq).detach()
    torch.testing.assert_close(learner.requires_grad_(False)(tasks.context, tasks.xq), before)
    with pytest.raises(ArgumentError, match=r"method must be new, but is .*: make one per model"):
        MetaLearner(network(), method, stream(0, "masks"))
    with pytest.raises(
        ArgumentError, match=r"model must have the parameter 2\.weight \(1, 5\) that the method began with"
    ):
        method.outer_loss(nn.Linear(3, 1).double(), tasks)


def test_what_cannot_be_adapted_to_is_refused():
    method, tasks = MAML(0.1, 1, loss=mse_loss), episode()
    with pytest.raises(ArgumentError, match=r"context must be \(n, dx\) and \(n, dy\), but is .*: pass one task's"):
        method.adapt(network(), tasks.context)
    with pytest.raises(ArgumentError, match=r"model must read inputs \(.*, 3\) of a task, but Linear.* does not"):
        MAML(0.1, 1, loss=mse_loss).outer_loss(nn.Linear(4, 1), episode(2))
    with pytest.raises(ArgumentError, match=r"model must return predictions of the shape \(.*, 1\) of the targets"):
        method.outer_loss(nn.Linear(3, 4).double(), tasks)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inner_lr": 0.0, "steps": 1}, "inner_lr must be greater than 0"),
        ({"inner_lr": 0.1, "steps": -1}, "steps must be at least 0"),
        ({"inner_lr": 0.1, "steps": 1, "order": 3}, "order must be 1 or 2, but is 3"),
        ({"inner_lr": 0.1, "steps": 1, "adapt": "tail"}, "adapt must be one of"),
        ({"inner_lr": 0.1, "steps": 1, "batch_stats": "batch"}, "batch_stats must be one of"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        MAML(**arguments)


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ArgumentError, match="model must have parameters, but is"):
        MAML(0.1, 1).adapted(nn.Tanh())


@pytest.mark.parametrize("order", [1, 2])
def test_a_frozen_model_adapts_as_it_did(order):
    """Models that are read from a run are frozen."""
    model, tasks = network(), episode(3)
    method = MAML(0.3, 2, order=order, loss=mse_loss)
    expected = method.predicted(model, tasks.context, tasks.xq)
    model.requires_grad_(False)
    torch.testing.assert_close(method.predicted(model, tasks.context, tasks.xq), expected)


def test_order_of_tasks_does_not_matter():
    model, tasks = network(), episode(3)
    method = SparseMAML(0.3, 2, loss=mse_loss)
    turned = Episode(Context(*(part.flip(0) for part in tasks.context)), tasks.xq.flip(0), tasks.yq.flip(0))
    torch.testing.assert_close(method.outer_loss(model, tasks), method.outer_loss(model, turned))


def small(method="sparse-maml", **settings):
    model = ClassifierConfig("mlp", width=6, in_channels=3, size=1, classes=1)
    return MetaLearnerConfig(model, method, 0.1, 2, loss="mean-squares", **settings)


@pytest.mark.parametrize("method", [name for name, kind in NAMES.items() if kind not in DRAWN])
def test_members_of_an_ensemble_train_as_they_would_alone(method):
    plan = Training(steps=5, batch=4, learning_rate=0.01)
    groups = [ParameterGroup(("method.*",), learning_rate=0.1)] if small(method).build().method.numbers else []
    both = train(small(method).build, FAMILY, plan, [0, 1], loss=outer_loss, parameter_groups=groups)
    for seed in (0, 1):
        learner = small(method).build(stream(seed, "init"))
        before = copy.deepcopy(learner.state_dict())
        alone = ModuleState(learner, MetaLearner.loss, plan, parameter_groups=groups)
        fit(alone, lambda step, seed=seed: FAMILY.sample(4, stream(seed, "train", step)), plan)
        for name, value in both[seed].state_dict().items():
            torch.testing.assert_close(value, learner.state_dict()[name], rtol=1e-4, atol=1e-6)
        moved = [
            (value - before[name]).abs().max() for name, value in both[seed].state_dict().items() if "method" in name
        ]
        assert not moved or max(moved) > 0.05, "their learning rate is ten times that of weights"


@pytest.mark.parametrize("closed", [0.0, 0.3, 0.9, 1.0])
def test_as_many_masks_start_closed_as_asked(closed):
    model = ClassifierConfig("mlp", width=100, size=28, classes=10)
    learner = MetaLearnerConfig(model, closed=closed).build(stream(0, "init"))
    shares, sizes = (
        learner.sparsity_by_parameter(),
        {name: one.numel() for name, one in learner.model.named_parameters()},
    )
    assert sum(shares[name] * sizes[name] for name in sizes) / sum(sizes.values()) == pytest.approx(closed, abs=0.01)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "fomaml"}, "method must be one of"),
        ({"method": "maml", "closed": 0.5}, "closed must be None for maml"),
        ({"closed": 1.5}, "closed must be at most 1"),
        ({"loss": "l1"}, "loss must be one of"),
        ({"inner_lr": 0}, "inner_lr must be greater than 0"),
    ],
)
def test_configs_that_build_nothing_are_refused(settings, message):
    with pytest.raises(ArgumentError, match=message):
        MetaLearnerConfig(**settings)


# Modules that hold one part twice, and other modules of torch's


class Mixing(nn.Module):
    """Three layers of width 3 and one that answers; what the layers are, and what they share, is said outside."""

    def __init__(self, first, second, reads=lambda x: x):
        super().__init__()
        self.first, self.second, self.last, self.reads = first, second, nn.Linear(3, 1), reads

    def forward(self, x):
        return self.last(self.second(self.first(self.reads(x)).tanh()).tanh())


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(3, 3)

    def forward(self, x):
        return self.layer(x)[0]


class Marked(nn.Module):
    """Adds a learned vector by the sign of the first number, whose gradients would be sparse."""

    def __init__(self):
        super().__init__()
        self.marks = nn.Embedding(2, 3, sparse=True)

    def forward(self, x):
        return x + self.marks((x[..., 0] > 0).long())


class Checkpointed(nn.Module):
    """Would be called again in the backward pass, with other weights than before."""

    def __init__(self, reentrant):
        super().__init__()
        self.layer, self.reentrant = nn.Linear(3, 3), reentrant

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=self.reentrant)


class Writing(nn.Module):
    def forward(self, x):
        return x.mul_(1.5).add_(1.0)


def tied():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return Mixing(first, second)


def twice():
    layer = nn.Linear(3, 3)
    return Mixing(layer, layer)


def nested():
    part = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    return Mixing(nn.Sequential(part, nn.Linear(3, 3)), nn.Sequential(part, part))


def buffers():
    first, second = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    second.running_mean, second.running_var = first.running_mean, first.running_var
    return Mixing(first, second)


def normed(norm):
    return Mixing(norm(nn.Linear(3, 3)), nn.Identity())


class Referring(nn.Module):
    """Reads its weights from a list and a dictionary, and keeps what it made of its last batch in another."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen, self.last = nn.Linear(3, 3), {}, None
        self.weights, self.biases = [self.layer.weight], {"first": (self.layer.bias,)}

    def forward(self, x):
        self.last = self.seen["x"] = x @ self.weights[0].mT + self.biases["first"][0]
        return self.last


def encoding():
    layer = nn.TransformerEncoderLayer(3, 1, 4, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


ODD = {
    "tied weights": tied,
    "one layer twice": twice,
    "one part three times": nested,
    "one buffer twice": buffers,
    "attention": lambda: Mixing(encoding(), nn.Identity()),
    "attention in eval mode": lambda: Mixing(encoding(), nn.Identity()).eval(),
    "recurrent": lambda: Mixing(Recurrent(), nn.Identity()),
    "weight norm": lambda: normed(nn.utils.parametrizations.weight_norm),
    "old weight norm": lambda: normed(nn.utils.weight_norm),
    "spectral norm": lambda: normed(nn.utils.parametrizations.spectral_norm).eval(),
    "sparse gradients": lambda: Mixing(Marked(), nn.Identity()),
    "refers to its weights": lambda: Mixing(nn.Linear(3, 3), Referring()),
    "writes into its input": lambda: Mixing(Writing(), nn.ReLU(inplace=True)),
}


def odd(name):
    torch.manual_seed(0)
    return ODD[name]().double()


def by_hand(model, theta, tasks, rate, steps):
    """The mean query loss of copies of a model that torch's own optimiser has taken from theta, and its gradient."""
    losses, gradients = [], torch.zeros_like(theta)
    for x, y, xq, yq in zip(*tasks.context, tasks.xq, tasks.yq, strict=True):
        own = copied("model", model)
        nn.utils.vector_to_parameters(theta.clone(), own.parameters())
        for _ in range(steps):
            own.zero_grad()
            mse_loss(own(x.clone()), y).backward()
            with torch.no_grad():
                for one in own.parameters():
                    one -= rate * (torch.zeros(()) if one.grad is None else one.grad.to_dense())
        own.zero_grad()
        loss = mse_loss(own(xq.clone()), yq)
        loss.backward()
        losses.append(loss.detach())
        gradients += torch.cat([
            (torch.zeros_like(one) if one.grad is None else one.grad.to_dense()).flatten() for one in own.parameters()
        ])  # fmt: skip
    return torch.stack(losses).mean(), gradients / len(losses)


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", ODD)
def test_any_module_adapts_as_copies_of_it_do_and_stays_as_it_is(name, order):
    """The first order has the gradient where the steps end; the second is checked by differences of losses by hand."""
    model, tasks, rate, steps = odd(name), episode(2), 0.1, 2
    theta = nn.utils.parameters_to_vector(model.parameters()).detach()
    held = [(part, dict(part._parameters), dict(part._buffers), dict(vars(part))) for part in model.modules()]
    before = copy.deepcopy(model.state_dict())
    method = MAML(rate, steps, order=order, loss=mse_loss)
    loss = method.outer_loss(model, tasks)
    method.adapt(model, Context(*(part[0] for part in tasks.context)))
    for part, parameters, buffers, attributes in held:
        assert all(part._parameters[key] is one for key, one in parameters.items())
        assert all(part._buffers[key] is one for key, one in buffers.items())
        assert {key for key, one in vars(part).items() if one is not attributes.get(key)} <= {"_flat_weight_refs"}
    assert all(torch.equal(one, before[key]) for key, one in model.state_dict().items())
    expected, slope = by_hand(model, theta, tasks, rate, steps)
    torch.testing.assert_close(loss.detach(), expected)
    found = torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(model.parameters()))])
    if order == 1:
        torch.testing.assert_close(found, slope)
        return
    along = torch.randn(len(theta), generator=stream(0, "along"), dtype=torch.float64)
    ahead, behind = (by_hand(model, theta + sign * 1e-5 * along, tasks, rate, steps)[0] for sign in (1, -1))
    torch.testing.assert_close(found @ along, (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("order", [1, 2])
def test_a_module_that_fails_midway_stays_as_it_is(order):
    model = odd("one layer twice")
    weight, calls = model.first.weight, []
    model.reads = lambda x: x if calls.append(1) or len(calls) < 3 else 1 / 0
    with pytest.raises(ZeroDivisionError):
        MAML(0.1, 5, order=order, loss=mse_loss).adapt(model, Context(*(part[0] for part in episode().context)))
    assert model.first.weight is model.second.weight is weight


def test_heads_and_names_of_tied_weights_are_those_of_every_place():
    model = odd("tied weights")
    model.last = nn.Identity()
    assert set(ANIL(0.1, 1).adapted(model)) == {"first.weight", "second.bias"}
    assert set(BOIL(0.1, 1).adapted(model)) == {"first.bias"}
    assert set(MAML(0.1, 1, adapt=lambda name: name == "second.weight").adapted(model)) == {"first.weight"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.LazyLinear(1), "model must have parameters of known shapes, but weight is not initialised yet: call the"),
        (Mixing(Checkpointed(False), nn.Identity()).double(), "Mixing must not checkpoint activations.*: switch"),
        (Mixing(Checkpointed(True), nn.Identity()).double(), "Mixing must not checkpoint activations.*: switch"),
        (Recurrent().layer.double(), "a learner must return a torch tensor, but GRU.* returned tuple: return the pred"),
    ],
)
def test_modules_that_cannot_adapt_are_refused(model, message):
    with pytest.raises(MesascopeError, match=message):
        MAML(0.1, 1, order=2, loss=mse_loss).outer_loss(model, episode(2))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_an_operation_without_a_second_derivative_is_told_so():
    model = Mixing(nn.Linear(3, 3), nn.Identity(), reads=lambda x: x)
    targets = torch.zeros(6, dtype=torch.long)
    model.last.forward = lambda x: nn.functional.multi_margin_loss(
        x * model.last.weight, targets[: len(x)], reduction="none"
    )[:, None]
    learner = MetaLearner(model.double(), MAML(0.1, 1, order=2, loss=mse_loss))
    with pytest.raises(
        ArgumentError, match=r"multi_margin_loss.* pass order=1 to a meta-learner, or replace the operation"
    ):
        ModuleState(learner, MetaLearner.loss, Training(steps=1)).update(episode(2))


def test_running_out_of_memory_is_not_tried_again(monkeypatch):
    model, calls = network(), []

    def call(x):
        calls.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model[0], "forward", call)
    with pytest.raises(ArgumentError, match="the tasks must fit into memory, but Sequential ran out of it: pass fewer"):
        MAML(0.1, 2, loss=mse_loss).outer_loss(model, episode(2))
    assert len(calls) == 1
    learner = MetaLearner(model, MAML(0.1, 2, loss=mse_loss))
    for ask in (lambda: learner(*episode(1)[:2]), lambda: learner.clone()(torch.ones(2, 3).double())):
        with pytest.raises(ArgumentError, match="must fit into memory"):
            ask()


def batch_normed(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()


def test_a_copy_for_one_task_normalises_as_its_learner_does():
    """An eval() learner too, as `train` returns it: its running averages are those of no task."""
    x, y, xq = torch.randn(6, 3).double(), torch.eye(3).double().repeat(2, 1), torch.randn(4, 3).double()
    learner = MetaLearner(batch_normed(), MAML(0.5, 2)).eval()
    task = learner.clone()
    for _ in range(2):
        task.adapt(cross_entropy(task(x), y))
    torch.testing.assert_close(task(xq), learner(Context(x[None], y[None]), xq[None])[0])
    assert not learner.model[1].training
    running = MetaLearner(batch_normed(), MAML(0.5, 2, batch_stats="running"))
    alone = running.clone()(xq[:1])
    torch.testing.assert_close(alone, running.clone()(xq)[:1])
    with pytest.raises(ArgumentError, match="batch_stats must not be support for a copy"):
        MetaLearner(batch_normed(), MAML(0.5, 2, batch_stats="support")).clone()


def test_steps_under_no_grad_are_refused_in_words():
    task = MetaLearner(network(), MAML(0.1, 1, loss=mse_loss)).clone()
    x = torch.randn(4, 3).double()
    with torch.no_grad(), pytest.raises(ArgumentError, match="loss must be computed while gradients are recorded"):
        task.adapt(mse_loss(task(x), x[:, :1]))


def test_parameters_that_are_frozen_later_stay_as_they_are():
    learner, tasks = MetaLearner(network(), SparseMAML(0.5, 2, loss=mse_loss)), episode(1)
    learner.model[0].requires_grad_(False)
    phi = learner.method.adapt(learner.model, Context(tasks.context.x[0], tasks.context.y[0]))
    assert sorted(phi) == ["2.bias", "2.weight"]
    assert learner.sparsity_by_parameter()["0.weight"] == 1
    head = MetaLearner(network(), ANIL(0.5, 2, loss=mse_loss))
    head.model[2].requires_grad_(False)
    with pytest.raises(ArgumentError, match="model must not freeze all parameters that inner steps change"):
        head.loss(tasks)


def test_classifiers_are_not_trained_by_squares_unnoticed():
    config = MetaLearnerConfig(ClassifierConfig("mlp", width=4, size=8, classes=2), "maml")
    with pytest.raises(ArgumentError, match=r"loss must be mesascope\.meta\.outer_loss for this classifier"):
        train(config.build, FewShotImages(ways=2), Training(2, 2), [0])
    with pytest.raises(MesascopeError, match="pass outer_loss for an ensemble"):
        train(config.build, FewShotImages(ways=2), Training(2, 2), [0], loss=MetaLearner.loss)


def test_a_learner_around_an_own_module_is_saved_as_the_page_says(tmp_path):
    def own(method):
        return MetaLearner(network().float(), method(0.5, 2, loss=mse_loss))

    tasks = episode(2).map(torch.Tensor.float)
    for method in (MAML, SparseMAML):
        learner, again = own(method), own(method)
        with torch.no_grad():
            for weight in learner.parameters():
                weight += 0.1
        learner(tasks.context, tasks.xq)
        again(tasks.context, tasks.xq)
        safetensors.torch.save_model(learner, str(tmp_path / "learner"))
        safetensors.torch.load_model(again, str(tmp_path / "learner"))
        assert torch.equal(again(tasks.context, tasks.xq), learner(tasks.context, tasks.xq))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_a_copy_adapted_by_losses_takes_the_inner_steps_of_its_method(method, order):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    learner = MetaLearner(model, method(0.3, 3, order=order, loss=mse_loss))
    x, y, xq, yq = (torch.randn(1, 6, width, dtype=torch.float64) for width in (4, 2, 4, 2))

    def gradients(loss):
        return torch.autograd.grad(loss, list(learner.parameters()), materialize_grads=True, allow_unused=True)

    torch.manual_seed(1)  # masks of sparse-MAML+ are drawn
    expected = gradients(learner.loss(Episode(Context(x, y), xq, yq)))
    torch.manual_seed(1)
    task = learner.clone()
    for _ in range(3):
        task.adapt(mse_loss(task(x[0]), y[0]))
    for found, right in zip(gradients(mse_loss(task(xq[0]), yq[0])), expected, strict=True):
        torch.testing.assert_close(found, right)
    assert all(one.grad is None for one in model.parameters())


def test_copies_leave_modules_under_two_names_and_assigned_buffers_as_they_are():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.twice = nn.Sequential(self.layer, nn.Tanh(), self.layer)
            self.register_buffer("calls", torch.ones(()))

        def forward(self, x):
            self.calls = self.calls + 1
            return self.twice(x) * self.calls

    model, x, y = Counting(), torch.randn(6, 4), torch.randn(6, 4)
    plain, before = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    learner = MetaLearner(model, MAML(0.05, 2, loss=mse_loss))
    task, descent = learner.clone(), torch.optim.SGD(plain.parameters(), 0.05)
    for _ in range(2):
        task.adapt(mse_loss(task(x), y))
        descent.zero_grad()
        mse_loss(plain(x), y).backward()
        descent.step()
    torch.testing.assert_close(task(x), plain(x))
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert isinstance(model.layer.weight, nn.Parameter)


@pytest.mark.parametrize("layer", ["attention", "weight norm"])
def test_second_derivatives_of_copies_are_those_of_the_learner(layer):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.own(x[None], x[None], x[None], need_weights=False)[0][0])

    weighted = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
    model = Attention() if layer == "attention" else nn.Sequential(weighted, nn.Tanh(), nn.Linear(5, 2))
    learner = MetaLearner(model.double(), MAML(0.2, 2, order=2, loss=mse_loss))
    x, y, xq, yq = (torch.randn(1, 6, width, dtype=torch.float64) for width in (4, 2, 4, 2))
    task = learner.clone()
    for _ in range(2):
        task.adapt(mse_loss(task(x[0]), y[0]))
    own = torch.autograd.grad(mse_loss(task(xq[0]), yq[0]), list(learner.parameters()))
    expected = torch.autograd.grad(learner.loss(Episode(Context(x, y), xq, yq)), list(learner.parameters()))
    for found, right in zip(own, expected, strict=True):
        torch.testing.assert_close(found, right)


def test_a_copy_of_a_frozen_module_adapts_all_its_parameters():
    learner = MetaLearner(nn.Linear(3, 1).requires_grad_(False), MAML(0.1, 1, loss=mse_loss))
    task, x, y = learner.clone(), torch.randn(5, 3), torch.randn(5, 1)
    task.adapt(mse_loss(task(x), y))
    torch.testing.assert_close(task(x), learner(Context(x, y), x))


def test_an_outer_loss_is_the_mean_over_all_leading_axes(unchecked):
    learner = MetaLearner(nn.Linear(4, 3), MAML(0.1, 2))
    x, xq = torch.randn(2, 5, 6, 4), torch.randn(2, 5, 7, 4)
    y, yq = (torch.eye(3)[torch.randint(3, one.shape[:-1])] for one in (x, xq))
    flat = Episode(Context(x.flatten(0, 1), y.flatten(0, 1)), xq.flatten(0, 1), yq.flatten(0, 1))
    torch.testing.assert_close(learner.loss(Episode(Context(x, y), xq, yq)), learner.loss(flat))
    losses = [learner.loss(flat.map(lambda part, task=task: part[task])) for task in range(10)]
    torch.testing.assert_close(learner.loss(flat), torch.stack(losses).mean())
    torch.testing.assert_close(learner.loss(flat._replace(yq=flat.yq.argmax(-1))), learner.loss(flat))
    for wrong, sentence in (
        (flat._replace(yq=flat.yq[:4]), "yq must have one row for each query"),
        (flat._replace(yq=flat.yq[:, :6]), "yq must have one row for each query"),
        (
            flat._replace(xq=flat.xq[:, :0], yq=flat.yq[:, :0]),
            "yq must have one row for each query, and xq at least one",
        ),
        (
            flat._replace(context=Context(*(part[:, :0] for part in flat.context))),
            "context must have at least one pair",
        ),
        (flat._replace(yq=flat.yq[..., 0]), r"model must return predictions of the shape \(10, 7\) of the targets"),
        (tuple(flat), "episode must be of type Episode"),
    ):
        with pytest.raises(MesascopeError, match=sentence):
            learner.loss(wrong)


def test_losses_that_give_no_number_or_no_gradient_are_refused(unchecked):
    x, y = torch.randn(5, 3), torch.randn(5, 1)
    for loss, sentence in (
        (cross_entropy, "loss must not be cross_entropy for a single target"),
        (functools.partial(mse_loss, reduction="none"), r"loss must return a tensor with one number, but is \(5, 1\)"),
        (lambda scores, y: 1.0, "loss must return a tensor with one number, but is 'float'"),
        (nn.CrossEntropyLoss(), "loss must not be cross_entropy for a single target"),
        (lambda scores, y: torch.ones(()), "loss must depend on the model's parameters"),
        (
            lambda scores, y: scores @ y,
            r"loss must take predictions \(5, 1\) and targets \(5, 1\) of torch.float32, but",
        ),
    ):
        with pytest.raises(ArgumentError, match=sentence):
            MAML(0.1, 1, loss=loss).adapt(nn.Linear(3, 1), Context(x, y))
    with pytest.raises(ArgumentError, match=r"loss must take predictions .* but cross_entropy does not"):
        MAML(0.1, 1).adapt(nn.Linear(3, 2), Context(x, torch.tensor([0, 1, 2, 0, 1])))
    with pytest.raises(NumericalError, match="inner steps must stay finite, but weight does not within 9 steps"):
        MAML(1e9, 9, loss=mse_loss).adapt(nn.Linear(3, 1), Context(x, y))
    with pytest.raises(ArgumentError, match="start must be the parameters"):
        MAML(0.1, 1, loss=mse_loss).adapt(nn.Linear(3, 1), Context(x, y), {"other": torch.ones(1)})


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 2).double()

    def forward(self, x):
        return self.two(self.one(x).tanh().double()).to(x)


@pytest.mark.parametrize("method", METHODS)
def test_learners_are_pickled_and_have_parameters_of_several_dtypes(method):
    learner = MetaLearner(Mixed(), method(0.1, 2))
    again, y = pickle.loads(pickle.dumps(learner)), torch.eye(2)[torch.randint(2, (2, 3, 6))]
    tasks = Episode(Context(torch.randn(3, 6, 4), y[0]), torch.randn(3, 6, 4), y[1])
    for one in (learner, again):
        torch.manual_seed(0)
        one.loss(tasks).backward()
    for one, other in zip(learner.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_loss_that_cannot_adapt_a_copy_is_refused(unchecked):
    learner = MetaLearner(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), SparseMAML(0.1, steps=1))
    task = learner.clone()
    before = task._model[1].running_mean.clone()
    found = task(torch.randn(5, 3))
    assert torch.equal(task._model[1].running_mean, before)
    for loss, sentence in (
        (found.square(), r"loss must be one number, but is \(5, 2\): average it"),
        (found.mean() * math.nan, "loss must be finite, but is nan: check the task"),
        (torch.tensor(1.0), "loss must depend on predictions of this copy"),
        (learner.clone()(torch.randn(5, 3)).mean(), "loss must depend on predictions of this copy"),
        (learner.model(torch.randn(5, 3)).mean(), "loss must depend on predictions of this copy"),
        (torch.ones(3, requires_grad=True).sum(), "loss must depend on predictions of this copy, but is 3.0"),
    ):
        with pytest.raises(ArgumentError, match=sentence):
            task.adapt(loss)


def test_heads_are_those_of_the_whole_model():
    """Also if they are frozen or weight-normed."""
    frozen = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    frozen[4].requires_grad_(False)
    assert sorted(BOIL(0.1, 1).adapted(frozen)) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    with pytest.raises(ArgumentError, match="adapt must choose at least one parameter"):
        ANIL(0.1, 1).adapted(frozen)
    normed = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)))
    parts = [f"2.parametrizations.weight.original{part}" for part in (0, 1)]
    assert sorted(ANIL(0.1, 1).adapted(normed)) == ["2.bias", *parts]
    assert sorted(BOIL(0.1, 1).adapted(normed)) == ["0.bias", "0.weight"]
    pull, masks = Shrinkage(0.1, 1), MTNet(0.1, 1)
    for method in (pull, masks):
        method.start(normed, stream(0, "init"))
    assert sorted(pull.numbers) == ["0", "2"]
    assert masks._weight_of("2.bias") == parts[1]


def test_statistics_of_the_context_are_those_of_all_its_rows():
    """A module may fold three tokens of each example into the rows that BatchNorm sees."""

    class Folds(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = nn.BatchNorm1d(2), nn.Linear(6, 2)

        def forward(self, x):
            return self.out(self.norm(x.reshape(-1, 2)).reshape(len(x), 6))

    model, x, xq = Folds().double(), torch.randn(1, 5, 6).double(), torch.randn(1, 4, 6).double()
    rows = x.reshape(-1, 2)
    scaled = (xq.reshape(-1, 2) - rows.mean(0)) / (rows.var(0, correction=0) + 1e-5).sqrt()
    found = MAML(0.1, 0, loss=mse_loss, batch_stats="support").predicted(model, Context(x, x[..., :2]), xq)
    torch.testing.assert_close(found[0], model.out(scaled.reshape(4, 6)))


@pytest.mark.parametrize("method", [MAML, Shrinkage])
def test_steps_continue_from_adapted_parameters(method):
    model, (context, *_) = network(), episode(1)
    own = Context(*(one[0] for one in context))

    def made(steps):
        return method(0.1, steps, loss=mse_loss, **{"pull": 1.0} if method is Shrinkage else {})

    whole, first = (made(steps).adapt(model, own) for steps in (3, 1))
    for name, one in made(2).adapt(model, own, start=first).items():
        torch.testing.assert_close(one, whole[name])


def test_first_order_keeps_as_many_tensors_for_more_steps():
    def kept(steps):
        left, seen = [MetaLearner(network(), Shrinkage(0.1, steps, loss=mse_loss)).loss(episode()).grad_fn], set()
        while left:
            node = left.pop()
            if node is not None and node not in seen:
                seen.add(node)
                left += [following for following, _ in node.next_functions]
        return len(seen)

    assert kept(12) == kept(3)


def test_an_eval_learner_is_differentiated_if_the_task_requires_it():
    learner, tasks = MetaLearner(network(), MAML(0.2, 1, loss=mse_loss)).eval(), episode()
    assert not learner(tasks.context, tasks.xq).requires_grad
    xq = tasks.xq.clone().requires_grad_()
    (found,) = torch.autograd.grad(learner(tasks.context, xq).sum(), xq)
    assert found.abs().max() > 0


@pytest.mark.parametrize("method", [MetaCurvature, MTNet])
def test_sparsity_sees_matrices_whose_rows_sum_to_0(method):
    learner = MetaLearner(nn.Linear(2, 2, bias=False), method(0.1, 1, loss=mse_loss))
    for name, one in learner.method.numbers.items():
        if one.ndim > 1:
            one.data = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
        elif name.endswith("odds"):
            one.data += 100
    assert learner.sparsity_by_parameter()["weight"] == 0


def test_cross_entropy_needs_classes(unchecked):
    class Single(nn.Linear):
        def forward(self, x):
            return super().forward(x)[..., 0]

    with pytest.raises(ArgumentError, match="loss must not be cross_entropy for a single target"):
        MAML(0.1, 1).adapt(Single(3, 1), Context(torch.randn(6, 3), torch.randn(6)))


def test_losses_of_inference_tensors_and_of_no_task(unchecked):
    learner = MetaLearner(nn.Linear(3, 1), MAML(0.1, 1, loss=mse_loss))
    with torch.inference_mode():
        drawn = episode(dtype=torch.float32)
    torch.testing.assert_close(learner.loss(drawn), learner.loss(episode(dtype=torch.float32)))
    with pytest.raises(ArgumentError, match="episode must have at least one task"):
        learner.loss(episode(0, dtype=torch.float32))
