"""Training of several seeds at once."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

import torch

from mesascope.errors import ArgumentError, refuse, require_count
from mesascope.modes import guarded
from mesascope.shapes import Float, Tensor
from mesascope.tasks.calling import label
from mesascope.training.ensemble import Ensemble, History, Module
from mesascope.training.finite import check_data
from mesascope.training.loop import Metrics
from mesascope.training.optimizers import member_norms
from mesascope.training.plan import ParameterGroup, Training
from mesascope.training.state import OptimizedState


class EnsembleState(OptimizedState, Generic[Module]):
    """State of the training of several independent members at once.

    Each update differentiates ``loss(ensemble, batch)``, clips the gradient of each member, and takes an optimiser
    step. The result for each member is the same as if it were trained alone, up to rounding and random draws (dropout).

    If a member's loss or gradient is not finite, the member keeps its last finite weights and buffers, and its loss is
    nan from then on. The other members continue to train, after a warning.

    Args:
        members: modules of one architecture, which are copied, or their ensemble, which is trained in place. Parameters
            that do not require gradients do not change.
        loss: function that returns the loss of each member on a batch, for example `half_mse`.
        plan, parameter_groups, seed: see `ModuleState`.
        accumulate: number of equal parts into which each member's batch is split to save memory.
        autocast: torch.bfloat16 for the forward pass, or None; weights keep their dtype.
        history: records the metrics of each step, and is part of the checkpoint.

    Raises:
        ArgumentError: a group matches no parameter, no parameter requires gradients, or two members are equal.
    """

    @guarded
    def __init__(
        self,
        members: Sequence[Module] | Ensemble[Module],
        loss: Callable[[Ensemble[Module], Any], Float[Tensor, " members"]],
        plan: Training,
        *,
        parameter_groups: Sequence[ParameterGroup] = (),
        seed: int = 0,
        accumulate: int = 1,
        autocast: torch.dtype | None = None,
        history: History | None = None,
    ) -> None:
        self.ensemble = members if isinstance(members, Ensemble) else Ensemble(members)
        _refuse_equal_members(self.ensemble)
        self.accumulate, self.autocast = require_count("accumulate", accumulate), autocast
        if autocast not in (None, torch.bfloat16):  # float16 would need a scale of the loss for each member
            refuse("autocast", "be torch.bfloat16 or None for an ensemble", autocast, "choose one of them")
        super().__init__(self.ensemble.module, self.ensemble.weights, loss, plan, parameter_groups, seed)
        self.history = history
        if history is not None:
            self.ensemble.log = history
        self._average = {name: w.detach().clone() for name, w in self._weights.items() if plan.average is not None}
        # Step at which each member diverged (0 if it has not), and the last finite weights and buffers.
        self._diverged = torch.zeros(len(self.ensemble), dtype=torch.int64, device=self._device)
        self._kept: dict[str, Tensor] = {}
        self._can_leave = False

    @guarded
    def update(self, batch: Any) -> Metrics:
        """Take a step; return ``learning_rate``, and each member's ``loss`` and ``gradient_norm`` (before clipping)."""
        buffers = {name: buffer.clone() for name, buffer in self.ensemble.buffers.items()}
        before = [weight.grad for weight in self.ensemble.original.parameters()]
        with self._differentiating():
            losses = self._backward(batch)
        self._check_copies(before)
        gradients = self._gradients()
        if not gradients:
            raise ArgumentError(
                "loss must depend on the members' weights, but none has a gradient: compute it from the outputs of the "
                "ensemble."
            )
        norms = member_norms(gradients)
        shown = torch.stack([losses, norms]).cpu()  # one transfer from the device
        if not math.isfinite(shown.sum()):
            check_data(self.step + 1, batch, True)
            self._note_divergence(torch.isfinite(shown).all(0), buffers)
        rate = self._set_learning_rate()
        self._take_step(gradients, norms)
        if self._kept:
            shown[0, self._diverged.cpu() > 0] = torch.nan
        metrics = {"loss": shown[0], "gradient_norm": shown[1], "learning_rate": rate}
        if self.history is not None:
            self.history(self.step, metrics)
        return metrics

    def _backward(self, batch: Any) -> Float[Tensor, " members"]:
        """Differentiate the members' mean losses over the parts of ``batch``, and return the losses."""
        total = torch.zeros(len(self.ensemble), device=self._device)
        for index in range(self.accumulate):
            losses = self._loss_of_part(self.ensemble, batch, index, axis=1)
            self._check(losses)
            self._require_gradient(losses)
            losses = losses / self.accumulate
            losses.sum().backward()
            total = total + losses.detach()
        return total

    def result(self) -> Ensemble[Module]:
        """The ensemble in eval() mode, with averaged weights if ``plan.average`` is set."""
        self._modes.evaluate()
        self.ensemble.diverged = tuple(self._diverged.tolist())
        return self.ensemble.with_weights(self.ensemble.weights | self._average) if self._average else self.ensemble

    def tensors(self) -> dict[str, Tensor]:
        history = {} if self.history is None else self.history.tensors()
        return super().tensors() | {"diverged": self._diverged} | history

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        super().load(tensors)
        if self.history is not None:
            self.history.load(tensors)
        self._diverged.copy_(tensors["diverged"])
        if bool((self._diverged > 0).any()):
            self._keep(self.ensemble.buffers)

    def _parts(self) -> dict[str, Mapping[str, Tensor]]:
        return {"weights": self.ensemble.weights, "buffers": self.ensemble.buffers, "average": self._average}

    def _check(self, losses: Tensor) -> None:
        if losses.shape != self._diverged.shape:
            raise ArgumentError(
                f"loss must return one loss per member, shape ({len(self.ensemble)},), but returned "
                f"{tuple(losses.shape)}: average over the other axes."
            )

    def _check_copies(self, before: Sequence[Tensor | None]) -> None:
        """At the first step, raise if copies of the module use the original's weights, or if copying fails."""
        if self._can_leave:
            return
        after = (weight.grad for weight in self.ensemble.original.parameters())
        if any(one is not other for one, other in zip(before, after, strict=True)):
            raise ArgumentError(
                f"a module must store no function that refers to the module or its parts, but copies of "
                f"{label(self.ensemble.original)} still use the original's weights: make the function a method, or use "
                "the first argument of a hook."
            )
        self._can_leave = self.ensemble.member(0) is not None

    def _note_divergence(self, healthy: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Mark members whose loss or gradient is not finite, and keep their weights and their previous buffers."""
        if bool(healthy.all()):
            return
        new = (~healthy).to(self._diverged.device) & (self._diverged == 0)
        self._diverged[new] = self.step + 1
        if bool(new.any()) and bool((self._diverged == 0).any()):
            warnings.warn(
                f"members {new.nonzero().flatten().tolist()} diverged at step {self.step + 1} and keep their weights; "
                "the others continue.",
                stacklevel=2,
            )
        self._keep(buffers)

    def _keep(self, buffers: Mapping[str, Tensor]) -> None:
        self._kept = {name: tensor.detach().clone() for name, tensor in (self.ensemble.weights | dict(buffers)).items()}

    def _move(self) -> None:
        """Take the optimiser's step, then restore diverged members and set their moments to zero."""
        super()._move()
        if not self._kept:
            return
        gone = self._diverged > 0
        with torch.no_grad():
            for name, tensor in (self.ensemble.weights | self.ensemble.buffers).items():
                tensor[gone] = self._kept[name][gone]
            for weight in self._weights.values():
                for moment in self._optimizer.state[weight].values():
                    if isinstance(moment, Tensor) and moment.ndim == weight.ndim:
                        moment[gone] = 0.0


def _refuse_equal_members(ensemble: Ensemble) -> None:
    own = [*ensemble.weights.values(), *ensemble.buffers.values()]
    for first, second in itertools.combinations(range(len(ensemble)), 2):
        if all(torch.equal(tensor[first], tensor[second]) for tensor in own):
            raise ArgumentError(
                f"members must start from different weights, but members {first} and {second} are equal: build each "
                "from the generator of its own seed, and give no seed twice."
            )
