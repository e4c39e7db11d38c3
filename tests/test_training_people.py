"""Training at a terminal: progress, Ctrl-C, the history, and seeds."""

import dataclasses
import itertools
import math
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from mesascope.errors import ArgumentError, ArgumentTypeError, MesascopeError, NumericalError
from mesascope.lenses import per_task_errors
from mesascope.meta import MAML, MetaLearner
from mesascope.nets import InContextRegressorConfig, TransformerConfig
from mesascope.progress import part_of, tracked
from mesascope.runs.checkpoints import TrainingCheckpoints
from mesascope.streams import stream
from mesascope.tasks import Context, Episode, LinearRegression
from mesascope.training import Ensemble, EnsembleState, ModuleState, ProgressBar, Training, fit, half_mse, train

FAMILY = LinearRegression(n_context=4, d_in=2)
PLAN = Training(steps=9, batch=8, learning_rate=0.01, checkpoint_every=100)
make = InContextRegressorConfig(TransformerConfig(width=3, init_scale=0.1)).build


@pytest.fixture(autouse=True)
def at_a_keyboard():
    """Ctrl-C interrupts, also where a shell started the tests in the background; SIGTERM, as on the command line."""
    before = {one: signal.signal(one, signal.default_int_handler) for one in (signal.SIGINT, signal.SIGTERM)}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


