"""Behaviour of a learner without reference to candidates: smoother weights, spectral filter, invariances, controls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mesascope.errors import MesascopeError, refuse, require_count, require_instance
from mesascope.evidence.tables import Table
from mesascope.identification.answering import answer, answers, size, squared_differences
from mesascope.identification.conditions import random_bases, random_orders, with_inputs, with_labels
from mesascope.identification.verdict import EXACT
from mesascope.measurement import Measurement
from mesascope.modes import guarded
from mesascope.modules import copied
from mesascope.shapes import Float, Tensor
from mesascope.streams import seeded
from mesascope.tasks import Context, Episode, Learner
from mesascope.tasks.calling import check_tasks

# Eigenvalues below this share of the largest are rounding errors.
_NO_DATA = 1e-12
# Maximum distance of a prediction from the label that it repeats, relative to that from the nearest other label.
_NEAREST = 0.01
# Labels within this share of their size are the same one.
_SAME = 1e-9
# Minimum mean number of eigenvalues in a bin of `spectral_filter`.
_LEAST_IN_BIN = 4
# Changed tasks, and a function that maps an invariant (or equivariant) learner's old predictions to its new ones.
Changed = tuple[Episode, Callable[[Tensor], Tensor]]
Change = Callable[[Episode, torch.Generator], Changed]


@dataclass(frozen=True)
class Bin:
    """A bin of the spectrum: mean eigenvalue of X^T X / n, and the learner's gain along the bin's eigenvectors."""

    eigenvalue: float
    filter: Measurement


@dataclass(frozen=True)
class Behaviour:
    """Behaviour of a learner on a family's tasks; fields are None or empty if the learner gave no answer.

    Args:
        invariances: for each change of the task, squared difference from an invariant learner (see `invariances`).
        superposition: squared deviation of predictions from linearity in the labels (see `superposition`).
        positions: share of the absolute smoother weights at each position of the context.
        ranks: the same shares with pairs sorted by distance from the query, the nearest first.
        copies: share of predictions that equal a label of the context.
        spectrum: spectral filter, by eigenvalue.
        filtered: R^2 of the spectral filter for the smoother weights.
        linear: R^2 of a linear fit of predictions to the query, one fit per task.
    """

    invariances: Mapping[str, Measurement]
    superposition: Measurement | None
    spectrum: tuple[Bin, ...]
    filtered: Measurement | None
    linear: Measurement | None
    positions: tuple[Measurement, ...] = ()
    ranks: tuple[Measurement, ...] = ()
    copies: Measurement | None = None


@guarded
def behaviour_of(learner: Learner, tasks: Episode, generator: torch.Generator) -> Behaviour:
    """Measure the behaviour of a learner, on tasks in the learner's precision."""
    weights, queries = smoother_weights(learner, tasks), tasks.context.x.roll(1, 0)
    spectrum, filtered = (None, None) if weights is None else spectral_filter(weights, tasks)
    maps = implicit_weights(learner, tasks, queries)
    nearest = _by_output(torch.cdist(tasks.xq, tasks.context.x).argsort(-1), tasks.yq.shape[-1])
    return Behaviour(
        invariances(learner, tasks, generator), superposition(learner, tasks),
        tuple(Bin(**row) for row in spectrum or ()), filtered, maps and maps[1],
        () if weights is None else _weight_shares(weights),
        () if weights is None else _weight_shares(torch.take_along_dim(weights, nearest, -1)),
        _copies(learner, tasks),
    )  # fmt: skip


def asked_for_behaviour(task: Episode) -> int:
    """Number of predictions per task for `behaviour_of`, `controls` and `likeness`."""
    n, m = task.context.x.shape[-2], task.xq.shape[-2]
    smoother, superposed, changed, copied, controlled, derived = n + 1, 3, 1 + len(INVARIANCES), 1, 3, 1
    return m * (smoother + superposed + changed + copied + controlled + derived) + 2 * n  # two fits of linear maps


