import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from mesascope.errors import ArgumentError, ArgumentTypeError
from mesascope.streams import stream
from mesascope.tasks import Context, Episode, LinearRegression, SineWaves, check_episode, check_inputs
from mesascope.tasks.draws import INPUT_LAWS, symmetric_uniform
from mesascope.testing import check_family


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 6), d=st.integers(1, 5), out=st.integers(1, 3), m=st.integers(1, 4), batch=st.integers(0, 5))
def test_shapes_are_those_asked_for(n, d, out, m, batch):
    episode = LinearRegression(n, d, out, n_query=m).sample(batch, stream(0, "t"))
    assert episode.context.x.shape == (batch, n, d)
    assert episode.context.y.shape == (batch, n, out)
    assert episode.xq.shape == (batch, m, d)
    assert episode.yq.shape == (batch, m, out)
    check_episode(episode)


def test_noiseless_targets_are_linear_in_the_inputs():
    episode = LinearRegression(n_context=8, d_in=3, n_query=4).sample(20, stream(0, "t")).to(torch.float64)
    teacher = torch.linalg.lstsq(episode.context.x, episode.context.y).solution
    torch.testing.assert_close(episode.xq @ teacher, episode.yq, rtol=1e-4, atol=1e-4)


def test_noise_moves_context_targets_and_leaves_answers_alone():
    quiet, noisy = (LinearRegression(noise=noise).sample(5000, stream(0, "t")) for noise in (0.0, 0.5))
    assert torch.equal(quiet.yq, noisy.yq)
    assert (noisy.context.y - quiet.context.y).std().item() == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(
    ("law", "mean", "variance", "kurtosis"),
    [("uniform", 0, 1 / 3, 9 / 5), ("normal", 0, 1, 3), ("exponential", 1, 1, 9), ("laplace", 0, 2, 6)],
)
def test_input_laws_have_the_moments_documented(law, mean, variance, kurtosis):
    z = INPUT_LAWS[law]((1000, 1000), stream(0, law)).double()
    centred = z - mean
    assert z.mean().item() == pytest.approx(mean, abs=5e-3)
    assert centred.square().mean().item() == pytest.approx(variance, rel=1e-2)
    assert (centred**4).mean().item() / variance**2 == pytest.approx(kurtosis, rel=5e-2)


def test_uniform_numbers_fill_the_interval_evenly_and_never_vanish():
    u = symmetric_uniform((1_000_001,), stream(0, "u"))
    assert u.abs().max() <= 1
    assert u.abs().min() > 0
    counts = torch.histc(u, 50, -1, 1)
    chi_square = ((counts - u.numel() / 50).square() / (u.numel() / 50)).sum().item()
    assert chi_square < 94  # 49 degrees of freedom, one in 10,000
    assert abs(torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1].item()) < 5e-3


def test_mixture_gives_each_task_one_law():
    x = LinearRegression(n_context=50, d_in=20, x="mixture").sample(300, stream(0, "m")).context.x
    positive = (x > 0).all(dim=(1, 2))
    assert 60 < int(positive.sum()) < 140  # a third of the tasks is exponential


def test_covariance_is_that_of_the_inputs():
    matrix = torch.tensor([[2.0, 0.6], [0.6, 0.5]])
    x = LinearRegression(n_context=10, d_in=2, x="normal", covariance=matrix).sample(20_000, stream(0, "c")).context.x
    torch.testing.assert_close(torch.cov(x.reshape(-1, 2).T), matrix, rtol=0.03, atol=0.02)


def test_a_pool_holds_its_tasks_fixed():
    family = LinearRegression(pool=6)
    whole = family.sample(6, stream(0, "a"))
    assert torch.equal(whole.xq, family.sample(6, stream(5, "b")).xq)
    drawn = family.sample(100, stream(1, "a")).xq
    assert all(bool((task == whole.xq).all(dim=(1, 2)).any()) for task in drawn)


def test_pools_of_other_seeds_are_other_tasks_and_the_first_is_the_same_as_ever():
    first, again, other = (LinearRegression(pool=6, pool_seed=seed) for seed in (0, 0, 1))
    draw = lambda family: family.sample(6, stream(0, "a"))  # noqa: E731
    assert torch.equal(draw(first).xq, draw(again).xq)
    assert torch.equal(draw(first).xq, draw(LinearRegression(pool=6)).xq)
    for mine, yours in zip((*draw(first).context, draw(first).xq), (*draw(other).context, draw(other).xq), strict=True):
        assert not (mine == yours).any()
    replaced = dataclasses.replace(first, pool_seed=1)
    assert torch.equal(draw(replaced).xq, draw(other).xq)


def test_a_pool_tells_its_teachers():
    family = LinearRegression(pool=6, d_out=2)
    (x, y), xq, yq = family.sample(6, stream(0, "x"))
    teachers = family.teachers()
    torch.testing.assert_close(y, x @ teachers.mT)
    torch.testing.assert_close(yq, xq @ teachers.mT)
    with pytest.raises(ArgumentError, match="pool must be a number"):
        LinearRegression().teachers()


def test_a_pool_is_drawn_once(monkeypatch):
    family, drawn = LinearRegression(pool=6), []
    monkeypatch.setattr("mesascope.tasks.regression.stream", lambda *key: drawn.append(key) or stream(*key))
    for seed in range(3):
        family.sample(4, stream(seed, "a"))
    assert drawn == [(0, "pool")]