class Linears(nn.Module):
    """Layers of torch's own, which take no generator."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, context, xq):
        return self.layer(torch.cat([xq, context.y.mean(-2, keepdim=True).expand_as(xq[..., :1])], -1))


class Memory:
    def __init__(self):
        self.saved = None

    def save(self, step, tensors):
        self.saved = step, {name: tensor.clone() for name, tensor in tensors.items()}

    def load(self):
        return self.saved


def pressing(at, times=1, number=signal.SIGINT):
    """An observer that presses Ctrl-C at a step, or sends another signal."""

    def observe(step, metrics):
        if step == at:
            for _ in range(times):
                signal.raise_signal(number)

    return observe


def weights(ensemble):
    return torch.cat([weight.detach().flatten() for weight in ensemble.weights.values()])


def test_an_interrupted_training_keeps_what_it_has():
    with pytest.warns(UserWarning, match=r"^the training was interrupted after step 5 of 9\.$"):
        trained = train(make, FAMILY, PLAN, observe=pressing(4))
    whole = train(make, FAMILY, Training(steps=5, batch=8, learning_rate=0.01, schedule="constant"))
    assert [row["step"] for row in trained.history] == [1, 2, 3, 4, 5]
    assert torch.equal(weights(trained), weights(whole))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(("number", "times"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGTERM, 2)])
def test_an_interrupted_training_with_checkpoints_ends_as_if_nothing_had_been_once_resumed(number, times, capsys):
    """SIGTERM comes twice where `make` or `timeout` passes it on."""
    memory = Memory()
    with pytest.raises(KeyboardInterrupt):
        train(make, FAMILY, PLAN, checkpoints=memory, observe=pressing(4, times, number))
    assert memory.saved[0] == 5
    assert signal.getsignal(number) is signal.default_int_handler
    resumed = train(make, FAMILY, PLAN, checkpoints=memory)
    assert capsys.readouterr().err == "training: continues after step 5 of 9, its last checkpoint\n"
    assert torch.equal(weights(resumed), weights(train(make, FAMILY, PLAN)))
    assert resumed.history == train(make, FAMILY, PLAN).history


def test_a_killed_training_loses_a_minute_of_work_at_most(monkeypatch):
    """Steps of 25 seconds: the third since the last checkpoint is saved, whatever `checkpoint_every`."""
    seconds, saved, memory = itertools.count(0.0, 25.0), [], Memory()
    monkeypatch.setattr("mesascope.training.loop.monotonic", lambda: next(seconds))
    monkeypatch.setattr(Memory, "save", lambda self, step, tensors: saved.append(step))
    train(make, FAMILY, PLAN, checkpoints=memory)
    assert saved == [0, 3, 6, 9]


def test_checkpoints_of_ones_own_are_kept_in_a_folder(tmp_path):
    kept = TrainingCheckpoints(str(tmp_path / "mine"), {"name": "mine"}, "cpu")
    with pytest.raises(KeyboardInterrupt):
        train(make, FAMILY, PLAN, checkpoints=kept, observe=pressing(4))
    assert torch.equal(weights(train(make, FAMILY, PLAN, checkpoints=kept)), weights(train(make, FAMILY, PLAN)))


def test_checkpoints_of_another_training_are_refused(tmp_path):
    kept = TrainingCheckpoints(tmp_path / "mine", {"name": "mine"})
    whole = train(make, FAMILY, PLAN, seeds=[0, 1], checkpoints=kept)
    again = train(make, FAMILY, PLAN, seeds=[0, 1], checkpoints=kept)
    assert list(again.history[0]) == list(whole.history[0])
    wider = InContextRegressorConfig(TransformerConfig(width=5, init_scale=0.1)).build
    for build, plan, seeds, message in (
        (make, PLAN, [5, 6], r"checkpoints must be of a training with seeds \[5, 6\], but is \[0, 1\]"),
        (
            make,
            dataclasses.replace(PLAN, steps=4),
            [0, 1],
            "checkpoints must be of at most 4 steps, but is 'at step 9'",
        ),
        (wider, PLAN, [0, 1], r"a checkpoint must hold the weights of the model .* has \S+ of shape .* in place of"),
    ):
        with pytest.raises(ArgumentError, match=message):
            train(build, FAMILY, plan, seeds=seeds, checkpoints=kept)


def test_who_presses_twice_does_not_wait():
    seen = []
    with pytest.raises(KeyboardInterrupt):
        train(make, FAMILY, PLAN, observe=lambda step, metrics: (seen.append(step), pressing(4, times=2)(step, {})))
    assert seen == [1, 2, 3, 4]


def test_threads_and_programs_that_answer_ctrl_c_themselves_are_left_alone():
    before, results = signal.getsignal(signal.SIGINT), []
    thread = threading.Thread(target=lambda: results.append(train(make, FAMILY, PLAN)))
    thread.start()
    thread.join()
    assert len(results[0].history) == 9
    heard = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        assert len(train(make, FAMILY, PLAN, observe=pressing(4)).history) == 9
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_the_history_has_a_row_for_each_step_and_seed():
    seen = {}
    plan = Training(steps=3, batch=8, average=2.0)
    trained = train(make, FAMILY, plan, seeds=[4, 7], observe=lambda step, metrics: seen.update({step: metrics}))
    assert [(row["step"], row["seed"]) for row in trained.history] == [(s, n) for s in (1, 2, 3) for n in (4, 7)]
    assert trained.history.columns == ["step", "seed", "loss", "gradient_norm", "learning_rate"]
    assert trained.history[3]["loss"] == seen[2]["loss"][1].item()
    assert Ensemble(trained.members()).history == []
    assert repr(trained).startswith("Ensemble of 2: InContextRegressor")


def test_the_loss_that_is_printed_and_kept_is_half_the_mean_squared_error_as_pages_say():
    family = LinearRegression(n_context=4, d_in=2)
    trained = train(make, family, Training(steps=1, batch=50))
    tasks = family.sample(50, stream(0, "train", 0))
    errors = per_task_errors(make(stream(0, "init")), tasks)
    assert trained.history["loss"][0] == pytest.approx(errors.mean().item() / 2)
    docs = Path(__file__).parents[1] / "docs"
    for page in ("own-learner.md", "own-transformer.md"):
        assert "`half_mse`" in (docs / page).read_text()


@pytest.fixture
def clock(monkeypatch):
    """Ten seconds pass from one look at the time to the next."""
    seconds = itertools.count(0.0, 10.0)
    monkeypatch.setattr("mesascope.progress.monotonic", lambda: next(seconds))


def test_short_work_shows_nothing(capsys):
    train(make, FAMILY, PLAN)
    assert list(tracked(range(100), "items")) == list(range(100))
    assert capsys.readouterr().err == ""


def test_a_log_has_a_line_each_tenth_with_the_time_left(clock, capsys):
    """No estimate before there is a pace, and none of 0 s before the end."""
    train(make, FAMILY, Training(steps=100, batch=8))
    lines = capsys.readouterr().err.splitlines()
    steps = [1, *range(10, 101, 10)]
    assert [line.partition(", loss ")[0] for line in lines] == [f"training: step {step} of 100" for step in steps]
    ends = [line.split(", ")[-1] for line in lines]
    assert ends[0].startswith("loss ")
    left = "17 min", "15 min", "13 min", "11 min", "8 min 31 s", "6 min 47 s", "5 min 5 s", "3 min 23 s", "1 min 42 s"
    assert ends[1:] == [*(f"{one} left" for one in left), "took 17 min"]


def test_work_of_unknown_length_shows_a_line_each_time_its_duration_has_doubled(clock, capsys):
    assert len(list(tracked(iter(range(100)), "items"))) == 100
    assert capsys.readouterr().err.splitlines() == [f"items: {count}" for count in (1, 2, 4, 8, 16, 32, 64)]


def test_work_that_is_part_of_a_measurement_names_it_and_is_silent_where_it_ends_soon(clock, capsys, monkeypatch):
    with part_of("measuring weights"):
        list(tracked(range(3), "parts"))
    assert capsys.readouterr().err.splitlines()[0] == "measuring weights: parts: 1 of 3, 20 s left"
    seconds = itertools.count(0.0, 1.0)
    monkeypatch.setattr("mesascope.progress.monotonic", lambda: next(seconds))
    list(tracked(range(5), "parts"))
    assert capsys.readouterr().err == ""


def test_progress_within_progress_does_not_mix(clock, capsys):
    for _ in tracked(range(3), "outer"):
        list(tracked(range(2), "inner"))
    assert capsys.readouterr().err.count("inner") == 2, "of the first, which began before any other was shown"


def test_a_terminal_shows_a_bar_in_place_of_lines(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    train(make, FAMILY, PLAN)
    shown = capsys.readouterr().err
    assert "step 9 of 9" in shown
    assert "━" in shown


@pytest.mark.parametrize("variable", [("MESASCOPE_PROGRESS", "0"), ("RANK", "1")])
def test_progress_is_silent_where_it_is_asked_to_be(variable, clock, capsys, monkeypatch):
    train(make, FAMILY, PLAN, observe=lambda step, metrics: None)
    monkeypatch.setenv(*variable)
    train(make, FAMILY, PLAN)
    assert capsys.readouterr().err == ""


def test_layers_without_a_generator_start_from_the_seed_and_not_from_what_was_drawn_before():
    def starts():
        trained = train(lambda generator: Linears(), FAMILY, Training(steps=1, learning_rate=1e-30), seeds=[3, 5])
        return trained.weights["layer.weight"]

    torch.manual_seed(0)
    first = starts()
    state = torch.get_rng_state()
    torch.manual_seed(1)
    second = starts()
    assert torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    torch.manual_seed(0)
    starts()
    assert torch.equal(torch.get_rng_state(), state)
    explicit = nn.init.normal_(torch.empty(3), generator=stream(3, "init"))
    with_both = []
    train(lambda g: with_both.append((torch.randn(3), torch.randn(3, generator=g))) or Linears(), FAMILY, PLAN, [3])
    assert not torch.equal(*with_both[0])
    assert torch.equal(with_both[0][1], explicit)


def test_a_frozen_part_stays_as_it_is():
    def frozen(generator):
        net = Linears()
        net.layer.weight.requires_grad_(False)
        return net

    trained = train(frozen, FAMILY, PLAN, seeds=[0, 1])
    short = train(frozen, FAMILY, Training(steps=1, batch=8), seeds=[0, 1])
    assert torch.equal(trained.weights["layer.weight"], short.weights["layer.weight"])
    assert not torch.equal(trained.weights["layer.bias"], short.weights["layer.bias"])


def test_an_ensemble_is_asked_for_all_its_members_at_once():
    ensemble = Ensemble([make(stream(0, "init"))])
    episode = FAMILY.sample(5, stream(0, "t"))
    with pytest.raises(ArgumentError, match=r"inputs must have a first axis of 1, one per member, but is \(5, 4, 2\)"):
        ensemble(episode.context, episode.xq)
    with pytest.raises(ArgumentTypeError, match=r"given an ensemble of 1: pass one of its members\(\)\.$"):
        per_task_errors(ensemble, episode)


def test_a_predictor_that_writes_into_its_sequence_does_not_change_the_answers():
    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, sequence):
            answer = sequence * self.weight
            sequence.zero_()
            return answer

    sequence = torch.tensor([[[1.0], [3.0], [5.0]]])
    assert half_mse(Writing(), sequence.clone()).item() == 2.0


@pytest.mark.parametrize(
    ("state", "batch_at", "said"),
    [
        (None, lambda step: 0, "state must be of type TrainingState"),
        (EnsembleState([Linears()], half_mse, PLAN), None, "batch_at must be callable, but is None"),
    ],
)
def test_what_cannot_be_fitted_is_refused(state, batch_at, said, unchecked):
    with pytest.raises(ArgumentTypeError, match=said):
        fit(state, batch_at, PLAN)


# Networks whose members cannot be copied afterwards are refused before the first step


class Locked(Linears):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Iterating(Linears):
    """Keeps from its first call on what cannot be copied."""

    def forward(self, context, xq):
        self.rows = (row for row in context.x)
        return super().forward(context, xq)


class Sparse(Linears):
    """Has a buffer of a kind that no file holds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("indices", torch.eye(3).to_sparse())


