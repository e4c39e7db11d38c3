"""Test whether a language model uses feature names, that is, prior knowledge in addition to the context."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from mesascope.adapters.text import from_text
from mesascope.errors import refuse, require_count, require_instance
from mesascope.evidence.tables import Table
from mesascope.measurement import Measurement
from mesascope.streams import stream
from mesascope.tasks import RealTable


def names_matter(
    model: Callable[[Any], Any], table: RealTable | None = None, tasks: int = 50, seed: int = 0, **options: Any
) -> Table:
    """Errors of a language model on a real table with feature names, without names, and with exchanged names.

    An algorithm on the numbers has the same error in all cases. A smaller error with names, or a larger error with
    exchanged names, shows prior knowledge of the names, which is not learning in context.

    Args:
        model: a language model; see `from_text`.
        table: source of the rows; diabetes if None.
        tasks: number of tasks, the same in each case.
        seed: seed of the choice of rows.
        options: options of `from_text`.

    Returns:
        One row per case: the parse rate, the mean absolute error, and its increase over the case without names, on the
        tasks that have a prediction in both cases.

    >>> found = names_matter(lambda prompt: "150", tasks=4)
    >>> [(row["names"], row["more than without"].value) for row in found]
    [('own', 0.0), ('none', 0.0), ('exchanged', 0.0)]
    """
    table = RealTable() if table is None else table
    require_instance("table", table, RealTable)
    tasks = require_count("tasks", tasks, least=2)
    episode = table.sample(tasks, stream(seed, "names")).to(torch.float64)
    turned = list(itertools.islice(itertools.cycle(table.features), 1, 1 + table.d_in))  # the next feature's name
    errors, read = {}, {}
    for kind, names in (("own", table.features), ("none", None), ("exchanged", turned)):
        learner = from_text(model, features=names, **options)
        errors[kind] = (learner(episode.context, episode.xq) - episode.yq).abs().mean((-2, -1))
        read[kind] = learner.table()[0]["parse rate"]
    if not all(bool(one.isfinite().any()) for one in errors.values()):
        refuse("model", "answer with a number at least once", read, "see what it says, and choose another format")
    rows = []
    for kind, own in errors.items():
        both = own.isfinite() & errors["none"].isfinite()
        if not both.any():
            refuse("model", "answer some tasks with and without names", read, "ask about more tasks")
        rows.append({
            "names": kind, "parse rate": read[kind], "error": Measurement.of(own[own.isfinite()]),
            "more than without": Measurement.of((own - errors["none"])[both]),
        })  # fmt: skip
    return Table(rows)
