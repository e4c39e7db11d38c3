"""Claims and figures that several studies of linear regression share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mesascope import study
from mesascope.studies.icl_gd.regression import INPUT_SCALES, SWEEPS
from mesascope.study import Claim, Figure, Level, Line, Lines, Reading, StageReading, above, below, ours, stage

NAMES = {"gd": "gradient descent", "gd++": "GD++", "centred": "centred descent"}
HALF_MSE = "half mean squared error"
SENSITIVITIES = "cosine of sensitivities"
RELATIVE = "input scale / that of training"
MODELS = "L2 distance of models"
PREDICTIONS = "distance of predictions"
# Id of the premise `suits_training`.
SUITED = "gd-suits-training"
AVERAGED = "The learning rate decays and weights are averaged, which removes the noise that Adam leaves."
# Settings of the authors' code that differ from the text.
ADAM = "Adam's second beta is 0.98, as in the authors' code; the text has the default, 0.999."
INITIAL = (
    "Initial weights have a variance of 0.002 over depth and fan-in, as in the authors' code; the text has a standard "
    "deviation of 0.002 over depth."
)
INPUTS = "Inputs are drawn from U(-0.5, 0.5), as in the authors' code; the text has U(-1, 1)."
UNSEEN_INPUTS = (
    "Inputs of other distributions are divided by the Frobenius norm of the context's inputs, as in the authors' code; "
    "the text does not mention it."
)
CLIPPED = "Gradients are clipped at 0.001, as in the authors' code; the text has 10."


class Panel(NamedTuple):
    """A panel of Fig. 6: name of what changes on an axis, place in the figure, and cases in words."""

    x: str
    place: str
    cases: str


# Panels of Fig. 6 after the first, by the name of their sweep in `regression.SWEEPS`.
CHANGED = {
    "teacher-scale": Panel("teacher scale / that of training", "centre left", "for teachers scaled by 0.5 to 5"),
    "unseen-inputs": Panel(
        "norm of a context's unseen inputs", "centre right",
        "on normal, exponential and Laplace inputs of norm 0.5 to 5",
    ),
    "unseen-teacher-scale": Panel(
        "teacher scale, unseen inputs", "right",
        "on normal, exponential and Laplace inputs, for teachers scaled by 0.5 to 5",
    ),
}  # fmt: skip


def no_better_descent(
    compared: StageReading, reference: str, what: str, *, id: str, tolerance: float = 0.02, quantity: str = "mse"
) -> Claim:
    """Premise: the reference is tuned well; a poorly tuned one would make every network look good.

    The step sizes in the networks' weights must not give a smaller loss. ``quantity="median"`` is for deep descents,
    whose means depend on the few tasks where they explode.
    """
    return Claim(
        id, f"{what} with the step sizes read from each network's weights has at least {1 - tolerance:g} times the "
        f"{'median ' if quantity == 'median' else ''}loss of {what} with tuned step sizes",
        compared.ratio("own", reference, quantity), above(1 - tolerance), ours("premise"), about="algorithms",
    )  # fmt: skip


def suits_training(swept: StageReading, what: str) -> Claim:
    """Premise `SUITED`: step sizes of gradient descent suit the inputs of training.

    Scaling the inputs by r multiplies losses by r^2, and acts like step sizes times r^2, up to clipping. Descent with
    half or twice the best step sizes therefore has a smaller loss / r^2 at another scale.
    """

    def relative_losses(found: Any) -> np.ndarray:
        losses = found["mse", "gd"] / found.cases["x_scale"] ** 2
        low, start, high = (INPUT_SCALES.index(scale) for scale in (0.5, 1.0, 1.5))
        return losses[:, [low, high]] / losses[:, start, None]

    return Claim(
        SUITED, f"the loss of {what} divided by the squared input scale is larger at 0.5 and 1.5 times the scale of "
        "training than at the scale of training",
        swept.map(relative_losses, "(loss / scale^2) / that at the scale of training"), above(1.0),
        ours("premise"), over="algorithms",
    )  # fmt: skip


def as_trained(*names: str) -> Claim:
    """Premise: in stage ``NAME-comparison``, networks have the last logged loss of training ``NAME``, for ``names``."""
    ratios = [stage(f"{name}-comparison")["mse", "trained"] / stage(name)["mse"].at((..., -1), name) for name in names]
    return Claim(
        "networks-as-trained", "on fresh tasks each network has the loss that was logged at the end of its training, "
        "within 20 %",
        study.beside(ratios, "loss on fresh tasks / last logged loss"), study.two_sided(0.2), ours("premise"),
        premises=(),
    )  # fmt: skip


def derivatives(compared: StageReading, *, id: str = "derivatives") -> Claim:
    """Premise: measured sensitivities are derivatives of predictions at the same queries and tasks, within 5 %."""
    return Claim(
        id, "sensitivities agree with difference quotients of predictions at the same queries, within 5 %",
        compared["derivative-error", "trained"] / compared["derivative", "trained"], below(0.05), ours("premise"),
        about="algorithms",
    )  # fmt: skip


def as_predicted(references: Sequence[str], name: str = "predicted", *, id: str = "references-as-predicted") -> Claim:
    """Premise: each algorithm has the loss that its formula predicts."""
    words = "loss of each reference / its expectation over teachers and queries, from spectra of the same contexts"
    return Claim(
        id, "the losses of the reference algorithms are within 3 % of those that theory gives for their step sizes",
        stage(name).map(lambda r: np.concatenate([r["mse", key] / r["expected", key] for key in references]), words),
        study.two_sided(0.03), ours("premise"), over="algorithms", at_least=len(references),
    )  # fmt: skip


def peak_difference(name: str) -> Reading:
    """Each seed's cosine to gradient descent minus that to GD++, at the step where the former is largest."""

    def at_peak(logged: Any) -> np.ndarray:
        to_gd, to_plus = logged["gd cosine"], logged["gd++ cosine"]
        return np.take_along_axis(to_gd - to_plus, to_gd.argmax(axis=1)[:, None], axis=1)[:, 0]

    return stage(name).map(at_peak, "cosine to gradient descent - cosine to GD++, where the former peaks")


