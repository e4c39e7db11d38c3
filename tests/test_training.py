"""The loop, ensembles, and training on families of tasks."""

import dataclasses
from operator import itemgetter

import pytest
import torch
from torch import nn
from training_cases import Memory

from mesascope.errors import ArgumentError, ArgumentTypeError, NumericalError
from mesascope.learners import GradientDescent
from mesascope.nets import InContextRegressorConfig, TransformerConfig
from mesascope.runs.checkpoints import TrainingCheckpoints
from mesascope.streams import stream
from mesascope.tasks import Context, Episode, LinearRegression
from mesascope.training import (
    Ensemble,
    EnsembleState,
    ModuleState,
    ProgressBar,
    Training,
    fit,
    half_mse,
    schedule_factor,
    train,
)

FAMILY = LinearRegression(n_context=6, d_in=3, x_scale=0.5)
PLAN = Training(steps=12, batch=32, learning_rate=1e-2, evaluate_every=5, checkpoint_every=4)


make = InContextRegressorConfig(TransformerConfig(width=4, init_scale=0.1)).build


def flat(learner):
    return torch.cat([weight.detach().flatten() for weight in learner.parameters()])


# The loop


def test_a_state_of_any_kind_can_be_trained():
    """The loop itself, around a state that counts: what is called, when, and from where a resumed training goes on."""

    class Counter:
        total = 0.0

        def update(self, batch):
            self.total += batch
            return {"loss": self.total}

        def tensors(self):
            return {"total": torch.tensor(self.total)}

        def load(self, tensors):
            self.total = tensors["total"].item()

        def result(self):
            return self.total

    seen, memory = [], Memory()
    result = fit(
        Counter(),
        lambda step: 10.0**step,
        dataclasses.replace(PLAN, steps=6, evaluate_every=4, checkpoint_every=4),
        evaluate=lambda step, total: seen.append(("evaluate", step, total)),
        checkpoints=memory,
        observe=lambda step, metrics: seen.append((step, metrics["loss"])),
    )
    assert result == 111111
    assert [event for event in seen if event[0] == "evaluate"] == [
        ("evaluate", 0, 0),
        ("evaluate", 4, 1111),
        ("evaluate", 6, 111111),
    ]
    assert [event for event in seen if event[0] != "evaluate"] == [(i, int("1" * i)) for i in range(1, 7)]
    assert list(memory.saved) == [0, 4, 6]
    again, drawn = [], []
    result = fit(
        Counter(),
        lambda step: drawn.append(step) or 10.0**step,
        dataclasses.replace(PLAN, steps=6),
        evaluate=lambda step, total: again.append(step),
        checkpoints=Memory((4, memory.saved[4])),
    )
    assert (result, drawn, again) == (111111, [4, 5], [5, 6])


def test_errors_of_the_sampler_reach_the_caller():
    def broken(index):
        raise OSError(f"no data for step {index}")

    with pytest.raises(OSError, match="no data for step 0"):
        fit(EnsembleState([make(stream(0, "i"))], half_mse, PLAN), broken, PLAN)


def test_observers_see_losses_gradient_norms_and_the_learning_rate():
    seen = {}
    plan = dataclasses.replace(PLAN, steps=8, schedule="cosine", warmup_steps=3, final_rate=0.1, clip=1e-3)
    train(make, FAMILY, plan, seeds=[0, 1], observe=lambda step, metrics: seen.update({step: metrics}))
    assert list(seen) == list(range(1, 9))
    nets = [make(stream(seed, "init")) for seed in (0, 1)]
    for index, net in enumerate(nets):
        loss = half_mse(net, FAMILY.sample(32, stream(index, "train", 0)))
        loss.backward()
        norm = torch.cat([weight.grad.flatten() for weight in net.parameters()]).norm()
        torch.testing.assert_close(seen[1]["loss"][index], loss.detach())
        torch.testing.assert_close(seen[1]["gradient_norm"][index], norm)
    for step, metrics in seen.items():
        factor = schedule_factor("cosine", step - 1, 8, plan.decay_from, warmup_steps=3, final_rate=0.1)
        assert metrics["learning_rate"] == pytest.approx(plan.learning_rate * factor)


def test_progress_shows_who_has_diverged(capsys, monkeypatch):
    monkeypatch.setattr("mesascope.progress._QUIET", 0.0)
    losses = [torch.tensor([0.5, 1.5]), torch.tensor([0.5, torch.nan, 1.0]), torch.tensor([torch.inf]), 0.25]
    with ProgressBar("one", 4, per_step=100) as bar:
        for step, loss in enumerate(losses, start=1):
            bar(step, {"loss": loss})
    said = ["loss 1", "loss 0.75, 1 of 3 diverged", "1 of 1 diverged", "loss 0.25"]
    for step, (line, part) in enumerate(zip(capsys.readouterr().err.splitlines(), said, strict=True), start=1):
        assert line.startswith(f"one: step {step} of 4, {part}")
        assert ("tokens/s" in line) == (step > 1), "one step has no pace"


