"""Training several seeds at once."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

import torch

from mesascope.errors import ArgumentError, require_callable, require_instance
from mesascope.modes import guarded
from mesascope.ops import without_reading_values
from mesascope.shapes import Float, Tensor
from mesascope.tasks.asking import in_words, label
from mesascope.training.ensemble import Ensemble, Module
from mesascope.training.finite import check_data
from mesascope.training.judging import judged
from mesascope.training.loop import Metrics
from mesascope.training.modes import Modes
from mesascope.training.optimizers import (
    clip_factor,
    load_optimizer,
    load_tensors,
    make_optimizer,
    optimizer_tensors,
    set_learning_rate,
    trainable,
    update_average,
)
from mesascope.training.plan import ParameterGroup, Training
from mesascope.training.randomness import drawing_from, generator_states, load_generators

__all__ = ["EnsembleState"]


class EnsembleState(Generic[Module]):
    """The state of a training of several members at once; nothing couples them.

    Each update takes the gradient of ``loss(ensemble, batch)``, clips it member by member, and hands it to the
    optimiser: each member ends as it would alone, up to rounding, but for what it draws at random (dropout).

    A member whose loss or gradient stops being finite keeps its last finite weights and buffers, with a warning, while
    the others train on; its loss is nan from then on.

    Args:
        members: modules of one architecture, which are copied, or their ensemble, which is trained in place. Parameters
            that do not require gradients stay as they are.
        loss: the losses of a batch, one a member, differentiated here; `half_mse`, say.
        plan: optimiser, schedule, clipping, averaging.
        parameter_groups: parameters with a learning rate or weight decay of their own. The first group that names a
            parameter takes it; the others train as the plan says.
        seed: of what the members draw at random, as for dropout.

    Raises:
        ArgumentError: a group that names no parameter, or two members that start equal: they would count as two
            samples and be one.
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
    ) -> None:
        require_callable("loss", loss)
        require_instance("plan", plan, Training)
        self.ensemble = members if isinstance(members, Ensemble) else Ensemble(members)
        _refuse_equal_members(self.ensemble)
        self.loss, self.plan, self.seed = loss, plan, seed
        self.step = 0
        self._weights = trainable(self.ensemble.weights)
        self._optimizer = make_optimizer(self._weights, plan, self.ensemble.module, parameter_groups)
        self._average = {name: w.detach().clone() for name, w in self._weights.items() if plan.average is not None}
        self._modes = Modes(self.ensemble.module)
        device = next(iter(self._weights.values())).device
        # The step at which each member diverged, 0 for those that have not, and what diverged members keep.
        self._diverged = torch.zeros(len(self.ensemble), dtype=torch.int64, device=device)
        self._kept: dict[str, Tensor] = {}
        self._can_leave = False

    @guarded
    def update(self, batch: Any) -> Metrics:
        """One optimiser step of every member: ``loss`` and ``gradient_norm`` before clipping, one a member."""
        self._modes.update()
        self._optimizer.zero_grad()
        buffers = {name: buffer.clone() for name, buffer in self.ensemble.buffers.items()}
        drawing = drawing_from(self.seed, "model", self.step, self._diverged.device)
        with drawing, in_words(self.ensemble, ()), without_reading_values():
            losses = self.loss(self.ensemble, batch)
            self._check(losses)
            before = [weight.grad for weight in self.ensemble.original.parameters()]
            losses.sum().backward()
        if not self._can_leave:  # a module may keep from its first call what cannot be copied
            after = [weight.grad for weight in self.ensemble.original.parameters()]
            if any(one is not other for one, other in zip(before, after, strict=True)):
                raise ArgumentError(
                    f"a module must hold no function that refers to the module or its parts, as copies of "
                    f"{label(self.ensemble.original)} go on using its weights: make it a method, or let a hook use its "
                    "first argument."
                )
            self._can_leave = self.ensemble.member(0) is not None
        gradients = [weight.grad for weight in self._weights.values() if weight.grad is not None]
        if not gradients:
            raise ArgumentError(
                "loss must depend on the members' weights, but none has a gradient: compute it from what the ensemble "
                "returns."
            )
        norms = torch.stack([g.reshape(len(self.ensemble), -1).norm(dim=1) for g in gradients]).norm(dim=0)
        # One transfer from the device for all that is asked of them there.
        shown = torch.stack([losses.detach(), norms]).cpu()
        if not math.isfinite(shown.sum()):
            check_data(self.step + 1, batch, True)
            self._note_divergence(torch.isfinite(shown).all(0), buffers)
        if self.plan.clip is not None:
            factors = clip_factor(norms, self.plan.clip)
            for gradient in gradients:
                gradient.mul_(factors.view(-1, *[1] * (gradient.ndim - 1)))
        rate = set_learning_rate(self._optimizer, self.plan, self.step)
        self._optimizer.step()
        self.step += 1
        if self._kept:
            shown[0, self._diverged.cpu() > 0] = torch.nan
            self._hold_diverged()
        if self.plan.average is not None:
            update_average(self._average, self._weights, self.plan.average, self.step)
        return {"loss": shown[0], "gradient_norm": shown[1], "learning_rate": rate}

    def result(self) -> Ensemble[Module]:
        """The ensemble in eval() mode, with the averaged weights where an average is kept."""
        self._modes.evaluate()
        self.ensemble.diverged = tuple(self._diverged.tolist())
        return self.ensemble.with_weights(self.ensemble.weights | self._average) if self._average else self.ensemble

    def judged(self, batch: Any) -> dict[str, Float[Tensor, " members"]]:
        """Loss and accuracy of the result so far on a batch: see `mesascope.training.judging`."""
        return judged(self.result(), self.loss, batch)

    def tensors(self) -> dict[str, Tensor]:
        """All that changes, by name, for a checkpoint."""
        parts = {"weights": self.ensemble.weights, "buffers": self.ensemble.buffers, "average": self._average}
        named = {f"{kind}/{name}": tensor.detach() for kind, part in parts.items() for name, tensor in part.items()}
        own = generator_states(self.ensemble.module)
        counts = {"step": torch.tensor(self.step), "diverged": self._diverged}
        return named | optimizer_tensors(self._optimizer, self._weights) | own | counts

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave."""
        load_tensors(self.ensemble.weights, "weights", tensors)
        load_tensors(self.ensemble.buffers, "buffers", tensors)
        load_tensors(self._average, "average", tensors)
        load_optimizer(self._optimizer, self._weights, tensors)
        load_generators(self.ensemble.module, tensors)
        self.step = int(tensors["step"])
        self._diverged.copy_(tensors["diverged"])
        if bool((self._diverged > 0).any()):
            self._keep(self.ensemble.buffers)

    def _check(self, losses: Tensor) -> None:
        require_instance("the value of loss", losses, Tensor, "return a tensor")
        if losses.shape != self._diverged.shape:
            raise ArgumentError(
                f"loss must return one loss a member, shape ({len(self.ensemble)},), but returned "
                f"{tuple(losses.shape)}: average over the other axes."
            )

    def _note_divergence(self, healthy: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Mark members whose loss or gradient is not finite, and keep their weights, and ``buffers`` of before."""
        if bool(healthy.all()):
            return
        new = (~healthy).to(self._diverged.device) & (self._diverged == 0)
        self._diverged[new] = self.step + 1
        if bool(new.any()) and bool((self._diverged == 0).any()):
            warnings.warn(
                f"members {new.nonzero().flatten().tolist()} diverged at step {self.step + 1} and keep their weights; "
                "the others train on.",
                stacklevel=2,
            )
        self._keep(buffers)

    def _keep(self, buffers: Mapping[str, Tensor]) -> None:
        self._kept = {name: tensor.detach().clone() for name, tensor in (self.ensemble.weights | dict(buffers)).items()}

    def _hold_diverged(self) -> None:
        """Put diverged members back to what they keep, and their moments to zero."""
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