def gap_left(one: StageReading, two: StageReading) -> Reading:
    """Excess loss over gradient descent: that of two heads / that of one head, for all pairs of networks."""
    first, second = (heads.ratio("trained", "gd") - 1 for heads in (one, two))
    words = "(loss of two heads - gradient descent's) / (loss of one head - gradient descent's), all pairs of networks"
    return Reading(words, lambda r: np.true_divide.outer(second(r), first(r)))


def over_training(scales: np.ndarray) -> np.ndarray:
    """Input scales of a sweep / that of training, which is half the largest."""
    return scales / (0.5 * scales.max())


def diagonal_spread(matrices: np.ndarray) -> np.ndarray:
    """Largest |entry - mean| / |mean| of each matrix's diagonal without its last entry, which is the target's."""
    inputs = np.diagonal(matrices, axis1=1, axis2=2)[:, :-1]
    return np.abs(inputs / inputs.mean(axis=1, keepdims=True) - 1).max(axis=1)


def contrast_figures(
    name: str,
    title: str,
    references: Sequence[str],
    source: str,
    log: str = "",
    claims: tuple[Claim, ...] = (),
    away: tuple[Claim, ...] = (),
) -> tuple[Figure, Figure]:
    """The two figures of a `contrast`: during training (with ``claims``), and on scaled inputs (with ``away``)."""
    subject, run, swept = title[0].upper() + title[1:], stage(name), stage(f"{name}-input-scale")
    levels = [Level(run[f"{key} mse"] / 2, key, NAMES[key]) for key in references]
    return (
        Figure(
            name, f"{subject} on held-out tasks while training; line and band: mean and range over seeds. {source}.",
            training_panels(run, "trained", references, levels, log), columns=2, claims=claims,
        ),
        Figure(
            f"{name}-input-scale",
            f"{subject} and references where inputs are scaled away from those of training. {source}.",
            panels_over(swept, "x_scale", title, references), claims=away,
        ),
    )  # fmt: skip


def training_panels(
    run: StageReading, label: str, references: Sequence[str], levels: Sequence[Level], log: str = ""
) -> tuple[Lines, ...]:
    """Panels of what `regression.watch_alignment` logs: loss with ``levels``, and alignment with each reference."""

    def to(quantity: str, y: str, log: str = "") -> Lines:
        return study.curves(run, {f"{key} {quantity}": (key, f"to {NAMES[key]}") for key in references}, y, log=log)

    return (
        study.curves(run, {"mse": ("trained", label)}, HALF_MSE, levels, factor=0.5, log=log),
        to("cosine", SENSITIVITIES), to("sensitivity-difference", MODELS, "y"),
        to("prediction-difference", PREDICTIONS, "y"),
    )  # fmt: skip


