"""Common part of the states of one module and of an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from mesascope.errors import require_callable, require_instance
from mesascope.ops.checks import without_reading_values
from mesascope.shapes import Float, Tensor
from mesascope.tasks.asking import in_words
from mesascope.training import optimizers
from mesascope.training.judging import judged
from mesascope.training.modes import Modes
from mesascope.training.plan import ParameterGroup, Training
from mesascope.training.processes import whole
from mesascope.training.randomness import drawing_from, generator_states, load_generators

__all__ = ["OptimizedState"]


class OptimizedState:
    """Weights that a plan's optimiser trains: clipping, schedule, averaging, and everything in a checkpoint.

    Args:
        module: holds the generators and modes; subclasses store the average of the weights in ``_average``.
    """

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

    def judged(self, batch: Any) -> dict[str, Float[Tensor, " members"]]:
        """Loss and accuracy of the current result on a batch: see `mesascope.training.judging`."""
        return judged(self.result(), self.loss, batch)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes, by name, for a checkpoint."""
        parts = self._parts().items()
        named = {f"{kind}/{name}": tensor.detach() for kind, part in parts for name, tensor in part.items()}
        named |= optimizers.optimizer_tensors(self._optimizer, self._weights) | generator_states(self._module)
        return {name: whole(tensor) for name, tensor in named.items()} | {"step": torch.tensor(self.step)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from a checkpoint of `tensors`."""
        for kind, part in self._parts().items():
            optimizers.load_tensors(part, kind, tensors)
        optimizers.load_optimizer(self._optimizer, self._weights, tensors)
        load_generators(self._module, tensors)
        self.step = int(tensors["step"])

    def _parts(self) -> dict[str, Mapping[str, Tensor]]:
        """Tensors of the weights, the buffers and the average, by kind and name."""
        raise NotImplementedError

    @contextmanager
    def _differentiating(self, stream: str = "model") -> Iterator[None]:
        """Modes, gradients and random draws of a step's forward and backward pass."""
        self._modes.update()
        self._optimizer.zero_grad()
        drawing = drawing_from(self.seed, stream, self.step, self._device)
        with drawing, in_words(self._module, ()), without_reading_values():
            yield

    def _gradients(self) -> list[Tensor]:
        return [weight.grad for weight in self._weights.values() if weight.grad is not None]

    def _take_step(self, gradients: Sequence[Tensor], norms: Float[Tensor, "*members"]) -> None:
        """Clip the gradients, move the weights, and average them."""
        if self.plan.clip is not None:
            optimizers.clip(gradients, norms, self.plan.clip)
        self._move()
        self.step += 1
        if self.plan.average is not None:
            optimizers.update_average(self._average, self._weights, self.plan.average, self.step)

    def _move(self) -> None:
        """Take the optimiser's step."""
        self._optimizer.step()