def lambdas():
    net = Linears()
    net.scale = lambda x: x
    return net


def steps_of(make, **options):
    """The number of steps that a training of these took before it was refused."""
    seen = []
    with pytest.raises(MesascopeError) as refused:
        train(lambda generator: make(), FAMILY, PLAN, observe=lambda step, metrics: seen.append(step), **options)
    return len(seen), str(refused.value)


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
@pytest.mark.parametrize("make", [Locked, Iterating])
def test_modules_that_cannot_be_copied_are_refused_before_the_first_step(make, seeds):
    steps, said = steps_of(make, seeds=seeds)
    assert steps == 0
    assert f"members must be a module that copy.deepcopy can copy, but {make.__name__} is not (TypeError: " in said
    assert "keep locks, files and iterators outside it" in said
    with pytest.raises(ArgumentTypeError, match=r"module must be a module that copy\.deepcopy can copy, but Locked is"):
        ModuleState(Locked(), half_mse, dataclasses.replace(PLAN, average=1.0))


def test_what_can_be_copied_and_saved_is_trained(tmp_path):
    assert len(train(lambda generator: lambdas(), FAMILY, PLAN).members()) == 1
    net = Linears()
    net.register_buffer("view", net.layer.weight.data[0])  # shares its memory
    kept = TrainingCheckpoints(tmp_path / "mine", {"name": "mine"})
    fit(ModuleState(net, half_mse, PLAN), lambda step: FAMILY.sample(4, stream(0, "t", step)), PLAN, checkpoints=kept)
    assert torch.equal(kept.load()[1]["buffers/view"], net.layer.weight[0])