def smoother_weights(learner: Learner, tasks: Episode) -> Float[Tensor, "tasks rows n"] | None:
    """Weights s_i = d yhat / d y_i of each query and output, from n + 1 predictions; exact if linear in labels.

    A pair's labels change together, each by its root mean square (that of all outputs where it is 0), so that rounding
    is negligible. None if the learner does not answer.
    """
    _require_tasks(tasks)
    y = tasks.context.y
    square = y.square().mean(-2, keepdim=True)
    step = torch.where(square > 0, square, square.mean(-1, keepdim=True)).sqrt()
    step = torch.where(step > 0, step, 1.0)
    moved = {"": tasks}
    for row in range(y.shape[-2]):
        change = torch.zeros_like(y)
        change[:, row] = step[:, 0]
        moved[str(row)] = with_labels(tasks, y + change)
    found = answers(learner, moved)
    if len(found) < len(moved):
        return None
    return torch.stack([(found[str(row)] - found[""]) / step for row in range(y.shape[-2])], -1).flatten(1, 2)


def _by_output(by_query: Tensor, outputs: int) -> Tensor:
    """Repeat rows of queries, ``(tasks, m, n)``, for each output, in the order of `smoother_weights`."""
    return by_query.repeat_interleave(outputs, -2)


def _weight_shares(weights: Float[Tensor, "tasks rows n"]) -> tuple[Measurement, ...]:
    """Share of each column in the sum of absolute weights, averaged over rows; 0 if all weights are 0."""
    shares = (weights.abs() / weights.abs().sum(-1, keepdim=True)).nan_to_num(0.0).mean(1)
    return tuple(Measurement.of(column) for column in shares.unbind(1))


def _copies(learner: Learner, tasks: Episode) -> Measurement | None:
    """Share of predictions that equal a label of their context up to rounding; None without an answer.

    Their distance from the label is below 0.1 % of the labels' size, and 1 % of that from the nearest other label.
    """
    found = answer(learner, tasks)
    if found is None:
        return None
    labels = tasks.context.y.double()
    every, size = torch.cdist(found, labels), labels.square().mean((-2, -1)).sqrt()[:, None]
    distances, place = every.min(-1)
    label = labels.gather(1, place[..., None].expand(-1, -1, labels.shape[-1]))
    others = torch.where(torch.cdist(label, labels) > _SAME * size[..., None], every, torch.inf).amin(-1)
    near = distances <= EXACT**0.5 * size
    return Measurement.of((near & (distances <= _NEAREST * others)).double().mean(-1))


def superposition(learner: Learner, tasks: Episode) -> Measurement | None:
    """Squared difference of f(y + y') and f(y) + f(y'), divided by `size`; y' are the labels of another task."""
    _require_tasks(tasks, 2)
    one = tasks.context.y
    other = one.roll(1, 0)
    both = with_labels(tasks, one + other)
    found = answers(learner, {"one": tasks, "other": with_labels(tasks, other), "both": both})
    if len(found) < 3:
        return None
    divisor = size(both, found["both"])
    return Measurement.of(squared_differences(found["both"], found["one"] + found["other"], divisor))


