"""Bugs that the claims of continual-mnist must detect: see `mesascope.study.Mutation`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mesascope import tasks
from mesascope.study import Arrays, Mutation

_STUDY = "mesascope.studies.sparse.continual_mnist"
_STACKED = "mesascope.training.family:stacked"


def _opposite_transfer(table: Any) -> Any:
    def wrong(found: Any) -> Arrays:
        arrays = table(found)
        return Arrays({"retained": arrays["retained"], "transfer": -arrays["transfer"]},
                      **dict.fromkeys(("retained", "transfer"), "seed stream method"))  # fmt: skip

    return wrong


def _exchanged(methods: Any) -> Any:
    def wrong(*arguments: Any) -> dict[str, Any]:
        found = methods(*arguments)
        rates, masks = "La-MAML", "sparse-La-MAML"
        return found | {rates: found[masks], masks: found[rates]}

    return wrong


def _task_before(stacked: Any) -> Any:
    def wrong(streams: Any) -> tasks.Episode:
        drawn = stacked(streams)
        return drawn._replace(xq=drawn.xq.roll(1, 1), yq=drawn.yq.roll(1, 1))

    return wrong


def _seen(stacked: Any) -> Any:
    def wrong(streams: Any) -> tasks.Episode:
        drawn = stacked(streams)
        return drawn._replace(xq=drawn.context.x, yq=drawn.context.y)

    return wrong


def _half_of_tests(stacked: Any) -> Any:
    def wrong(streams: Any) -> tasks.Episode:
        drawn = stacked(streams)
        half = min(drawn.xq.shape[2], drawn.context.x.shape[2]) // 2
        x, y = drawn.context.x.clone(), drawn.context.y.clone()
        x[:, :, :half], y[:, :, :half] = drawn.xq[:, :, :half], drawn.yq[:, :, :half]
        return drawn._replace(context=tasks.Context(x, y))

    return wrong


def _open_for_closed(followed: Any) -> Any:
    def wrong(curves: Mapping[str, Any], *rest: Any) -> Arrays:
        return followed({name: 1 - one if name.startswith("closed ") else one for name, one in curves.items()}, *rest)

    return wrong


def _zero_weights(resumed: Any) -> Any:
    def wrong(*arguments: Any) -> Any:
        found = resumed(*arguments)
        return found.with_weights({name: 0 * one for name, one in found.weights.items()})

    return wrong


ALL = (
    Mutation("La-MAML and sparse-La-MAML are exchanged", f"{_STUDY}:methods", _exchanged, anew=True),
    Mutation("backward transfer has the opposite sign", f"{_STUDY}:_table", _opposite_transfer),
    Mutation(
        "accuracy is measured with the labels of other images",
        "mesascope.meta.continual_state:accuracy",
        lambda sound: lambda scores, targets: sound(scores, targets.roll(1, -2)),
    ),
    Mutation("test images are those of the task before", _STACKED, _task_before),
    Mutation("accuracy is measured on training images", _STACKED, _seen),
    Mutation("streams hold half of the test images", _STACKED, _half_of_tests),
    Mutation("shares closed are shares open", "mesascope.studies.sparse.following:_followed", _open_for_closed),
    Mutation(
        "nothing is replayed",
        "mesascope.meta.continual:_with_past",
        lambda with_past: lambda at, x, y, count: (x, y),
        anew=True,
    ),
    Mutation("networks are untrained", "mesascope.studies.lab:Lab.resumed", _zero_weights),
)
