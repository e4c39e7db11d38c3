import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn

from mesascope.errors import ArgumentError, NumericalError
from mesascope.learners import GradientDescent
from mesascope.nets import InContextRegressorConfig, TransformerConfig
from mesascope.runs.checkpoints import TrainingCheckpoints
from mesascope.streams import stream
from mesascope.tasks import LinearRegression
from mesascope.training import Ensemble, Training, fit, half_mse, schedule_factor, train

FAMILY = LinearRegression(n_context=6, d_in=3, x_scale=0.5)
PLAN = Training(steps=12, batch=32, learning_rate=1e-2, evaluate_every=5, checkpoint_every=4)


make = InContextRegressorConfig(TransformerConfig(width=4, init_scale=0.1)).build


def flat(learner):
    return torch.cat([weight.detach().flatten() for weight in learner.parameters()])


class Memory:
    """Checkpoints kept in memory; every one of them, so that a test can go back to any."""

    def __init__(self, start=None):
        self.saved, self.start = {}, start

    def save(self, step, tensors):
        self.saved[step] = {name: tensor.clone() for name, tensor in tensors.items()}

    def load(self):
        return self.start


def test_members_of_an_ensemble_answer_as_they_do_alone():
    members = [make(stream(seed, "init")) for seed in range(3)]
    ensemble = Ensemble(members)
    episode = FAMILY.sample(12, stream(0, "e"))
    stacked = episode.map(lambda t: t.unflatten(0, (3, 4)))
    together = ensemble(stacked.context, stacked.xq)
    for index, member in enumerate(members):
        alone = member(episode.part(4 * index, 4 * index + 4).context, episode.xq[4 * index : 4 * index + 4])
        torch.testing.assert_close(together[index], alone)
        assert torch.equal(flat(ensemble.member(index)), flat(member))


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        dataclasses.replace(PLAN, clip=1e-3, schedule="cosine", average=2.0),
        dataclasses.replace(PLAN, optimizer="adamw", weight_decay=0.1, schedule="constant"),
    ],
)
def test_seeds_trained_together_end_as_they_do_alone(plan):
    together = train(make, FAMILY, plan, seeds=[0, 1, 2])
    for index in range(3):
        alone = train(make, FAMILY, plan, seeds=[index])
        torch.testing.assert_close(flat(together.member(index)), flat(alone.member(0)), rtol=2e-3, atol=2e-4)


def test_any_module_can_be_trained():
    class Affine(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.zeros(()))

        def forward(self, context, xq):
            return self.scale * (xq @ (context.x.mT @ context.y))

    trained = train(lambda generator: Affine(), FAMILY, Training(steps=150, batch=64, learning_rate=0.1))
    assert 0.5 < trained.member(0).scale.item() < 1.5  # eta / n = 6 / 6 for one gradient step


def test_training_finds_the_one_step_optimum():
    plan = Training(steps=300, batch=256, learning_rate=0.1)
    etas = [
        learner.eta.item() for learner in train(lambda g: GradientDescent(1, 1.0), FAMILY, plan, seeds=[0, 1]).members()
    ]
    # N / (s^2 (N + d + K - 2)) with s^2 = 1/12
    assert etas == pytest.approx([6 * 12 / 8.8] * 2, rel=0.03)


def test_resuming_from_any_checkpoint_repeats_the_run_bit_for_bit():
    plan = dataclasses.replace(PLAN, average=2.0, clip=0.1, checkpoint_every=3)
    memory = Memory()
    whole = train(make, FAMILY, plan, seeds=[0, 1], checkpoints=memory)
    assert sorted(memory.saved) == [3, 6, 9, 12]
    for step, tensors in memory.saved.items():
        again = train(make, FAMILY, plan, seeds=[0, 1], checkpoints=Memory((step, tensors)))
        for name, weight in whole.weights.items():
            assert torch.equal(again.weights[name], weight)


def test_evaluations_come_at_the_start_every_n_steps_and_at_the_end():
    seen = []
    train(make, FAMILY, PLAN, evaluate=lambda step, ensemble: seen.append(step))
    assert seen == [0, 5, 10, 12]


def test_clipping_is_member_by_member():
    """One member with gradients a million times larger leaves the others' path unchanged."""

    class Scaled(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))
            self.register_buffer("scale", torch.tensor(scale))

    def losses(ensemble, batch):
        return ensemble.buffers["scale"] * ensemble.weights["weight"].square()

    plan = Training(steps=5, learning_rate=0.1, clip=0.5, schedule="constant", batch=1)
    pair = fit(Ensemble([Scaled(1e6), Scaled(1.0)]), losses, lambda i: None, plan)
    alone = fit(Ensemble([Scaled(1.0)]), losses, lambda i: None, plan)
    assert pair.weights["weight"][1] == alone.weights["weight"][0]


class Exploding(nn.Module):
    """Its loss becomes infinite after the step given."""

    def __init__(self, last):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("last", torch.tensor(float(last)))


def exploding_losses(ensemble, index):
    weight = ensemble.weights["weight"]
    return weight.square().mean(1) / (ensemble.buffers["last"] > index)