def test_streams_repeat_and_differ():
    draw = lambda *key: torch.rand(4, generator=stream(*key))  # noqa: E731
    assert torch.equal(draw(0, "train", 3), draw(0, "train", 3))
    others = [draw(1, "train", 3), draw(0, "tune", 3), draw(0, "train", 4)]
    assert not any(torch.equal(draw(0, "train", 3), other) for other in others)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"d_out": 0}, "d_out must be at least 1, but is 0"),
        ({"n_context": -3}, "n_context must be at least 1, but is -3"),
        ({"x_scale": 0.0}, "x_scale must be at least 1e-15"),
        ({"noise": math.nan}, "noise must be finite"),
        ({"noise": -1.0}, "noise must be at least 0"),
        ({"covariance": [1.0, -1.0], "d_in": 2}, "covariance must be symmetric and positive definite"),
        ({"covariance": [1.0, 1.0], "d_in": 3}, "covariance must have shape"),
        ({"pool": 0}, "pool must be at least 1"),
        ({"pool_seed": -1}, "pool_seed must be at least 0"),
    ],
)
def test_wrong_values_are_refused_in_a_sentence(kwargs, message):
    with pytest.raises(ArgumentError, match=message):
        LinearRegression(**kwargs)


def test_errors_are_also_the_builtin_ones():
    with pytest.raises(ValueError, match="d_in"):
        LinearRegression(d_in=0)
    assert issubclass(ArgumentTypeError, TypeError)


def test_shapes_that_disagree_are_refused():
    x, y, xq = torch.ones(2, 5, 3), torch.ones(2, 5, 1), torch.ones(2, 1, 3)
    check_inputs(Context(x, y), xq)
    for context, query in (
        (Context(x, y[:, :4]), xq),
        (Context(x, y[..., 0]), xq),
        (Context(x, y), xq[..., :2]),
        (Context(x, y), xq[:1]),
    ):
        with pytest.raises(ArgumentError, match="must"):
            check_inputs(context, query)


@pytest.mark.parametrize("change", ["x", "y", "xq"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_dtypes_that_disagree_are_refused(change, dtype):
    tensors = {"x": torch.ones(2, 5, 3), "y": torch.ones(2, 5, 1), "xq": torch.ones(2, 1, 3)}
    tensors[change] = tensors[change].to(dtype)
    with pytest.raises(ArgumentTypeError, match="context and xq must share one floating-point dtype"):
        check_inputs(Context(tensors["x"], tensors["y"]), tensors["xq"])


def test_nan_in_user_data_is_refused_with_its_place():
    episode = LinearRegression().sample(3, stream(0, "n"))
    y = episode.context.y.clone()
    y[1, 2] = math.nan
    with pytest.raises(ArgumentError, match=r"context.y must be finite, but 1 of its 30 values is not"):
        check_episode(Episode(Context(episode.context.x, y), episode.xq, episode.yq))


def test_sine_waves_draw_amplitude_and_phase_apart():
    """Recovered from the tasks themselves: uniform, and uncorrelated."""
    family = SineWaves(n_context=2, n_query=1)
    (x, y), _, _ = family.sample(50_000, stream(0, "sines")).to(torch.float64)
    basis = torch.cat([x.sin(), x.cos()], dim=-1)
    usable = torch.linalg.cond(basis) < 100
    parts = torch.linalg.solve(basis[usable], y[usable]).squeeze(-1)  # a cos p, a sin p
    amplitude, phase = parts.norm(dim=-1), torch.atan2(parts[:, 1], parts[:, 0])
    for drawn, (low, high) in ((amplitude, family.amplitude), (phase, family.phase)):
        assert low - 1e-3 < float(drawn.min())
        assert float(drawn.max()) < high + 1e-3
        assert abs(float(drawn.mean()) - (low + high) / 2) < 0.02
        assert abs(float(drawn.std()) - (high - low) / 12**0.5) < 0.02
    assert abs(float(torch.corrcoef(torch.stack([amplitude, phase]))[0, 1])) < 0.02
    assert float(x.abs().max()) <= 5.0


def test_tied_sine_waves_have_one_number_a_task():
    family = SineWaves(n_context=2, amplitude=(0.1, 0.5), tied=True)
    (x, y), xq, yq = family.sample(1000, stream(0, "sines")).to(torch.float64)
    share = torch.linspace(0, 1, 1001, dtype=torch.float64)  # of the way from the least amplitude and phase
    waves = (0.1 + 0.4 * share) * torch.sin(x[:, :1] + math.pi * share)
    nearest = share[(waves - y[:, :1]).abs().squeeze(1).argmin(dim=-1)]
    for inputs, targets in ((x[:, 1:], y[:, 1:]), (xq, yq)):
        found = (0.1 + 0.4 * nearest) * torch.sin(inputs[:, 0, 0] + math.pi * nearest)
        # One point may lie on two waves of the family, and is read as the wrong one then.
        assert float(((found - targets[:, 0, 0]).abs() < 2e-3).double().mean()) > 0.5


@pytest.mark.parametrize("wrong", [{"amplitude": (2.0, 1.0)}, {"phase": (0.0, float("inf"))}, {"x_scale": 0.0}])
def test_sine_waves_refuse_what_they_cannot_draw(wrong):
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        SineWaves(**wrong)


@dataclasses.dataclass(frozen=True)
class OneAtLeast(LinearRegression):
    def sample(self, batch, generator):
        assert batch > 0
        return super().sample(batch, generator)


def test_a_family_that_draws_no_empty_batch_keeps_the_contract():
    check_family(OneAtLeast(n_context=4))


def test_a_pool_is_not_changed_through_its_episodes_and_teachers():
    family = LinearRegression(n_context=5, d_in=2, pool=4)
    first = family.sample(4, stream(0, "tasks")).context.y.clone()
    family.sample(4, stream(0, "tasks")).context.y.zero_()
    family.teachers().zero_()
    assert torch.equal(family.sample(4, stream(0, "tasks")).context.y, first)
    assert family.teachers().any()
