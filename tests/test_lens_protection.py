"""Learners of a stranger's under lenses: what they write, raise, return and leave in train() mode."""

import re

import pytest
import torch
from torch import nn

from mesascope.errors import ArgumentError, ArgumentTypeError
from mesascope.learners import GradientDescent, KernelSmoother, Mean, NearestNeighbours, OnlineGradientDescent, tune
from mesascope.lenses import (
    agreement,
    alignment,
    compare,
    measure_learners,
    per_task_errors,
    sweep,
    trajectory_errors,
)
from mesascope.streams import stream
from mesascope.tasks import Context, LinearDynamics, LinearRegression
from mesascope.tasks.calling import LearnerError, copied

FAMILY = LinearRegression(n_context=5, d_in=3, n_query=2)
EPISODES = FAMILY.sample(20, stream(0, "lenses"))
SEQUENCES = LinearDynamics(d=3, length=6).sample(20, stream(0, "lenses"))
GD = GradientDescent(1, 1.0)


def writing(context, xq):
    """Answers as one step does, and leaves nothing as it was."""
    with torch.no_grad():
        answer = GD(context, xq).clone()
        for tensor in (*context, xq):
            tensor.zero_()
    return answer


def writing_predictor(sequence):
    answer = OnlineGradientDescent(1, 0.1)(sequence)
    sequence.zero_()
    return answer


def writing_numpy(context, xq):
    answer = Mean()(context, xq).detach().clone()
    context.y.numpy()[:] = 0.0
    return answer


class Forgetful(nn.Module):
    """Dropout, and whether it was ever in train() mode."""

    def __init__(self):
        super().__init__()
        self.weight, self.dropout = nn.Parameter(torch.tensor(0.5)), nn.Dropout(0.5)

    def forward(self, context, xq):
        return self.dropout(self.weight * Mean()(context, xq))

    def trajectory(self, context, xq):
        return self(context, xq)[None]


def test_what_a_learner_writes_into_its_context_reaches_nobody():
    before = EPISODES.map(torch.clone)
    expected, others = per_task_errors(GD, EPISODES), per_task_errors(Mean(), EPISODES)
    assert torch.equal(per_task_errors(writing, EPISODES), expected)
    found = compare(writing, {"gd": GD, "numpy": writing_numpy, "mean": Mean()}, FAMILY, tasks=50)
    assert found.rows["gd"].prediction_difference.value == found.rows["gd"].mse_difference.value == 0.0
    assert found.rows["numpy"].mse_b == found.rows["mean"].mse_b
    look = sweep({"writing": writing, "numpy": writing_numpy, "mean": Mean()}, FAMILY, {"noise": [0.0]}, tasks=50)
    assert look.difference("numpy", "mean")[0][0].n == 0.0
    assert torch.equal(per_task_errors(Mean(), EPISODES), others)
    for name, tensor in EPISODES.context._asdict().items():
        assert torch.equal(tensor, getattr(before.context, name))
    assert torch.equal(EPISODES.xq, before.xq)


def test_what_a_predictor_writes_into_its_sequence_does_not_change_the_answers():
    before = SEQUENCES.clone()
    expected = per_task_errors(OnlineGradientDescent(1, 0.1), SEQUENCES)
    assert torch.equal(per_task_errors(writing_predictor, SEQUENCES), expected)
    assert torch.equal(SEQUENCES, before)


def test_a_table_asks_each_learner_once():
    """But for one task that tells whether torch can differentiate it; one that answers at random is one learner."""
    calls = {"own": [], "other": []}

    def answering(name, differentiable):
        def at_random(context, xq):
            calls[name].append(len(xq))
            return (xq if differentiable else xq.detach())[..., :1] + len(calls[name])

        return at_random

    for differentiable in (False, True):
        others = {"a": GD, "b": Mean(), "c": answering("other", differentiable)}
        found = compare(answering("own", differentiable), others, FAMILY, tasks=50)
        assert len({row.mse_a.value for row in found.rows.values()}) == 1
        assert hasattr(found.rows["a"], "sensitivity_cosine") == differentiable
    assert calls == {"own": [1, 50, 1, 50], "other": [1, 50, 1, 50]}


def test_a_table_is_made_of_pairs():
    """Number by number: those of `alignment`, or of `agreement` where torch cannot differentiate one of the two."""
    found = compare(GD, {"mean": Mean(), "numpy": writing_numpy}, FAMILY, tasks=50).rows
    drawn = FAMILY.sample(50, stream(0, "compare"))
    assert found == {"mean": alignment(GD, Mean(), drawn), "numpy": agreement(GD, writing_numpy, drawn)}


def test_copies_are_laid_out_as_the_tensor_was():
    for tensor in (torch.rand(4, 6)[:, 1:3], torch.rand(4, 6).mT, torch.ones(3).expand(2, 3)):
        copy = copied(tensor)
        assert torch.equal(copy, tensor)
        assert copy.data_ptr() != tensor.data_ptr()
        assert copy.stride() == tensor.stride() or 0 in tensor.stride()