@pytest.mark.parametrize("what", ["a file in the place of the folder", "tensors that no file holds", "no numbers yet"])
def test_what_cannot_be_saved_is_refused_before_the_first_step(what, tmp_path):
    (tmp_path / "file").write_text("")
    kept = TrainingCheckpoints(tmp_path / ("file" if "folder" in what else "kept") / "mine", {"name": "mine"})
    if what == "no numbers yet":
        with pytest.raises(ArgumentError, match="module must have parameters of known shapes, but weight is not init"):
            ModuleState(nn.LazyLinear(1), half_mse, PLAN)
        return
    net = Sparse() if "tensors" in what else Linears()
    seen = []
    with pytest.raises(ArgumentError, match="checkpoints must save the state of the training, but could not before"):
        fit(ModuleState(net, half_mse, PLAN), lambda step: seen.append(1) or FAMILY.sample(4, stream(0, "t")), PLAN,
            checkpoints=kept)  # fmt: skip
    assert not seen


# Numbers that are not finite


class Drawing:
    """A family one of whose tasks holds, from a step on, a number that is not finite."""

    def __init__(self, where, value, step=0):
        self.where, self.value, self.step, self.drawn = where, value, step, 0

    def sample(self, batch, generator):
        tasks = FAMILY.sample(batch, generator)
        if self.drawn == self.step:
            {"x": tasks.context.x, "y": tasks.context.y, "xq": tasks.xq, "yq": tasks.yq}[self.where][5, 0, 0] = (
                self.value
            )
        self.drawn += 1
        return tasks


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize(("where", "value"), [("x", math.nan), ("y", math.inf), ("xq", math.nan), ("yq", -math.inf)])
def test_data_that_are_not_finite_are_named(where, value, step):
    message = rf"at step {step + 1} {where} of task 5{{}} holds {value} \(index .*fix the code that draws"
    with pytest.raises(NumericalError, match=message.format(" of member 0")) as raised:
        train(make, Drawing(where, value, step), PLAN)
    assert "learning rate" not in str(raised.value)
    learner = MetaLearner(nn.Linear(2, 1), MAML(0.1, 1, loss=nn.functional.mse_loss))
    states = [(Reading(), half_mse), (learner, MetaLearner.loss)]
    for module, loss in states:
        family = Drawing(where, value, step)
        with pytest.raises(NumericalError, match=message.format("")):
            fit(ModuleState(module, loss, PLAN), lambda i, f=family: f.sample(8, stream(0, "t", i)), PLAN)