# Ensembles


@pytest.mark.usefixtures("members")
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
        assert torch.equal(flat(ensemble[index - 3]), flat(member))
    assert [flat(own).tolist() for own in ensemble] == [flat(member).tolist() for member in ensemble.members()]
    assert next(iter(ensemble)) is not ensemble[0]


@pytest.mark.usefixtures("members")
@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        dataclasses.replace(PLAN, clip=1e-3, schedule="cosine", average=2.0),
        dataclasses.replace(PLAN, optimizer="adamw", weight_decay=0.1, schedule="constant"),
        dataclasses.replace(PLAN, optimizer="sgd", momentum=0.9, warmup_steps=4),
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

    def learner(generator):
        return GradientDescent(1, 1.0 + torch.rand((), generator=generator).item())

    etas = [learner.eta.item() for learner in train(learner, FAMILY, plan, seeds=[0, 1]).members()]
    # N / (s^2 (N + d + K - 2)) with s^2 = 1/12
    assert etas == pytest.approx([6 * 12 / 8.8] * 2, rel=0.03)


def test_resuming_from_any_checkpoint_repeats_the_run_bit_for_bit():
    plan = dataclasses.replace(PLAN, average=2.0, clip=0.1, checkpoint_every=3)
    memory = Memory()
    whole = train(make, FAMILY, plan, seeds=[0, 1], checkpoints=memory)
    assert sorted(memory.saved) == [0, 3, 6, 9, 12]
    for step, tensors in memory.saved.items():
        again = train(make, FAMILY, plan, seeds=[0, 1], checkpoints=Memory((step, tensors)))
        for name, weight in whole.weights.items():
            assert torch.equal(again.weights[name], weight)
        assert again.history == whole.history


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
    pair = fit(EnsembleState([Scaled(1e6), Scaled(1.0)], losses, plan), lambda i: None, plan)
    alone = fit(EnsembleState([Scaled(1.0)], losses, plan), lambda i: None, plan)
    assert pair.weights["weight"][1] == alone.weights["weight"][0]


class Exploding(nn.Module):
    """Its loss becomes infinite after the step given."""

    def __init__(self, last):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("last", torch.tensor(float(last)))
        self.register_buffer("sum", torch.zeros(()))


def exploding_losses(ensemble, index):
    loss = ensemble.weights["weight"].square().mean(1) / (ensemble.buffers["last"] > index)
    ensemble.buffers["sum"] += loss.detach()
    return loss


@pytest.mark.parametrize(
    "optimizer", [{"optimizer": "adamw", "weight_decay": 0.1}, {"optimizer": "sgd", "momentum": 0.9}]
)
def test_a_member_that_diverges_is_frozen_and_the_others_train_on(optimizer):
    plan = Training(steps=6, learning_rate=0.1, schedule="constant", batch=1, checkpoint_every=3, **optimizer)
    memory, losses = Memory(), []
    with pytest.warns(UserWarning, match=r"members \[0\] diverged at step 4"):
        pair = fit(
            EnsembleState([Exploding(3), Exploding(99)], exploding_losses, plan),
            lambda i: i if i < 4 else 0,  # after step 4 the loss would be finite again
            plan,
            checkpoints=memory,
            observe=lambda step, metrics: losses.append(metrics["loss"].isnan().tolist()),
        )
    short = dataclasses.replace(plan, steps=3)
    before = fit(EnsembleState([Exploding(99)], exploding_losses, short), lambda i: i, short)
    whole = fit(EnsembleState([Exploding(99)], exploding_losses, plan), lambda i: i, plan)
    for name in ("weight", "sum"):
        assert torch.equal((pair.weights | pair.buffers)[name][0], (before.weights | before.buffers)[name][0])
        assert torch.equal((pair.weights | pair.buffers)[name][1], (whole.weights | whole.buffers)[name][0])
    assert memory.saved[6]["diverged"].tolist() == [4, 0]
    assert all(torch.isfinite(tensor).all() for tensor in memory.saved[6].values())
    assert losses == [[False, False]] * 3 + [[True, False]] * 3
    longer, state = (
        dataclasses.replace(plan, steps=8),
        EnsembleState([Exploding(3), Exploding(99)], exploding_losses, plan),
    )
    again = fit(state, lambda i: 0, longer, checkpoints=Memory((6, memory.saved[6])))
    assert torch.equal(again.weights["weight"][0], pair.weights["weight"][0])


def test_training_stops_with_a_sentence_when_every_member_has_diverged():
    plan = Training(steps=9, learning_rate=0.1, batch=1, checkpoint_every=2)
    memory = Memory()
    with (
        pytest.warns(UserWarning, match=r"members \[0\] diverged at step 4"),
        pytest.raises(
            NumericalError,
            match=r"diverged at step 5 \(loss \[nan, nan\], gradient norm .*\): lower .* clip .* or start from smaller",
        ),
    ):
        fit(EnsembleState([Exploding(3), Exploding(4)], exploding_losses, plan), lambda i: i, plan, checkpoints=memory)
    assert max(memory.saved) == 4
    assert all(torch.isfinite(tensor).all() for tensor in memory.saved[4].values())


