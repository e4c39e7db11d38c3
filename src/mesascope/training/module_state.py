"""Training of one torch module."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mesascope.errors import ArgumentError, refuse, require_count, require_instance
from mesascope.modes import guarded
from mesascope.modules import copied, require_initialised
from mesascope.shapes import Float, Tensor
from mesascope.streams import generator_on
from mesascope.training.ensemble import Module
from mesascope.training.loop import Metrics
from mesascope.training.modes import Modes
from mesascope.training.plan import ParameterGroup, Training
from mesascope.training.processes import full_tensor, is_dtensor, mean_over_processes
from mesascope.training.state import OptimizedState


class ModuleState(OptimizedState, Generic[Module]):
    """State of the training of one module, which is trained in place.

    Args:
        module: any torch module. Several processes may train it, wrapped in
            `torch.nn.parallel.DistributedDataParallel` or `sharded`: each process trains on its share of every batch,
            and the reported loss is the mean over processes. Parameters that do not require gradients do not change.
        loss: function that returns the mean loss of a batch, for example `half_mse`.
        plan: optimiser, schedule, clipping and averaging.
        parameter_groups: parameters with their own learning rate or weight decay. A parameter belongs to the first
            group that matches its name; parameters without a group use the plan's values.
        accumulate: number of equal parts, along the first axis, into which each batch is split to save memory. Up
            to rounding, the gradient is that of the whole batch, except with BatchNorm or dropout, which act on each
            part.
        autocast: dtype of the forward pass, torch.bfloat16 or torch.float16; weights keep their dtype. With float16 the
            loss is scaled, and steps whose scaled gradient overflows are skipped (`torch.amp.GradScaler`).
        seed: seed of the module's random draws, such as dropout.

    Raises:
        ArgumentError: a group matches no parameter, the module has no trainable parameters, or ``plan.average`` is set
            while weights are split over processes.

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
        self.accumulate, self.autocast = require_count("accumulate", accumulate), autocast
        if autocast not in (None, torch.float16, torch.bfloat16):
            refuse("autocast", "be torch.float16, torch.bfloat16 or None", autocast, "choose one of them")
        own: Any = module.module if isinstance(module, DistributedDataParallel) else module
        require_initialised("module", own)
        super().__init__(own, dict(own.named_parameters()), loss, plan, parameter_groups, seed)
        self._called: Any = module
        self._modes = Modes(module)
        generator_on(self._device)  # raises for devices without float64
        self._split = is_dtensor(next(iter(self._weights.values())))
        self._parallel = self._split or isinstance(module, DistributedDataParallel)
        self._group = getattr(module, "process_group", None)
        if self._split and plan.average is not None:
            refuse("average", "be None where weights are split over processes", plan.average, "leave it out")
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=autocast is torch.float16)
        self._averaged = copied("module", own) if plan.average is not None else None
        if self._averaged is not None:
            means = self._averaged.named_parameters()
            self._average = {name: mean.detach() for name, mean in means if name in self._weights}

    @guarded
    def update(self, batch: Any) -> Metrics:
        """Take one optimiser step; return ``loss``, ``gradient_norm`` (before clipping) and ``learning_rate``."""
        rank = torch.distributed.get_rank(self._group) if self._parallel else 0
        with self._differentiating(f"model/{rank}" if rank else "model"):  # each process has its own part of the batch
            loss = self._backward(batch)
        self._scaler.unscale_(self._optimizer)
        for weight in self._weights.values():
            if weight.grad is not None and weight.grad.is_sparse:  # embeddings; optimisers need dense gradients
                weight.grad = weight.grad.to_dense()
        gradients = self._gradients()
        norm = torch.nn.utils.get_total_norm(gradients)
        scale = self._scaler.scale(torch.ones_like(loss))  # 1 without a scaler
        numbers = torch.stack([loss, full_tensor(norm).to(loss.device), scale])
        shown, shown_norm, shown_scale = numbers.tolist()  # one transfer from the device
        # A gradient that overflows at a scale above 1 does not count as divergence: the scaler skips the step.
        scaled = shown_scale > 1
        rate = self._set_learning_rate()
        metrics = {"loss": shown, "gradient_norm": shown_norm, "learning_rate": rate}
        if not math.isfinite(shown) or not (math.isfinite(shown_norm) or scaled):
            return metrics | {"loss": math.nan}
        self._take_step(gradients, norm)
        return metrics

    def result(self) -> Module:
        """The module itself in eval() mode, or a copy with averaged weights if ``plan.average`` is set."""
        self._modes.evaluate()
        if self._averaged is None:
            return self._module
        with torch.no_grad():
            for mean, buffer in zip(self._averaged.buffers(), self._module.buffers(), strict=True):
                mean.copy_(buffer)
        return self._averaged.eval()

    def evaluate(self, batch: Any) -> dict[str, Float[Tensor, " members"]]:
        """Loss and accuracy of the current result; empty if there are none, or if processes share the batch."""
        return {} if self._parallel else super().evaluate(batch)

    def tensors(self) -> dict[str, Tensor]:
        scaler = {f"scaler/{name}": torch.tensor(value) for name, value in self._scaler.state_dict().items()}
        return super().tensors() | scaler

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        super().load(tensors)
        if self._scaler.is_enabled():
            self._scaler.load_state_dict({name: tensors[f"scaler/{name}"].item() for name in self._scaler.state_dict()})

    def _parts(self) -> dict[str, Mapping[str, Tensor]]:
        parameters, buffers = dict(self._module.named_parameters()), dict(self._module.named_buffers())
        return {"weights": parameters, "buffers": buffers, "average": self._average}

    def _move(self) -> None:
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def _backward(self, batch: Any) -> Float[Tensor, ""]:
        """Differentiate the mean loss over the parts of ``batch``, and return the loss."""
        total = torch.zeros((), device=self._device)
        for index in range(self.accumulate):
            with self._exchanging(last=index == self.accumulate - 1):
                loss = self._loss_of_part(self._called, batch, index)
                if loss.shape != ():
                    raise ArgumentError(
                        f"loss must return one number, but returned the shape {tuple(loss.shape)}: average over all "
                        "axes."
                    )
                self._require_gradient(loss)
                self._scaler.scale(loss / self.accumulate).backward()
            total = total + loss.detach() / self.accumulate
        return mean_over_processes(total, self._group) if self._parallel else total

    def _exchanging(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Context in which processes exchange gradients only for the last part of a batch."""
        if self._split:
            self._called.set_requires_gradient_sync(last)
        return contextlib.nullcontext() if last or self._split or not self._parallel else self._called.no_sync()
