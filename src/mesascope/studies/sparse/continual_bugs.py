"""Bugs that the claims of continual-mnist must detect: see `mesascope.study.Mutation`."""

from __future__ import annotations

from typing import Any

from mesascope import tasks
from mesascope.studies.common import returning
from mesascope.study import Arrays, Mutation

_STUDY = "mesascope.studies.sparse.continual_mnist"
_STACKED = "mesascope.training.family:stacked"


def _opposite_transfer(table: Arrays) -> Arrays:
    return Arrays({**table, "transfer": -table["transfer"]}, **dict.fromkeys(table, "seed stream method"))


def _exchanged(methods: dict[str, Any]) -> dict[str, Any]:
    rates, masks = "La-MAML", "sparse-La-MAML"
    return methods | {rates: methods[masks], masks: methods[rates]}


def _half_of_tests(drawn: tasks.Episode) -> tasks.Episode:
    half = min(drawn.xq.shape[2], drawn.context.x.shape[2]) // 2
    x, y = drawn.context.x.clone(), drawn.context.y.clone()
    x[:, :, :half], y[:, :, :half] = drawn.xq[:, :, :half], drawn.yq[:, :, :half]
    return drawn._replace(context=tasks.Context(x, y))


def _open_for_closed(followed: Any) -> Any:
    return lambda curves, *rest: followed(
        {name: 1 - one if name.startswith("closed ") else one for name, one in curves.items()}, *rest
    )


ALL = (
    Mutation("La-MAML and sparse-La-MAML are exchanged", f"{_STUDY}:methods", returning(_exchanged), anew=True),
    Mutation("backward transfer has the opposite sign", f"{_STUDY}:_table", returning(_opposite_transfer)),
    Mutation("accuracy is measured with the labels of other images", "mesascope.meta.continual_state:accuracy",
             lambda sound: lambda scores, targets: sound(scores, targets.roll(1, -2))),
    Mutation("test images are those of the task before", _STACKED,
             returning(lambda drawn: drawn._replace(xq=drawn.xq.roll(1, 1), yq=drawn.yq.roll(1, 1)))),
    Mutation("accuracy is measured on training images", _STACKED,
             returning(lambda drawn: drawn._replace(xq=drawn.context.x, yq=drawn.context.y))),
    Mutation("streams hold half of the test images", _STACKED, returning(_half_of_tests)),
    Mutation("shares closed are shares open", "mesascope.studies.sparse.following:_followed", _open_for_closed),
    Mutation("nothing is replayed", "mesascope.meta.continual:_with_past",
             lambda with_past: lambda at, x, y, count: (x, y), anew=True),
    Mutation("networks are untrained", "mesascope.studies.lab:Lab.resumed",
             returning(lambda found: found.with_weights({name: 0 * one for name, one in found.weights.items()}))),
)  # fmt: skip
