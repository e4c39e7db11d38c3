"""Common part of the states of one module and of an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from mesascope.errors import ArgumentError, require_callable, require_instance
from mesascope.modules import out_of_memory
from mesascope.ops import without_reading_values
from mesascope.shapes import Float, Tensor
from mesascope.tasks.calling import explain_torch_errors, label
from mesascope.training import optimizers
from mesascope.training.judging import evaluate
from mesascope.training.modes import Modes
from mesascope.training.plan import ParameterGroup, Training, schedule_factor
from mesascope.training.processes import full_tensor
from mesascope.training.randomness import drawing_from, generator_states, load_generators


class OptimizedState:
    """Weights and their optimiser, with clipping, schedule, averaging and checkpoints.

    Args:
        module: module whose random generators are saved in checkpoints, and whose train or eval mode is set.

    Subclasses store averaged weights in ``_average``, and may set ``accumulate`` (parts of a batch) and ``autocast``.
    """

    accumulate: int = 1
    autocast: torch.dtype | None = None

    def __init__(
        self,
        module: nn.Module,
        weights: Mapping[str, Tensor],
        loss: Callable[[Any, Any], Tensor],
        plan: Training,
        groups: Sequence[ParameterGroup],
        seed: int,
    ) -> None:
        require_callable("loss", loss)
        require_instance("plan", plan, Training)
        self.loss, self.plan, self.seed, self.step = loss, plan, seed, 0
        self._module: Any = module
        self._weights = optimizers.trainable(weights)
        self._device = next(iter(self._weights.values())).device
        self._optimizer = optimizers.make_optimizer(self._weights, plan, module, groups)
        self._average: dict[str, Tensor] = {}
        self._modes = Modes(module)

    def result(self) -> Any:
        """Current model in eval() mode."""
        raise NotImplementedError

    def evaluate(self, batch: Any) -> dict[str, Float[Tensor, " members"]]:
        """Loss and accuracy of the current result; empty if batches run in parts or with autocast."""
        plain = self.accumulate == 1 and self.autocast is None
        return evaluate(self.result(), self.loss, batch) if plain else {}

    def tensors(self) -> dict[str, Tensor]:
        """Complete state by name, for a checkpoint."""
        parts = self._parts().items()
        named = {f"{kind}/{name}": tensor.detach() for kind, part in parts for name, tensor in part.items()}
        named |= {
            f"optimizer/{moment}/{name}": value
            for name, weight in self._weights.items()
            for moment, value in self._optimizer.state.get(weight, {}).items()
            if isinstance(value, Tensor)
        }
        named |= generator_states(self._module)
        return {name: full_tensor(tensor) for name, tensor in named.items()} | {"step": torch.tensor(self.step)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from a checkpoint made by `tensors`."""
        for kind, part in self._parts().items():
            optimizers.load_tensors(part, kind, tensors)
        optimizers.load_optimizer(self._optimizer, self._weights, tensors)
        load_generators(self._module, tensors)
        self.step = int(tensors["step"])

    def _parts(self) -> dict[str, Mapping[str, Tensor]]:
        """Tensors of the weights, buffers and averaged weights, by kind and name."""
        raise NotImplementedError

    @contextmanager
    def _differentiating(self, stream: str = "model") -> Iterator[None]:
        """Context of a step's forward and backward pass: train() mode, zero gradients, seeded draws, clear errors."""
        self._modes.update()
        self._optimizer.zero_grad()
        drawing = drawing_from(self.seed, stream, self.step, self._device)
        with self._explaining_memory(), drawing, explain_torch_errors(self._module, ()), without_reading_values():
            yield

    @contextmanager
    def _explaining_memory(self) -> Iterator[None]:
        """Context in which an out-of-memory error names the setting that halves the memory of activations."""
        try:
            yield
        except Exception as error:
            if not out_of_memory(error):
                raise
            raise ArgumentError(
                f"a batch must fit into memory, but {label(self._module)} ran out of it with "
                f"accumulate={self.accumulate}: train with accumulate={2 * self.accumulate}, which halves the memory "
                "of activations, with half the batch, or with a smaller network."
            ) from error

    def _loss_of_part(self, model: Any, batch: Any, index: int, axis: int = 0) -> Tensor:
        """Loss on part ``index`` of a batch, under autocast if it is set."""
        with torch.autocast(self._device.type, dtype=self.autocast, enabled=self.autocast is not None):
            loss = self.loss(model, part_of(batch, index, self.accumulate, axis))
        require_instance("the value of loss", loss, Tensor, "return a tensor")
        return loss

    @staticmethod
    def _require_gradient(loss: Tensor) -> None:
        if not loss.requires_grad:
            raise ArgumentError(
                "loss must depend on the weights that train, but has no gradient: compute it from the model's outputs."
            )

    def _gradients(self) -> list[Tensor]:
        return [weight.grad for weight in self._weights.values() if weight.grad is not None]

    def _set_learning_rate(self) -> float:
        """Set every group's learning rate for this step, and return the plan's."""
        plan, options = self.plan, {"warmup_steps": self.plan.warmup_steps, "final_rate": self.plan.final_rate}
        factor = schedule_factor(plan.schedule, self.step, plan.steps, plan.decay_from, **options)
        for group in self._optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        return plan.learning_rate * factor

    def _take_step(self, gradients: Sequence[Tensor], norms: Float[Tensor, "*members"]) -> None:
        """Clip the gradients, update the weights, and update their average."""
        if self.plan.clip is not None:
            optimizers.clip(gradients, norms, self.plan.clip)
        self._move()
        self.step += 1
        if (exponent := self.plan.average) is not None:
            for name, mean in self._average.items():
                mean.lerp_(self._weights[name].detach(), (exponent + 1) / (exponent + self.step))

    def _move(self) -> None:
        self._optimizer.step()


def part_of(batch: Any, index: int, count: int, axis: int = 0) -> Any:
    """Part ``index`` of ``count`` equal parts of a batch along an axis of its tensors."""
    if count == 1:
        return batch
    if isinstance(batch, Tensor) and batch.ndim > axis:
        size, rest = divmod(batch.shape[axis], count)
        if rest:
            raise ArgumentError(
                f"accumulate must divide the size of the batch, but is {count} for {batch.shape[axis]} tasks: choose a "
                "divisor."
            )
        return batch.narrow(axis, index * size, size)
    if isinstance(batch, Mapping):
        return {name: part_of(value, index, count, axis) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        own = [part_of(value, index, count, axis) for value in batch]
        return type(batch)(*own) if hasattr(batch, "_fields") else type(batch)(own)
    raise ArgumentError(
        "a batch must be made of tensors with an axis of tasks to be run in parts, but holds a "
        f"{type(batch).__name__}{' without axes' if isinstance(batch, Tensor) else ''}: set accumulate=1."
    )