def relative(swept: StageReading, case: str) -> Reading:
    """Values of a sweep divided by the value of training (1 for teacher scales)."""
    return swept.case(case).map(over_training if case == "x_scale" else lambda x: x, case)


def panels_over(
    swept: StageReading, case: str, title: str, references: Sequence[str], x: str = RELATIVE, middle: bool = False,
    log: str = "y",
) -> tuple[Lines, Lines]:  # fmt: skip
    """Losses along a sweep, and each seed's loss / each reference's, with axis ``log`` and a line at 1.

    With ``middle``, losses of midpoints between trained networks and construction are shown as well.
    """
    at, level = relative(swept, case), Level(1.0, "limit")
    lines = [Line(at, swept["mse", "trained"] / 2, "trained", title)]
    lines += [Line(at, swept["mse", key].at(0, key) / 2, key, NAMES[key], marks="o") for key in references]
    lines += [Line(at, swept["mse", "middle"] / 2, "interpolated", "interpolated")] if middle else []
    shown: Mapping[Reading, Any] = {swept.ratio("trained", key): (key, f"to {NAMES[key]}") for key in references}
    ratios = study.sweep(x, "loss of each seed / of reference", at, shown, [level], each=True, marks=".-", log=log)
    return Lines("", x, HALF_MSE, lines, "y"), ratios


def changed_tasks(
    prefix: str, title: str, references: Sequence[str], source: str, claims: tuple[Claim, ...], middle: bool = False,
    log: str = "y",
) -> Figure:  # fmt: skip
    """Losses for teachers of other scales, and for inputs of other distributions, of the sweeps ``prefix``."""
    pairs = [
        panels_over(stage(prefix + name), SWEEPS[name][0], title, references, panel.x, middle, log)
        for name, panel in CHANGED.items()
    ]
    return Figure(
        f"{prefix}changed-tasks", "First row: teachers scaled away from those of training. Second: normal, exponential "
        "or Laplace inputs, one of them in each task, scaled to a norm. Third: such inputs of norm 1, and teachers of "
        f"other scales. {source}.", tuple(itertools.chain(*pairs)), columns=2, claims=claims,
    )  # fmt: skip


def matched(
    name: str, swept: StageReading, reference: str, where: str, margin: float, source: Any, halfway: tuple[str, ...],
    former: str = "",
) -> tuple[Claim, Claim]:  # fmt: skip
    """Claims that trained networks, and those halfway to the construction, match the reference in a sweep."""
    within, bound = f"within {100 * margin:.0f} % of {NAMES[reference]}'s", study.two_sided(margin)
    return (
        Claim(name, f"{where} each loss is {within}", swept.ratio("trained", reference), bound, source, former=former),
        Claim(f"interpolated-{name}", f"halfway between trained weights and construction losses are {within} {where}",
              swept.ratio("middle", reference), bound, source, premises=halfway, former=former),
    )  # fmt: skip


def matched_elsewhere(
    prefix: str, reference: str, figure: str, halfway: tuple[str, ...], inputs: float
) -> tuple[Claim, ...]:
    """`matched` in the sweeps of `changed_tasks`, with a margin of 5 % for teachers, and another for ``inputs``."""
    pairs = [
        matched(name, stage(prefix + name), reference, panel.cases, inputs if name == "unseen-inputs" else 0.05,
                study.printed(f"Fig. {figure} {panel.place}"), halfway)
        for name, panel in CHANGED.items()
    ]  # fmt: skip
    return tuple(itertools.chain(*pairs))


def products(trained: str, built: str) -> Callable[[Any], dict[str, np.ndarray]]:
    """The first seed's weight products in one stage beside the construction's in another, for `Matrices`."""
    return lambda r: {
        f"$W_{{{index}}}$ {kind}": r[name][key][0]
        for key, index in (("w_kq", "KQ"), ("w_pv", "PV"))
        for kind, name in (("trained (first seed)", trained), ("construction", built))
    }
