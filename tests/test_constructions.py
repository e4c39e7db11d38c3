"""Weights of constructions; tests/test_registries.py tests that constructions equal their algorithms."""

import pytest
import torch

from mesascope.constructions import copy_tokens, gradient_descent, kernel_gradient_descent, softmax_gradient_descent
from mesascope.errors import ArgumentError
from mesascope.learners import Centred, GradientDescent
from mesascope.nets import (
    Alternating,
    EmbeddedDescentConfig,
    EmbeddingConfig,
    InContextRegressorConfig,
    TokenMLP,
    TransformerConfig,
)
from mesascope.streams import stream
from mesascope.tasks import Context, LinearRegression
from mesascope.training import Ensemble


def episode(n=6, d=3, d_out=1, n_query=2):
    family = LinearRegression(n, d, d_out, n_query=n_query)
    return family.sample(7, stream(0, "constructions")).to(torch.float64)


def gap(a, b, tasks):
    """The largest difference of two learners' predictions."""
    with torch.no_grad():
        return float((a(tasks.context, tasks.xq) - b(tasks.context, tasks.xq)).abs().max())


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("d_out", [1, 2, 4])
def test_copying_makes_concatenated_tokens_and_zeros(attention, d_out):
    (x, y), xq, _ = tasks = episode(d_out=d_out)
    network, _ = copy_tokens(3, d_out, 0.3, 6, attention=attention)
    tokens = network.tokens(tasks.context, xq)[1].context[..., int(attention == "softmax") :, :]
    merged, spent = tokens[:, 0::2], tokens[:, 1::2]
    torch.testing.assert_close(merged[..., :3], x, rtol=0, atol=1e-12)
    torch.testing.assert_close(merged[..., -d_out:], y, rtol=0, atol=1e-12)
    assert not merged[..., max(3, d_out) : -d_out].any()
    torch.testing.assert_close(spent, torch.zeros_like(spent), rtol=0, atol=1e-12)


def test_copying_works_for_shorter_contexts_but_for_the_mean():
    tasks = episode()
    short = Context(tasks.context.x[:, :4], tasks.context.y[:, :4])
    network, _ = copy_tokens(3, 1, 0.3, 6)
    expected = GradientDescent(1, 0.3 * 4 / 6)(short, tasks.xq)
    torch.testing.assert_close(network(short, tasks.xq), expected.detach(), rtol=1e-12, atol=1e-12, check_dtype=False)


def test_too_long_a_context_for_one_hot_positions_is_refused():
    network, _ = copy_tokens(3, 1, 0.3, 2)
    tasks = episode()
    with pytest.raises(ArgumentError, match="size must be at least 13"):
        network(tasks.context, tasks.xq)


def test_alternating_tokens_are_what_the_paper_draws():
    context = Context(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0], [6.0]]))
    tokens, query = Alternating("one-hot", size=5)(context, torch.tensor([[7.0, 8.0]]))
    assert tokens[:, :2].tolist() == [[1, 2], [0, 5], [3, 4], [0, 6]]
    assert tokens[:, 2:].argmax(1).tolist() == [4, 3, 2, 1]
    assert query.tolist() == [[7, 8, 1, 0, 0, 0, 0]]
    waves, _ = Alternating("sinusoidal", size=3)(context, torch.tensor([[7.0, 8.0]]))
    angle = torch.tensor(1.0)
    torch.testing.assert_close(
        waves[3, 2:], torch.stack([angle.sin(), angle.cos(), (angle * 10_000 ** (-2 / 3)).sin()])
    )


@pytest.mark.parametrize("steps", [1, 3])
def test_two_softmax_heads_descend_with_an_error_of_second_order(steps):
    tasks = episode(n=10, d=5)
    gaps = []
    for scale in (0.1, 0.05, 0.025):
        network, algorithm = softmax_gradient_descent(5, 1, 0.8, steps, scale)
        gaps.append(gap(network, algorithm, tasks))
    ratios = torch.tensor(gaps[:-1]) / torch.tensor(gaps[1:])
    torch.testing.assert_close(ratios, torch.full((2,), 4.0), rtol=0.05, atol=0.0)
    # The limit is descent on centred inputs, which plain descent is not.
    assert gap(network, GradientDescent(steps, 0.8), tasks) > 10 * gaps[-1]


def test_centred_descent_is_descent_on_centred_inputs():
    tasks = episode()
    x = tasks.context.x - tasks.context.x.mean(-2, keepdim=True)
    torch.testing.assert_close(
        Centred(GradientDescent(2, 0.4))(tasks.context, tasks.xq),
        GradientDescent(2, 0.4)(Context(x, tasks.context.y), tasks.xq),
    )


def test_a_kernel_construction_leaves_the_mlp_passed_in_as_it_was():
    mlp = TokenMLP(3, 6, 1.0, stream(0, "init"))
    before = mlp.up_proj.weight.clone()
    network, algorithm = kernel_gradient_descent(mlp, 1, 0.2, 6)
    with torch.no_grad():
        network.embedding.mlp.up_proj.weight.zero_()
    assert torch.equal(mlp.up_proj.weight, before)
    assert mlp.up_proj.weight.dtype == torch.float32
    tasks = episode()
    assert algorithm(tasks.context, tasks.xq).dtype == torch.float64


def test_a_kernel_construction_takes_biases():
    mlp = TokenMLP(3, 6, 1.0, stream(0, "init"), bias=True)
    with torch.no_grad():
        for bias in (mlp.up_proj.bias, mlp.down_proj.bias):
            bias.copy_(torch.randn(bias.shape, generator=stream(0, "biases")))
    network, algorithm = kernel_gradient_descent(mlp, 1, 0.1, 6, steps=2)
    plain, _ = kernel_gradient_descent(TokenMLP(3, 6, 1.0, stream(0, "init")), 1, 0.1, 6, steps=2)
    tasks = episode()
    assert gap(network, algorithm, tasks) < 1e-12
    assert gap(network, plain, tasks) > 0.1


def test_descent_behind_an_embedding_is_the_net_with_the_constructed_layer():
    """The control of the sine study: same embedding, gradient descent in place of attention."""
    tasks = episode(d=1)
    embedding = EmbeddingConfig(2, 8, init_scale=0.5)
    layer = gradient_descent(7, 1, 0.3, 6).network
    config = InContextRegressorConfig(layer.config.transformer, embedding=embedding)
    network = config.build().double().with_products(layer.products())
    control = EmbeddedDescentConfig(embedding, 1, 0.3).build().double()
    control.embedding.load_state_dict(network.embedding.state_dict())
    torch.testing.assert_close(
        network.trajectory(tasks.context, tasks.xq), control.trajectory(tasks.context, tasks.xq), rtol=1e-12, atol=1e-12
    )


def test_an_embedding_serves_in_an_ensemble():
    config = InContextRegressorConfig(TransformerConfig(8), embedding=EmbeddingConfig(2, 8))
    nets = [config.build(stream(seed, "init")) for seed in range(3)]
    tasks = episode(d=1).to(torch.float32)
    context = Context(*(part.expand(3, *part.shape) for part in tasks.context))
    answers = Ensemble(nets)(context, tasks.xq.expand(3, *tasks.xq.shape))
    for net, answer in zip(nets, answers, strict=True):
        torch.testing.assert_close(answer, net(tasks.context, tasks.xq))
