"""Bugs that claims of several studies of sequences must detect: see `mesascope.study.Mutation`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mesascope.studies.common import drawn_with, returning
from mesascope.study import Mutation

# Number of elements after which `_stopping` stops learning.
_STOPS_AFTER = 12


def _one_later(over: Any) -> Any:
    """Errors after t + 1 elements in place of errors after t."""
    return classmethod(lambda cls, cases, points: over.__func__(cls, cases, [*points[1:], points[-1]]))


def _stopping(forward: Callable[..., Any]) -> Any:
    """Ridge regression that stops learning after a few elements."""

    def wrong(self: Any, sequence: Any) -> Any:
        import torch

        inputs = sequence if self.features is None else self.features(sequence)
        before, known = inputs[..., : _STOPS_AFTER - 1, :], sequence[..., 1:_STOPS_AFTER, :]
        gram = before.mT @ before + self.ridge * torch.eye(before.shape[-1]).to(before)
        kept = torch.linalg.solve(gram, before.mT @ known)  # transposed
        return torch.cat([forward(self, sequence)[..., :_STOPS_AFTER, :], inputs[..., _STOPS_AFTER:, :] @ kept], -2)

    return wrong


def _changing(drawn: Any) -> Any:
    """Sequences whose second half belongs to another task."""
    half = drawn.shape[1] // 2
    drawn[:, half:] = drawn[:, half:].roll(1, dims=0)
    return drawn


def _layer_forgetting(attend: Callable[..., Any]) -> Any:
    def wrong(self: Any, q: Any, k: Any, v: Any, log_forget: Any, *rest: Any) -> Any:
        self.ridge_kind = "constant"  # a ridge that decays would raise an error
        return attend(self, q, k, v, k.new_full(k.shape[:-1], math.log(0.8)), *rest)

    return wrong


def _times(factor: float) -> Callable[[dict[str, float]], dict[str, float]]:
    return lambda ridges: {name: factor * ridge for name, ridge in ridges.items()}


def own_sensitivities(lag: int) -> Mutation:
    """Bug for studies that read sensitivities to the element ``lag`` steps back."""
    return Mutation(
        "sensitivities are those to the token's own element", "mesascope.lenses:element_sensitivity",
        returning(lambda sensitivity: sensitivity.roll(-lag, -1)),
    )  # fmt: skip


_SEQUENCES = "mesascope.learners.sequences"
_DYNAMICS = "mesascope.studies.mesa.dynamics"

LAYER_FORGETTING = Mutation(
    "mesa layers forget a fifth at each element", "mesascope.nets:MesaAttention._attend_many", _layer_forgetting
)
LAYER_SMALL_RIDGE = Mutation(
    "ridges of mesa layers are a hundredth", "mesascope.nets:MesaAttention._solving",
    returning(lambda options: options | {"ridge": 0.01 * options["ridge"]}),
)  # fmt: skip
FEW_ELEMENTS = Mutation(
    "only thirteen elements are judged", "mesascope.lenses:errors_by_time",
    lambda errors: lambda groups, sequences, *rest: errors(groups, sequences[:, :14], *rest),
)  # fmt: skip
TRANSPOSED = Mutation(
    "products of weights are transposed", "mesascope.nets:SequencePredictor.products",
    returning(lambda products: [one._replace(w_kq=one.w_kq.mT, w_pv=one.w_pv.mT) for one in products]),
)  # fmt: skip
CONSTANT = Mutation(  # all elements equal the first
    "targets are the inputs", "mesascope.tasks:LinearDynamics.sample",
    returning(lambda drawn: drawn[:, :1].expand_as(drawn).clone()),
)  # fmt: skip
ONE_LATER = Mutation("errors are those of one element later", "mesascope.evidence:Estimates.over", _one_later)
FORGETTING = Mutation(
    "ridge regression forgets a fifth at each element", f"{_SEQUENCES}:RecursiveLeastSquares.__init__",
    lambda init: lambda self, ridge, forget=0.8, features=None: init(self, ridge, forget, features),
)  # fmt: skip
STOPPING = Mutation(
    f"ridge regression stops after {_STOPS_AFTER} elements", f"{_SEQUENCES}:RecursiveLeastSquares.forward", _stopping
)
SMALL_RIDGE = Mutation("ridges are a hundredth", f"{_DYNAMICS}:RIDGES", _times(0.01))
LARGE_RIDGE = Mutation("ridges are tenfold", f"{_DYNAMICS}:RIDGES", _times(10.0))
UNTUNED_RIDGE = Mutation("the ridge is the largest of those tried", f"{_DYNAMICS}:TRIED", lambda tried: tried[-1:])
PROBES_IN_SAMPLE = Mutation(
    "probes are judged on the sequences that they are fitted to", "mesascope.lenses.probes:_held",
    lambda held: lambda tasks: tasks[: len(tasks) // 2],
)  # fmt: skip
UNSHUFFLED = Mutation(
    "shuffled targets are not shuffled", "mesascope.lenses.probes:_shuffled",
    lambda shuffled: lambda count, generator: shuffled(count, generator).sort().values,
)  # fmt: skip
FIRST_END = Mutation(
    "interpolation returns its first end", "mesascope.lenses.reverse:ReverseEngineered.between",
    lambda between: lambda self, t: between(self, 0.0),
)  # fmt: skip
NOISY = {
    family: Mutation("noise is larger than elements", f"mesascope.tasks:{family}.sample", drawn_with(noise=2.0))
    for family in ("ObservedDynamics", "NonlinearDynamics")
}
CHANGING = {
    family: Mutation(
        "maps change half way through a sequence", f"mesascope.tasks:{family}.sample", returning(_changing)
    )
    for family in ("ObservedDynamics", "NonlinearDynamics")
}