class Reading(Linears):
    """Reads all of a context."""

    def forward(self, context, xq):
        return super().forward(context, xq) + context.x.mean((-1, -2), keepdim=True)


def test_data_of_one_member_are_named_with_it():
    class Seeds(Drawing):
        def seeded(self, seed):
            return Drawing("x", math.nan if seed == 4 else 0.0, step=2)

    with pytest.raises(NumericalError, match="at step 3 x of task 5 of member 1 holds nan"):
        train(make, Seeds("x", 0.0), PLAN, seeds=[3, 4])


def test_a_loss_that_is_not_finite_from_the_start_is_not_put_down_to_the_learning_rate():
    def loss(model, tasks):
        return half_mse(model, tasks) * math.nan

    with pytest.raises(
        NumericalError, match=r"is not at step 1, before any weight has changed .* on data that are fin"
    ):
        fit(ModuleState(Linears(), loss, PLAN), lambda step: FAMILY.sample(4, stream(0, "t", step)), PLAN)


def test_a_context_that_is_not_finite_is_not_adapted_to():
    context = Context(torch.tensor([[1.0, math.nan]]), torch.ones(1, 1))
    with pytest.raises(NumericalError, match=r"x of task 0 holds nan \(index \[0, 1\]\)"):
        MAML(0.1, 1, loss=nn.functional.mse_loss).adapt(nn.Linear(2, 1), context)


# Trainings that make a model worse


def classes(step, tasks=4):
    """Two classes that lie apart, elsewhere in each task."""
    generator = stream(0, "train", step)
    middles = torch.randn(tasks, 2, 4, generator=generator)
    labels = torch.eye(2).repeat(5, 1).expand(tasks, 10, 2)
    x, xq = (labels @ middles + 0.3 * torch.randn(tasks, 10, 4, generator=generator) for _ in range(2))
    return Episode(Context(x, labels), xq, labels)


def few_shot(rate):
    torch.manual_seed(0)
    net, plan = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), Training(100, learning_rate=rate)
    state = ModuleState(MetaLearner(net, MAML(0.5, 2), stream(0, "init")), MetaLearner.loss, plan)
    return fit(state, classes, plan)


def test_a_meta_learner_that_is_worse_after_training_is_told_so():
    with pytest.warns(UserWarning, match=r"made the model worse: on .* accuracy was 0\.[89]\d+ before and is 0\.[5-7]"):
        few_shot(1.0)


def test_a_training_that_helps_is_silent_and_ends_as_it_would_unjudged(monkeypatch):
    found = few_shot(1e-3)
    monkeypatch.setattr(ModuleState, "evaluate", lambda state, batch: {})
    for one, other in zip(found.parameters(), few_shot(1e-3).parameters(), strict=True):
        assert torch.equal(one, other)


def test_members_whose_loss_has_grown_are_named():
    plan = Training(steps=100, batch=32, learning_rate=0.5, optimizer="sgd", momentum=0.99, schedule="constant")
    with pytest.warns(UserWarning, match=r"made member \d worse: on the tasks of the first 5 steps the loss was"):
        train(lambda generator: Linears(), FAMILY, plan, seeds=[0, 1])


def test_without_a_console_training_goes_on(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    seen = []
    with ProgressBar("one", 2) as bar:
        train(make, FAMILY, PLAN, observe=lambda *step: (seen.append(step), bar(*step)))
    assert len(seen) == PLAN.steps
    assert not any(train(make, FAMILY, PLAN).diverged)