def test_a_member_that_diverges_is_frozen_and_the_others_train_on():
    plan = Training(steps=6, learning_rate=0.1, schedule="constant", batch=1, optimizer="adamw", weight_decay=0.1)
    memory = Memory()
    with pytest.warns(UserWarning, match=r"members \[0\] diverged at step 4"):
        pair = fit(Ensemble([Exploding(3), Exploding(99)]), exploding_losses, lambda i: i, plan, checkpoints=memory)
    short = fit(Ensemble([Exploding(99)]), exploding_losses, lambda i: i, dataclasses.replace(plan, steps=3))
    whole = fit(Ensemble([Exploding(99)]), exploding_losses, lambda i: i, plan)
    assert torch.equal(pair.weights["weight"][0], short.weights["weight"][0])
    assert torch.equal(pair.weights["weight"][1], whole.weights["weight"][0])
    assert memory.saved[6]["diverged"].tolist() == [4, 0]


def test_training_stops_with_a_sentence_when_every_member_has_diverged():
    plan = Training(steps=9, learning_rate=0.1, batch=1, checkpoint_every=2)
    memory = Memory()
    with (
        pytest.warns(UserWarning, match=r"members \[0\] diverged at step 4"),
        pytest.raises(NumericalError, match=r"the last of 2 members diverged at step 5 .* lower the learning rate"),
    ):
        fit(Ensemble([Exploding(3), Exploding(4)]), exploding_losses, lambda i: i, plan, checkpoints=memory)
    assert max(memory.saved) == 4
    assert all(torch.isfinite(tensor).all() for tensor in memory.saved[4].values())


def test_errors_of_the_sampler_reach_the_caller():
    def broken(index):
        raise OSError(f"no data for step {index}")

    with pytest.raises(OSError, match="no data for step 0"):
        fit(Ensemble([make(stream(0, "i"))]), half_mse, broken, PLAN)


def test_a_step_that_returns_the_wrong_shape_is_refused():
    with pytest.raises(ArgumentError, match=r"step must return one loss a member, shape \(1,\)"):
        fit(
            Ensemble([make(stream(0, "i"))]),
            lambda ensemble, batch: ensemble.weights["transformer.layers.0.attention.p"].sum((0, 1)).sum(),
            lambda i: None,
            PLAN,
        )


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedules_fall_from_one_to_nearly_zero(schedule):
    factors = [schedule_factor(schedule, step, 100, 0.4) for step in range(100)]
    assert factors[:41] == [1.0] * 41
    assert all(a > b for a, b in itertools.pairwise(factors[40:]))
    assert 0 < factors[-1] < 0.03
    assert schedule_factor("constant", 99, 100, 0.0) == 1.0


def test_average_is_the_weighted_mean_of_the_path():
    """Polynomial-decay averaging with exponent 0 is the plain mean over steps."""
    path = []

    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

    def losses(ensemble, index):
        if index:
            path.append(ensemble.weights["weight"].detach().clone())
        return ensemble.weights["weight"].square().mean(1)

    plan = Training(steps=6, learning_rate=0.1, schedule="constant", batch=1, average=0.0)
    start = Ensemble([One()])
    result = fit(start, losses, lambda i: i, plan)
    path.append(start.weights["weight"].detach())
    torch.testing.assert_close(result.weights["weight"], torch.stack(path).mean(0))


def test_checkpoints_keep_the_newest_and_refuse_damage(tmp_path):
    from mesascope.errors import RunDirectoryError

    store = TrainingCheckpoints(tmp_path / "main", {"steps": 3})
    assert store.load() is None
    for step in (1, 2):
        store.save(step, {"a": torch.full((2,), float(step)), "n": torch.tensor(step)})
    assert [path.name for path in (tmp_path / "main").iterdir()] == ["2"]
    step, tensors = store.load()
    assert step == 2
    assert tensors["a"].tolist() == [2.0, 2.0]
    with pytest.raises(RunDirectoryError, match="made with another configuration"):
        TrainingCheckpoints(tmp_path / "main", {"steps": 4}).load()
    file = tmp_path / "main" / "2" / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    with pytest.raises(RunDirectoryError, match="must have the checksum in its manifest"):
        store.load()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"learning_rate": -1.0}, "learning_rate must be greater than 0"),
        ({"learning_rate": math.inf}, "learning_rate must be finite"),
        ({"decay_from": 1.5}, "decay_from must be at most 1"),
        ({"clip": 0.0}, "clip must be greater than 0"),
        ({"average": -1.0}, "average must be at least 0"),
    ],
)
def test_wrong_plans_are_refused_in_a_sentence(kwargs, message):
    with pytest.raises(ArgumentError, match=message):
        Training(**kwargs)


def test_an_ensemble_needs_parameters():
    with pytest.raises(ArgumentError, match="members must hold at least one module"):
        Ensemble([])
    with pytest.raises(ArgumentError, match="members must have parameters to train"):
        Ensemble([nn.Identity()])