def test_learners_are_in_evaluation_mode_wherever_they_are_asked():
    learner = Forgetful().train()
    learner.dropout.train()
    exact = 0.5 * Mean()(EPISODES.context, EPISODES.xq)
    expected = (exact - EPISODES.yq).square().flatten(1).mean(1)
    torch.testing.assert_close(per_task_errors(learner, EPISODES), expected.double())
    torch.testing.assert_close(trajectory_errors(learner, EPISODES)[0], expected.double())
    first, second = (tune(learner, FAMILY, tasks=50) for _ in range(2))
    assert first.mse.value == second.mse.value
    assert first.learner.training
    assert learner.training
    assert learner.dropout.training


def test_an_error_inside_a_learner_is_shown_as_what_it_is():
    def broken(context, xq):
        return Mean()(context, xq, 3)

    with pytest.raises(LearnerError, match=r"but broken raised TypeError \(.*positional argument") as shown:
        per_task_errors(broken, EPISODES)
    assert isinstance(shown.value.__cause__, TypeError)
    with pytest.raises(ArgumentTypeError, match=r"must take what the family draws, here \(context, xq\), but <lambda>"):
        per_task_errors(lambda sequence: sequence, EPISODES)

    for kind in (ValueError, AssertionError, KeyError):  # as of contexts of another length

        def refusing(context, xq, kind=kind):
            raise kind("three pairs")

        with pytest.raises(LearnerError, match=rf"but refusing raised {kind.__name__} \(.*three pairs.*\): fix it"):
            per_task_errors(refusing, EPISODES)

    class Predicting(nn.Module):
        def forward(self, sequence):
            return sequence

    with pytest.raises(ArgumentTypeError, match=r"here \(context, xq\), but Predicting\(\) does not"):
        per_task_errors(Predicting(), EPISODES)


@pytest.mark.parametrize("shape", [(20, 2), (20, 1, 1), (20, 2, 1, 1), (1, 2, 1)])
def test_every_lens_and_tuning_refuse_answers_that_would_broadcast(shape):
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, context, xq):
            tasks = {20: len(xq)}.get(shape[0], 1)
            return self.weight * xq.new_ones(tasks, *shape[1:]) + 0 * xq.sum()

        def trajectory(self, context, xq):
            return self(context, xq)[None]

    wrong = Wrong()
    looks = [
        lambda: per_task_errors(wrong, EPISODES),
        lambda: agreement(wrong, GD, EPISODES),
        lambda: alignment(GD, wrong, EPISODES),
        lambda: measure_learners({"a": [wrong]}, ["a"], EPISODES),
        lambda: sweep({"a": wrong}, FAMILY, {"noise": [0.0]}, tasks=20),
        lambda: trajectory_errors(wrong, EPISODES),
        lambda: tune(wrong, FAMILY, tasks=20),
        lambda: compare(wrong, {"gd": GD}, FAMILY, tasks=20),
    ]
    for look in looks:
        with pytest.raises(ArgumentError, match=r"a learner must return predictions of the answers' shape"):
            look()


@pytest.mark.parametrize("answer", [lambda s: s[..., :1], lambda s: s[:, :-1], lambda s: s[..., None]])
def test_predictions_of_sequences_of_another_shape_are_refused(answer):
    with pytest.raises(ArgumentError, match=r"of the answers' shape \(20, 5, 3\), but <lambda> returned"):
        per_task_errors(answer, SEQUENCES)


def test_a_network_of_another_dtype_is_named_with_what_to_convert():
    class Linear(nn.Linear):
        def forward(self, context, xq):
            return super().forward(xq)

    network = Linear(3, 1).double()
    said = re.escape(
        "a learner must have the dtype of the tasks, torch.float32, but Linear(in_features=3, out_features=1, "
        "bias=True) has weights of torch.float64: convert one of the two with .float() or .double()."
    )
    with pytest.raises(ArgumentTypeError, match=f"^{said}$"):
        compare(network, {"gd": GD}, FAMILY, tasks=10)
    assert compare(network.float(), {"gd": GD}, FAMILY, tasks=10).rows["gd"].mse_ratio.value > 0


def test_memory_that_runs_out_is_said_in_a_sentence():
    def greedy(context, xq):
        return xq.new_empty(2**60)

    rule, count = "^the tasks must fit into memory, but greedy ran out of it on", len(EPISODES.xq)
    with pytest.raises(ArgumentError, match=f"{rule} {count} tasks: pass at most {count // 2}, or smaller ones"):
        per_task_errors(greedy, EPISODES)
    with pytest.raises(ArgumentError, match=rf"{rule} 1 task: pass smaller ones\.$"):
        per_task_errors(greedy, EPISODES.part(0, 1))


@pytest.mark.parametrize("rows", [25, 26, 40])
@pytest.mark.parametrize(("learner", "tolerance"), [(KernelSmoother("gaussian", 0.5), 1e-4), (NearestNeighbours(2), 0)])
def test_distances_far_from_zero_keep_their_digits(rows, learner, tolerance):
    """All inputs moved by 100 change nothing: of these numbers float32 keeps 2^-17."""
    x = torch.round(torch.rand(1, rows, 2, generator=stream(0, "x")) * 256) / 256
    y, xq = torch.rand(1, rows, 1, generator=stream(0, "y")), x[:, :5] + 1 / 512
    near, far = learner(Context(x, y), xq), learner(Context(x + 100, y), xq + 100)
    torch.testing.assert_close(far, near, rtol=0, atol=tolerance)