def elsewhere(ensemble, batch):
    return torch.ones(len(ensemble), requires_grad=True).square()


def test_a_loss_of_the_wrong_shape_type_or_weights_is_refused(unchecked):
    with pytest.raises(ArgumentError, match=r"loss must return one loss per member, shape \(1,\), but returned \(\)"):
        fit(
            EnsembleState([make(stream(0, "i"))], lambda ensemble, batch: half_mse(ensemble, batch).sum(), PLAN),
            lambda step: FAMILY.sample(8, stream(0, "train", step)).map(lambda tensor: tensor[None]),
            PLAN,
        )
    batch = FAMILY.sample(8, stream(0, "train")).map(lambda tensor: tensor[None])
    for loss, said in (
        (lambda net, batch: 3.0, "must be of type Tensor, but is 3.0"),
        (elsewhere, "must depend on the m"),
    ):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=said):
            EnsembleState([make(stream(0, "i"))], loss, PLAN).update(batch)
    with pytest.raises(ArgumentError, match=r"loss must return one number, but returned the shape \(2,\)"):
        ModuleState(make(stream(0, "i")), lambda net, batch: half_mse(net, batch).expand(2), PLAN).update(
            FAMILY.sample(8, stream(0, "train"))
        )


def test_half_mse_is_half_the_mean_squared_error_of_answers_and_of_next_elements():
    xq, yq = torch.randn(2, 4, 3, 5), torch.randn(2, 4, 3, 1)
    tasks = Episode(Context(xq, yq), xq, yq)

    class Constant(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.value = nn.Parameter(torch.tensor(value))

        def forward(self, *inputs):
            like = inputs[1][..., :1] if len(inputs) == 2 else inputs[0]
            return self.value * torch.ones_like(like)

    for member in (0, 1):
        by_hand = sum((float(member) - y) ** 2 for y in yq[member].flatten().tolist()) / 2 / 12
        assert half_mse(Ensemble([Constant(0.0), Constant(1.0)]), tasks)[member].item() == pytest.approx(by_hand)
        assert half_mse(Constant(float(member)), tasks.map(itemgetter(member))).item() == pytest.approx(by_hand)
    by_hand = sum(s**2 for s in xq[0, :, 1:].flatten().tolist()) / 2 / (4 * 2 * 5)
    assert half_mse(Constant(0.0), xq[0]).item() == pytest.approx(by_hand)


def test_predictions_that_would_broadcast_against_the_answers_are_refused():
    class Squeezed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, context, xq):
            return xq @ self.weight

    message = r"of the answers' shape \(1, 32, 1, 1\), but Squeezed\(\) returned \(1, 32, 1\): return \(\*batch, m, dy"
    with pytest.raises(ArgumentError, match=message):
        train(lambda generator: Squeezed(), FAMILY, PLAN)


def test_members_that_start_equal_are_refused():
    with pytest.raises(ArgumentError, match=r"seeds must differ from each other, but is \[0, 1, 0\]: give no seed tw"):
        train(make, FAMILY, PLAN, seeds=[0, 1, 0])
    equal = [make(stream(seed, "init")) for seed in (0, 1, 0)]
    with pytest.raises(ArgumentError, match="members 0 and 2 are equal: build each from the generator of its own seed"):
        EnsembleState(equal, half_mse, PLAN)
    with pytest.raises(ArgumentError, match="members 0 and 1 are equal"):
        train(lambda generator: GradientDescent(1, eta=1.0), FAMILY, PLAN, seeds=[0, 1])


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
    state = EnsembleState([One()], losses, plan)
    result = fit(state, lambda i: i, plan)
    path.append(state.ensemble.weights["weight"].detach())
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


def test_an_ensemble_needs_parameters():
    with pytest.raises(ArgumentError, match="members must hold at least one module"):
        Ensemble([])
    with pytest.raises(ArgumentError, match="members must have parameters, but"):
        Ensemble([nn.Identity()])
    with pytest.raises(ArgumentError, match=r"parameters that require gradients to be trained, but none of its . does"):
        EnsembleState([make(stream(0, "i")).requires_grad_(False)], half_mse, PLAN)


def test_marks_of_parameters_without_decay_are_kept_by_copies():
    class Marked(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.still = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
            self.still._no_weight_decay = True

        def forward(self, context, xq):
            return xq[..., :1] * self.w + 0 * self.still

    plan = Training(5, 4, optimizer="adamw", weight_decay=0.5, learning_rate=0.1)
    (trained,) = train(lambda generator: Marked(), LinearRegression(n_context=3, d_in=1), plan)
    assert trained.still.item() == 1
