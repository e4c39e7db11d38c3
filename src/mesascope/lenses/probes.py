"""Linear probes of a network's activations at each layer and time, evaluated on held-out sequences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from mesascope.errors import ArgumentError, refuse, require_choice, require_instance, require_number
from mesascope.evidence import Estimates
from mesascope.lenses.access import (
    activations_of,
    chosen_times,
    numbers,
    require_causal,
    require_groups,
    require_sequences,
)
from mesascope.lenses.needs import HasActivations
from mesascope.records import register
from mesascope.shapes import Float, Int, Tensor
from mesascope.streams import stream
from mesascope.training.modes import evaluating

PROBED = ("next", "preconditioned", "implicit")


@register("lens", "probe", needs="activations", of="predictor")
def probe(
    groups: Mapping[str, Sequence[HasActivations]],
    sequences: Float[Tensor, "tasks t d"],
    target: str = "next",
    *,
    times: Sequence[int] | None = None,
    ridge: float = 1e-3,
    regulariser: float = 1e-3,
    generator: torch.Generator | None = None,
) -> Estimates:
    """Errors of linear maps from activations to a target, one for each layer and time. Needs *activations*.

    Each map is affine and is fitted by ridge regression on half of the sequences; errors are measured on the other
    half. Cases are ``layer`` (0 is before the first) and ``t``, the number of known elements. ``("mse", group)`` is the
    mean squared error, and ``("before", group)`` the error of the previous layer at the same time (of layer 0 for
    layer 0). Errors of ratios within a case count that its sequences are shared; those of ratios between cases do not.
    Baselines: ``("mse", "group-shuffled")``, maps fitted to targets of other sequences, and ``("mse", "constant")``,
    the targets' mean.

    Targets: ``"next"`` is the next element. ``"preconditioned"`` is A_t^{-1} s_t with A_t = sum_{i<t} s_i s_i^T +
    regulariser I. ``"implicit"`` is the next element, predicted by a gradient step eta sum_{i<=t} s_i s_{i-1}^T x_t:
    x_t is the output of the probe of ``"preconditioned"``, and eta is fitted for each layer and time. The baseline
    ``("mse", "input")`` takes the same step with x_t = s_t.

    Args:
        groups: networks by name, one for each replicate, all of one depth. Untrained networks serve as a control.
        times: values of t, from 1 to length - 1; all if None.
        ridge: ridge penalty of the probes' weights per sequence, relative to the mean squared activation. The constant
            has none.
        regulariser: see the target ``"preconditioned"``; 1/lambda in the source.
        generator: draws the shuffled targets; with seed 0 if None.

    Raises:
        ArgumentError: there are fewer than four sequences, or a group has the name of a baseline.

    Source: von Oswald (2024), section 3.5.1, Figs. 3.3, 3.4 and 3.13.
    """
    require_sequences("probe", sequences)
    require_groups("probe", groups)
    require_choice("target", target, PROBED)
    ridge = require_number("ridge", ridge, above=0)
    require_instance("generator", generator, torch.Generator | None, "pass stream(0, 'shuffled'), say")
    generator = stream(0, "shuffled") if generator is None else generator
    baselines = {"constant", *(["input"] if target == "implicit" else []), *(f"{name}-shuffled" for name in groups)}
    if taken := baselines & {*groups}:
        refuse("groups", f"have other names than the baselines {', '.join(sorted(baselines))}", min(taken), "rename it")
    if len(sequences) < 4:
        refuse("sequences", "be at least 4, to fit on half of them", len(sequences), "draw more")
    chosen = chosen_times(times, sequences)
    at, wide = [time - 1 for time in chosen], sequences.double()
    wanted = preconditioned(wide[:, :-1], regulariser)[:, at] if target != "next" else wide[:, 1:][:, at]
    read = _implicit(wide, at) if target == "implicit" else None
    errors: dict[str, list[Tensor]] = {}  # each (layers, held out, times)
    everyone: list[tuple[str, Any]] = [(name, member) for name, members in groups.items() for member in members]
    for name, member in everyone:
        require_causal([member], sequences[:, :-1])
        with torch.no_grad(), evaluating(member):
            layers = [tokens[:, at].double() for tokens in activations_of(member, sequences[:, :-1])]
        errors.setdefault(name, []).append(torch.stack([_probe_errors(own, wanted, ridge, read) for own in layers]))
        order = _shuffled(len(wanted), generator).to(wanted.device)
        found = torch.stack([_probe_errors(own, wanted[order], ridge, read) for own in layers])
        if read is None:  # each error in the place of its target: paired with the errors of the targets' mean
            found = found[:, _held(order).argsort()]
        errors.setdefault(f"{name}-shuffled", []).append(found)
    truth = wanted if read is None else read[1]
    fixed = {"constant": (_held(truth) - _fitted(truth).mean(0)).square().mean(-1)}
    if read is not None:
        fixed["input"] = (_held(_stepped(wide[:, :-1][:, at], *read)) - _held(truth)).square().mean(-1)
    return _by_layer_and_time(errors, fixed, groups, chosen)


def _by_layer_and_time(
    errors: dict[str, list[Tensor]], fixed: dict[str, Tensor], groups: Iterable[str], times: list[int]
) -> Estimates:
    """Estimates by layer and time, from errors ``(layers, held out, times)``; ``fixed`` errors have no layers."""
    depths = {len(one) for own in errors.values() for one in own}
    if len(depths) > 1:
        raise ArgumentError(
            f"groups must be networks of one depth, but have {sorted(depths)} activations: probe each depth."
        )
    depth = depths.pop()
    every = errors | {name: [one.expand(depth, -1, -1)] for name, one in fixed.items()}
    columns = {("mse", name): own for name, own in every.items()}
    columns |= {("before", name): [torch.cat([one[:1], one[:-1]]) for one in errors[name]] for name in groups}
    places = [(layer, place) for layer in range(depth) for place in range(len(times))]
    points = [
        Estimates.of({name: [numbers(one[layer, :, place]) for one in own] for name, own in columns.items()})
        for layer, place in places
    ]
    cases = {"layer": [layer for layer, _ in places], "t": [times[place] for _, place in places]}
    return Estimates.over(cases, points)


def preconditioned(sequences: Float[Tensor, "tasks t d"], regulariser: float) -> Float[Tensor, "tasks t d"]:
    """(sum_{i<t} s_i s_i^T + regulariser I)^{-1} s_t at every t: the input for which one gradient step is optimal.

    Source: von Oswald (2024), section 3.3.
    """
    regulariser = require_number("regulariser", regulariser, above=0)
    identity = regulariser * torch.eye(sequences.shape[-1]).to(sequences)
    gram, rows = identity.expand(len(sequences), -1, -1), []
    for element in sequences.unbind(1):
        rows.append(torch.linalg.solve(gram, element))
        gram = gram + element[:, :, None] * element[:, None, :]
    return torch.stack(rows, 1)


def _implicit(sequences: Tensor, at: list[int]) -> tuple[Tensor, Tensor]:
    """The sum of s_i s_{i-1}^T over i <= t, and the element s_{t+1}, for each chosen t."""
    before = functional.pad(sequences, (0, 0, 1, 0))[:, :-1]
    sums = (sequences[..., :, None] * before[..., None, :]).cumsum(1)
    return sums[:, :-1][:, at], sequences[:, 1:][:, at]


def _shuffled(count: int, generator: torch.Generator) -> Int[Tensor, " tasks"]:
    """A permutation of the fitted sequences among themselves, and of the held-out ones."""
    options: dict[str, Any] = {"generator": generator, "device": generator.device}
    fitted = count // 2
    return torch.cat([torch.randperm(fitted, **options), fitted + torch.randperm(count - fitted, **options)])


def _stepped(inputs: Tensor, sums: Tensor, truth: Tensor) -> Tensor:
    """Predictions eta sums_t x_t from inputs x_t, with one eta for each time, fitted on half of the sequences."""
    found = torch.einsum("btij,btj->bti", sums, inputs)
    own, wanted = _fitted(found), _fitted(truth)
    size = own.square().sum((0, 2))  # 0 at t = 1, where every eta predicts 0
    return found * ((own * wanted).sum((0, 2)) / torch.where(size > 0, size, 1))[:, None]


def _probe_errors(
    tokens: Tensor, targets: Tensor, ridge: float, read: tuple[Tensor, Tensor] | None
) -> Float[Tensor, "held times"]:
    """Mean squared errors on the held-out sequences; maps are fitted to the other sequences."""
    x = torch.cat([tokens, torch.ones_like(tokens[..., :1])], -1).transpose(0, 1)  # (times, tasks, width + 1)
    fitted, wanted = x[:, : len(tokens) // 2], _fitted(targets).transpose(0, 1)
    gram = fitted.mT @ fitted / fitted.shape[1]
    penalties = torch.ones_like(gram[0, 0])
    penalties[-1] = 0  # the constant
    size = ridge * gram.diagonal(dim1=-2, dim2=-1)[:, :-1].mean(-1)
    size = torch.where(size > 0, size, 1)  # activations of 0
    ridged = gram + torch.diag_embed(size[:, None] * penalties)
    maps = torch.linalg.solve(ridged, fitted.mT @ wanted / fitted.shape[1])
    found = (x @ maps).transpose(0, 1)
    truth = targets
    if read is not None:
        found, truth = _stepped(found, *read), read[1]
    return (_held(found) - _held(truth)).square().mean(-1)


def _fitted(tasks: Tensor) -> Tensor:
    return tasks[: len(tasks) // 2]


def _held(tasks: Tensor) -> Tensor:
    return tasks[len(tasks) // 2 :]
