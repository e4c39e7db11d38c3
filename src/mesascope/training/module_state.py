"""Training one torch module."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mesascope.errors import ArgumentError, refuse, require_callable, require_count, require_instance
from mesascope.modes import guarded
from mesascope.modules import copied, require_initialised
from mesascope.ops import without_reading_values
from mesascope.shapes import Float, Tensor
from mesascope.streams import generator_on
from mesascope.tasks.asking import in_words
from mesascope.training.ensemble import Module
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
from mesascope.training.processes import averaged, is_split, whole
from mesascope.training.randomness import drawing_from, generator_states, load_generators

__all__ = ["ModuleState"]


class ModuleState(Generic[Module]):
    """The state of a training of one module, in place.

    Args:
        module: any torch module, or one that several processes train, in `torch.nn.parallel.DistributedDataParallel` or
            `sharded`: then each takes its share of every batch, loads the checkpoint, and one of them saves it; the
            loss told is the mean of theirs. Parameters that do not require gradients stay as they are.
        loss: the mean loss of a batch, one number, differentiated here; `half_mse`, say.
        plan: optimiser, schedule, clipping, averaging.
        parameter_groups: parameters with a learning rate or weight decay of their own. The first group that names a
            parameter takes it; the others train as the plan says.
        accumulate: number of equal parts, along the first axis, that each batch is run in, for memory: the gradient is
            that of the whole batch up to rounding, but for BatchNorm, which sees one part at a time.
        autocast: dtype of the forward pass, torch.bfloat16 or torch.float16, the weights staying as they are. With
            float16 the loss is scaled, and a step whose scaled gradient overflows is left out (`torch.amp.GradScaler`).
        seed: of what the module draws at random, as for dropout.

    Raises:
        ArgumentError: a group that names no parameter, a module without parameters to train, or an average of weights
            that are split over processes.

    >>> from mesascope.training import fit
    >>> line, plan = nn.Linear(1, 1), Training(steps=300, learning_rate=0.1)
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> trained = fit(ModuleState(line, lambda f, x: (f(x) - 2 * x - 1).square().mean(), plan), lambda step: x, plan)
    >>> [round(weight.item(), 3) for weight in trained.parameters()]
    [2.0, 1.0]
    """

    @guarded
    def __init__(
        self,
        module: Module | DistributedDataParallel,
        loss: Callable[[Any, Any], Float[Tensor, ""]],
        plan: Training,
        *,
        parameter_groups: Sequence[ParameterGroup] = (),
        accumulate: int = 1,
        autocast: torch.dtype | None = None,
        seed: int = 0,
    ) -> None:
        require_instance("module", module, nn.Module)
        require_callable("loss", loss)
        require_instance("plan", plan, Training)
        accumulate = require_count("accumulate", accumulate)
        if autocast not in (None, torch.float16, torch.bfloat16):
            refuse("autocast", "be torch.float16, torch.bfloat16 or None", autocast, "choose one of them")
        self.loss, self.plan, self.accumulate, self.autocast, self.seed = loss, plan, accumulate, autocast, seed
        self.step = 0
        self._called: nn.Module = module
        self._module: Any = module.module if isinstance(module, DistributedDataParallel) else module
        require_initialised("module", self._module)
        self._weights = trainable(dict(self._module.named_parameters()))
        one = next(iter(self._weights.values()))
        self._device, self._split = generator_on(one.device).device, is_split(one)
        self._parallel = self._split or isinstance(module, DistributedDataParallel)
        self._group = getattr(module, "process_group", None)
        if self._split and plan.average is not None:
            refuse("average", "be None where weights are split over processes", plan.average, "leave it out")
        self._optimizer = make_optimizer(self._weights, plan, self._module, parameter_groups)
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=autocast is torch.float16)
        self._averaged = copied("module", self._module) if plan.average is not None else None
        self._modes = Modes(module)

    @guarded
    def update(self, batch: Any) -> Metrics:
        """One optimiser step: ``loss``, ``gradient_norm`` before clipping, and ``learning_rate``."""
        self._modes.update()
        self._optimizer.zero_grad()
        drawing = drawing_from(self.seed, self._stream(), self.step, self._device)
        with drawing, in_words(self._module, ()), without_reading_values():
            loss = self._backward(batch)
        self._scaler.unscale_(self._optimizer)
        for weight in self._weights.values():
            if weight.grad is not None and weight.grad.is_sparse:  # of an embedding; optimisers take dense ones alone
                weight.grad = weight.grad.to_dense()
        gradients = [weight.grad for weight in self._weights.values() if weight.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        shown, shown_norm = torch.stack([loss, whole(norm).to(loss.device)]).tolist()  # one transfer from the device
        # A gradient that overflows at a scale above 1 says nothing of the training: the scaler leaves the step out.
        scaled = self._scaler.is_enabled() and self._scaler.get_scale() > 1
        metrics = {"loss": shown, "gradient_norm": shown_norm}
        rate = set_learning_rate(self._optimizer, self.plan, self.step)
        if not math.isfinite(shown) or not (math.isfinite(shown_norm) or scaled):
            return metrics | {"loss": math.nan, "learning_rate": rate}
        if self.plan.clip is not None:
            factor = clip_factor(norm, self.plan.clip)
            for gradient in gradients:
                gradient.mul_(factor)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self.step += 1
        if self.plan.average is not None:
            update_average(self._average(), self._weights, self.plan.average, self.step)
        return metrics | {"learning_rate": rate}

    def result(self) -> Module:
        """The module itself in eval() mode, or, where an average is kept, a copy with the averaged weights."""
        self._modes.evaluate()
        if self._averaged is None:
            return self._module
        with torch.no_grad():
            for mean, buffer in zip(self._averaged.buffers(), self._module.buffers(), strict=True):
                mean.copy_(buffer)
        return self._averaged.eval()

    def judged(self, batch: Any) -> dict[str, Float[Tensor, " members"]]:
        """Same as in `EnsembleState`; empty if batches are run in parts, in parallel or with autocast."""
        plain = self.accumulate == 1 and self.autocast is None and not self._parallel
        return judged(self.result(), self.loss, batch) if plain else {}

    def tensors(self) -> dict[str, Tensor]:
        """All that changes, by name, for a checkpoint."""
        parts = {"weights": self._parameters(), "buffers": self._buffers(), "average": self._average()}
        named = {f"{kind}/{name}": tensor.detach() for kind, part in parts.items() for name, tensor in part.items()}
        named |= optimizer_tensors(self._optimizer, self._weights) | generator_states(self._module)
        named = {name: whole(tensor) for name, tensor in named.items()}
        scaler = {f"scaler/{name}": torch.tensor(value) for name, value in self._scaler.state_dict().items()}
        return named | scaler | {"step": torch.tensor(self.step)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave."""
        load_tensors(self._parameters(), "weights", tensors)
        load_tensors(self._buffers(), "buffers", tensors)
        load_tensors(self._average(), "average", tensors)
        load_optimizer(self._optimizer, self._weights, tensors)
        load_generators(self._module, tensors)
        if self._scaler.is_enabled():
            self._scaler.load_state_dict({name: tensors[f"scaler/{name}"].item() for name in self._scaler.state_dict()})
        self.step = int(tensors["step"])

    def _backward(self, batch: Any) -> Float[Tensor, ""]:
        """The gradient of the mean loss over the parts of ``batch``, and that loss."""
        total = torch.zeros((), device=self._device)
        for index, part in enumerate(_parts(batch, self.accumulate)):
            with self._exchanging(last=index == self.accumulate - 1):
                with torch.autocast(self._device.type, dtype=self.autocast, enabled=self.autocast is not None):
                    loss = self.loss(self._called, part)
                require_instance("the value of loss", loss, Tensor, "return a tensor")
                if loss.shape != ():
                    raise ArgumentError(
                        f"loss must return one number, but returned the shape {tuple(loss.shape)}: average over all "
                        "axes."
                    )
                self._scaler.scale(loss / self.accumulate).backward()
            total = total + loss.detach() / self.accumulate
        return averaged(total, self._group) if self._parallel else total

    def _exchanging(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Processes exchange their gradients once, with the last part of a batch."""
        called: Any = self._called
        if self._split:
            called.set_requires_gradient_sync(last)
        return contextlib.nullcontext() if last or self._split or not self._parallel else called.no_sync()

    def _stream(self) -> str:
        """Processes draw apart: each has a part of the batch of its own."""
        rank = torch.distributed.get_rank(self._group) if self._parallel else 0
        return f"model/{rank}" if rank else "model"

    def _parameters(self) -> dict[str, Tensor]:
        return dict(self._module.named_parameters())

    def _buffers(self) -> dict[str, Tensor]:
        return dict(self._module.named_buffers())

    def _average(self) -> dict[str, Tensor]:
        """The averaged weights of those that are trained."""
        averaged = {} if self._averaged is None else dict(self._averaged.named_parameters())
        return {name: weight.detach() for name, weight in averaged.items() if name in self._weights}


def _parts(batch: Any, count: int) -> Iterator[Any]:
    """``batch``, which is made of tensors, in ``count`` equal parts along their first axis."""
    return (_part(batch, index, count) for index in range(count))


def _part(batch: Any, index: int, count: int) -> Any:
    if count == 1:
        return batch
    if isinstance(batch, Tensor):
        size, rest = divmod(batch.shape[0], count)
        if rest:
            raise ArgumentError(
                f"accumulate must divide the size of the batch, but is {count} for {batch.shape[0]} tasks: choose a "
                "divisor."
            )
        return batch[index * size : (index + 1) * size]
    if isinstance(batch, Mapping):
        return {name: _part(value, index, count) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        own = [_part(value, index, count) for value in batch]
        return type(batch)(*own) if hasattr(batch, "_fields") else type(batch)(own)
    raise ArgumentError(
        f"a batch must be made of tensors to be run in parts, but holds a {type(batch).__name__}: set accumulate=1."
    )