def spectral_filter(
    weights: Float[Tensor, "tasks rows n"], tasks: Episode, bins: int = 12
) -> tuple[Table, Measurement]:
    """Filter h of smoother weights of the form x_q^T h(C) X^T / n, with C = X^T X / n, and the R^2 of this form.

    Along an eigenvector of C, the component of s^T X is that of x_q times h(lambda) lambda. The h of a bin is the
    least-squares slope over all eigenvectors with lambda in the bin. One step of gradient descent has h = eta, k steps
    have (1 - (1 - eta lambda)^k) / lambda, least squares has 1 / lambda, and ridge has 1 / (lambda + ridge / n).

    Bins hold about equally many eigenvalues, and at least four. A bin of a single task has no error and no row.
    Computation is in float64.
    """
    _require_tasks(tasks)
    require_instance("weights", weights, Tensor, "pass smoother_weights of a learner that answers these tasks")
    weights, tasks = weights.double(), tasks.to(torch.float64)
    x, outputs = tasks.context.x, tasks.yq.shape[-1]
    count, n, d = x.shape
    shape = (count, tasks.yq[0].numel(), n)
    if weights.shape != shape:
        refuse("weights", f"have shape {shape}", tuple(weights.shape), "pass smoother_weights of tasks")
    bins = min(require_count("bins", bins), max(count * d // _LEAST_IN_BIN, 1))
    values, basis = torch.linalg.eigh(x.mT @ x / n)
    seen, asked = weights @ x @ basis, _by_output(tasks.xq @ basis, outputs)
    values = torch.where(values > (least := _NO_DATA * float(values.max())), values, 0)  # rounding
    rises = asked * values[..., None, :]
    shares = torch.linspace(0, 1, bins + 1, dtype=values.dtype, device=values.device)
    edges = torch.quantile(values.flatten(), shares)
    place = torch.bucketize(values, edges[1:-1].contiguous())
    rows, filtered = [], torch.zeros_like(values)
    for one in range(bins):
        inside = (place == one)[..., None, :]
        above, below = ((part * inside).sum((-2, -1)) for part in (seen * rises, rises.square()))
        members = int((below > 0).sum())
        if not members or not bool((values[place == one] > least).any()):
            continue
        filtered = torch.where(place == one, above.sum() / below.sum(), filtered)
        if members > 1:
            height = Measurement.ratio(above, below)
            rows.append({"eigenvalue": float(values[place == one].mean()), "filter": height})
    fitted = torch.einsum("...md,...d,...nd->...mn", asked, filtered, x @ basis) / n
    left = (weights - fitted).square().sum((-2, -1))
    return Table(rows), _explained(left, weights.square().sum((-2, -1)))


def implicit_weights(
    learner: Learner, tasks: Episode, queries: Float[Tensor, "tasks m dx"]
) -> tuple[Float[Tensor, "tasks dx dy"], Measurement] | None:
    """Least-squares linear map from ``queries`` to predictions, by task, and its uncentred R^2; None if unanswered."""
    _require_tasks(tasks)
    require_instance("queries", queries, Tensor, "pass inputs (tasks, m, dx)")
    targets = queries.new_zeros(*queries.shape[:-1], tasks.context.y.shape[-1])
    predicted, queries = answer(learner, Episode(tasks.context, queries, targets)), queries.double()
    if predicted is None:
        return None
    maps = torch.linalg.lstsq(queries, predicted).solution
    left = (predicted - queries @ maps).square().sum((-2, -1))
    return maps, _explained(left, predicted.square().sum((-2, -1)))


def _require_tasks(tasks: Episode, least: int = 1) -> None:
    """Raise unless ``tasks`` are episodes with one first axis, at least one pair each, and at least ``least`` tasks."""
    require_instance("tasks", tasks, Episode, "draw them with family.sample(batch, generator)")
    check_tasks(tasks)
    if len(tasks.xq) < least or not tasks.context.x.shape[1]:
        rule = f"be at least {least}, with one or more pairs each"
        refuse("tasks", rule, tuple(tasks.context.x.shape), "draw others")


def _explained(left: Tensor, whole: Tensor) -> Measurement:
    """Explained share: 1 - sum of ``left`` / sum of ``whole``."""
    if not float(whole.sum()):
        return Measurement(0.0, 0.0, len(whole))
    ratio = Measurement.ratio(left, whole)
    return Measurement(1 - ratio.value, ratio.stderr, ratio.n)


def invariances(learner: Learner, tasks: Episode, generator: torch.Generator) -> dict[str, Measurement]:
    """Squared difference from the predictions that invariance requires, for each change of the task.

    Squared differences are divided by `size`; changes that the learner does not answer are missing.
    """
    _require_tasks(tasks)
    require_instance("generator", generator, torch.Generator, 'pass stream(0, "changes"), say')
    plain, found = answer(learner, tasks), {}
    if plain is None:
        return found
    for name, change in INVARIANCES.items():
        changed, expected = change(tasks, generator)
        seen = answer(learner, changed)
        if seen is not None:
            wanted = expected(plain)
            found[name] = Measurement.of(squared_differences(seen, wanted, size(changed, wanted)))
    return found


def _same(predicted: Tensor) -> Tensor:
    return predicted


def _permuted(tasks: Episode, generator: torch.Generator) -> Changed:
    order = random_orders(tasks, generator)
    context = Context(*(torch.take_along_dim(part, order, -2) for part in tasks.context))
    return tasks._replace(context=context), _same


def _labels(change: Callable[[Tensor], Tensor]) -> Change:
    """Change of labels that should change predictions in the same way."""
    return lambda tasks, generator: (with_labels(tasks, change(tasks.context.y)), change)


def _inputs(change: Callable[[Tensor], Tensor]) -> Change:
    """Change of all inputs that should not change predictions."""
    return lambda tasks, generator: (with_inputs(tasks, change), _same)


def _rotated(tasks: Episode, generator: torch.Generator) -> Changed:
    basis = random_bases(tasks, generator)
    return with_inputs(tasks, lambda x: x @ basis), _same


def _twice(tasks: Episode, generator: torch.Generator) -> Changed:
    return tasks._replace(context=Context(*(torch.cat([part, part], -2) for part in tasks.context))), _same


def controls(
    learner: Learner, tasks: Episode, shuffled: Episode | None, other: Learner | None
) -> dict[str, Measurement]:
    """Errors of the learner relative to predicting zero: as it is, with shuffled labels, without pairs, and untrained.

    A learner that uses its context has an error below 1, and larger errors with shuffled labels and without pairs.

    Args:
        other: `untrained` copy of the learner, if there is one.
    """
    nothing = tasks._replace(context=Context(*(part[:, :0] for part in tasks.context)))
    asked = {"as it is": (learner, tasks), "no pairs": (learner, nothing)}
    if shuffled is not None:
        asked["shuffled labels"] = (learner, shuffled.to(tasks.xq.dtype))
    if other is not None:
        asked["untrained"] = (other, tasks)
    found = {}
    for name, (one, episode) in asked.items():
        seen, targets = answer(one, episode), episode.yq.double()
        if seen is not None and targets.any():
            errors, zero = (part.square().mean((-2, -1)) for part in (seen - targets, targets))
            found[name] = Measurement.ratio(errors, zero)
    return found


def untrained(learner: Any, generator: torch.Generator) -> Learner | None:
    """Copy of a network with new random weights, from its config or by reset_parameters(); None if neither can."""
    if not isinstance(learner, nn.Module):
        return None
    config: Any = getattr(learner, "config", None)
    if hasattr(config, "build"):
        with contextlib.suppress(Exception):  # a build() of another meaning
            return config.build(generator).to(next(iter(learner.parameters()))).eval()
    try:
        found = copied("learner", learner)
    except MesascopeError:
        return None
    own = [part for part in found.modules() if any(True for _ in part.parameters(recurse=False))]
    if not own or not all(hasattr(part, "reset_parameters") for part in own):
        return None
    with seeded(generator.initial_seed(), next(found.parameters()).device):
        for part in own:
            part.reset_parameters()  # type: ignore[operator]
    return found.eval()


INVARIANCES: Mapping[str, Change] = {
    "pairs in another order": _permuted,
    "labels twice as large": _labels(lambda y: 2 * y),
    "labels of the other sign": _labels(lambda y: -y),
    "labels plus 1": _labels(lambda y: y + 1),
    "inputs rotated": _rotated,
    "inputs twice as large": _inputs(lambda x: 2 * x),
    "inputs plus 1": _inputs(lambda x: x + 1),
    "every pair twice": _twice,
}
