"""Each training seed learns from a family of its own."""

import dataclasses

import pytest
import torch
from torch import nn

from mesascope.errors import ArgumentError, ArgumentTypeError
from mesascope.identification.behaviour import untrained
from mesascope.learners import GradientDescent
from mesascope.nets import (
    ClassifierConfig,
    EmbeddedDescentConfig,
    EmbeddingConfig,
    InContextRegressorConfig,
    TransformerConfig,
)
from mesascope.streams import stream
from mesascope.tasks import LinearRegression, RegressionProblem
from mesascope.training import Training, train

POOLED = LinearRegression(n_context=5, d_in=3, x_scale=0.5, pool=8)
PLAN = Training(steps=300, batch=8, learning_rate=0.1)


def best_step_size(family):
    """Best size of one gradient step on a pool, by least squares: predictions are linear in it."""
    (x, y), xq, yq = family.sample(8, stream(0, "any"))
    slope = (xq @ (x.mT @ y) / x.shape[-2]).flatten()
    return float(slope @ yq.flatten() / (slope @ slope))


def test_a_pool_depends_on_its_seed_alone():
    one, other = (POOLED.seeded(seed).sample(8, stream(0, "any")).xq for seed in (3, 4))
    assert torch.equal(one, dataclasses.replace(POOLED, pool_seed=3).sample(8, stream(1, "any")).xq)
    assert not torch.isclose(one, other).any()
    fresh = LinearRegression(n_context=5, d_in=3)
    assert fresh.seeded(7) is fresh


def test_each_seed_finds_the_optimum_of_its_own_pool():
    trained = train(
        lambda draw: GradientDescent(1, eta=torch.rand(1, generator=draw).item()), POOLED, PLAN, seeds=[0, 1, 2]
    )
    etas = [float(learner.eta.detach()) for learner in trained.members()]
    assert etas == pytest.approx([best_step_size(POOLED.seeded(seed)) for seed in (0, 1, 2)], rel=0.01)
    assert len({round(eta, 2) for eta in etas}) == 3


def test_a_transformer_and_its_control_start_from_the_same_embedding():
    embedding = EmbeddingConfig(d_token=2, width=6, mlp=2, init_scale=0.3)
    for seed in (0, 5):
        net = InContextRegressorConfig(TransformerConfig(6), embedding=embedding).build(stream(seed, "init"))
        control = EmbeddedDescentConfig(embedding).build(stream(seed, "init"))
        ours, theirs = net.embedding.state_dict(), control.embedding.state_dict()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        assert net.embedding.w_in.abs().sum() > 0


LINE = nn.Linear(2, 1)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: ClassifierConfig("mlp", width=4, size=2, classes=2).build(stream(0, "init")),
        lambda: untrained(LINE, stream(0, "init")),
        lambda: RegressionProblem("transformer1").sample(2, stream(0, "train")),
    ],
)
def test_what_draws_from_torch_leaves_the_generators_of_gpus_alone(draw, monkeypatch):
    """`torch.manual_seed` seeds them, too, and nothing puts them back."""
    monkeypatch.setattr(torch, "manual_seed", lambda seed: pytest.fail("it seeds all devices"))
    before = torch.get_rng_state()
    draw()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_first_seed_learns_the_family_that_is_passed():
    family = dataclasses.replace(POOLED, pool_seed=1)
    trained = train(
        lambda draw: GradientDescent(1, eta=torch.rand(1, generator=draw).item()), family, PLAN, seeds=[0, 1]
    )
    expected = [best_step_size(dataclasses.replace(POOLED, pool_seed=seed)) for seed in (1, 2)]
    assert [float(learner.eta.detach()) for learner in trained.members()] == pytest.approx(expected, rel=0.01)


class _Rows:
    def sample(self, batch, generator):
        return torch.randn(batch, 5, generator=generator)


class _Wide(nn.Module):
    def __init__(self, width=5):
        super().__init__()
        self.layer = nn.Linear(5, width)

    def forward(self, tokens):
        return self.layer(tokens)


def test_a_family_of_flat_sequences_is_refused():
    with pytest.raises(ArgumentError, match=r"must draw \(batch, t, d\), but is \(8, 5\): draw numbers as vectors"):
        train(lambda generator: _Wide(), _Rows(), PLAN)


def test_a_class_that_takes_no_generator_is_named_with_its_remedy():
    with pytest.raises(ArgumentTypeError, match=r"_Wide raised TypeError .*: pass lambda generator: _Wide\(\)"):
        train(_Wide, _Rows(), PLAN)
