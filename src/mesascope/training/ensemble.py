"""Ensembles: several networks of one architecture with stacked weights, which run at once."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.func import stack_module_state

from mesascope.errors import ArgumentError, ArgumentTypeError, MesascopeError, one_line, refuse, require_count, shown
from mesascope.evidence.tables import Table
from mesascope.modes import guarded
from mesascope.modules import at_once, copied, out_of_memory, put, require_initialised, run_with
from mesascope.shapes import Float, Tensor
from mesascope.streams import generator_on
from mesascope.tasks import Context
from mesascope.tasks.calling import label, require_tensor, tensors_of
from mesascope.training.loop import Metrics
from mesascope.training.processes import mark_undecayed, undecayed

Module = TypeVar("Module", bound=nn.Module)

# A member with more input rows times weights than this keeps two cores busy.
_BUSY = 2**27


class History:
    """Metrics of every step and member.

    Args:
        seeds: the members' seeds, as labels of their rows.

    >>> history = History(seeds=[3])
    >>> history(1, {"loss": Tensor([0.5]), "learning_rate": 0.25})
    >>> history.table()
    step  seed  loss  learning_rate
    1     3     0.5   0.25
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = list(seeds)
        self._metrics: dict[str, list[Any]] = {}

    def __call__(self, step: int, metrics: Metrics) -> None:
        for name, value in {"step": step, **metrics}.items():  # Python numbers take a tenth of the memory of tensors
            self._metrics.setdefault(name, []).append(value.tolist() if isinstance(value, Tensor) else value)

    def tensors(self) -> dict[str, Tensor]:
        """Seeds, and each metric of all steps, for a checkpoint."""
        metrics = {
            f"history/{place:02}/{name}": torch.tensor(one, dtype=torch.float64)
            for place, (name, one) in enumerate(self._metrics.items())
        }
        return metrics | {"seeds": torch.tensor(self.seeds)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from a checkpoint made by `tensors`; raise if it is of other seeds."""
        if "seeds" in tensors and tensors["seeds"].tolist() != self.seeds:
            rule = f"be of a training with seeds {self.seeds}"
            refuse("checkpoints", rule, tensors["seeds"].tolist(), "pass another folder")
        kept = [key for key in sorted(tensors) if key.startswith("history/")]
        self._metrics = {key.split("/", 2)[-1]: tensors[key].tolist() for key in kept}

    def table(self) -> Table:
        """One row for each step and member."""
        rows = [dict(zip(self._metrics, row, strict=True)) for row in zip(*self._metrics.values(), strict=True)]
        return Table(
            {"step": int(row["step"]), "seed": seed}
            | {name: one[index] if isinstance(one, list) else one for name, one in row.items() if name != "step"}
            for row in rows
            for index, seed in enumerate(self.seeds)
        )


def _architecture(member: nn.Module) -> list[str]:
    """Description of each part of a module, with its config or torch's options, and of each tensor's dtype."""

    def options(part: nn.Module) -> str:  # other modules may print their weights
        return part.extra_repr() if type(part).__module__.startswith("torch.nn") else str(getattr(part, "config", ""))

    parts = [f"{type(part).__name__}({options(part)})" for part in member.modules()]
    return parts + [f"{name} of {tensor.dtype}" for name, tensor in member.state_dict(keep_vars=True).items()]


def _apart(one: str, other: str) -> tuple[str, str]:
    """Two texts, if they are long from a little before they differ."""
    same = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    start = max(same - 20, 0) if max(len(one), len(other)) > 60 else 0
    return one[start : start + 60] or "nothing", other[start : start + 60] or "nothing"


class Ensemble(Generic[Module]):
    """A learner or predictor with a leading axis of members; ``ensemble[0]`` is a copy of the first member.

    All inputs have a first axis of members: in ``ensemble(context, xq)``, x is ``(members, *batch, n, dx)``; in
    ``ensemble(sequence)``, the sequence is ``(members, *batch, t, d)``.

    Several small models run faster at once than one after the other. Members run one after the other if they are
    large and on CPU, or if `torch.func.vmap` cannot run them, as with recurrent layers, spectral norm, or code that
    depends on values of tensors. The modules are copied. Each member has its own buffers, such as BatchNorm's running
    statistics, and its own random numbers, such as dropout masks.

    Args:
        members: modules of one architecture and dtype, with parameters, all in train() or all in eval() mode. Python
            attributes, such as a damping, are those of the first.
    """

    @guarded
    def __init__(self, members: Sequence[Module]) -> None:
        if not isinstance(members, list | tuple) or not all(isinstance(member, nn.Module) for member in members):
            raise ArgumentTypeError(f"members must be a list of modules, but is {shown(members)}: pass one per seed.")
        if not members:
            raise ArgumentError("members must hold at least one module, but is empty: pass one per seed.")
        for member in members:
            require_initialised("members", member)
        first = _architecture(members[0])
        for index, member in enumerate(members):
            if (own := _architecture(member)) != first:
                one, other = next(_apart(a, b) for a, b in itertools.zip_longest(first, own, fillvalue="") if a != b)
                raise ArgumentError(
                    f"members must be of one architecture, but member 0 has {one} and member {index} has {other}: "
                    "build all from one config."
                )
        self.original = members[0]
        """The first module that was passed; its weights are not used."""
        self.module = copied("members", members[0])
        """Copy of the first module, called with the weights of each member; its own weights are not used."""
        mark_undecayed(self.module, undecayed(members[0]))  # copies of parameters lose their attributes
        try:
            weights, buffers = stack_module_state(list(members))  # type: ignore[arg-type]
        except (RuntimeError, KeyError) as error:
            if out_of_memory(error):
                raise
            raise ArgumentError(
                f"members must be of one architecture, but differ ({one_line(error)}): build all from one config."
            ) from error
        self.weights = {name: w.detach().clone().requires_grad_(w.requires_grad) for name, w in weights.items()}
        self.buffers = {name: buffer.detach().clone() for name, buffer in buffers.items()}
        if not self.weights:
            raise ArgumentError(f"members must have parameters, but {members[0]} has none: pass another module.")
        self.log: History | None = None
        self.diverged: tuple[int, ...] = (0,) * len(self)
        """The training step at which each member diverged and stopped training; 0 if it has not."""

    @property
    def history(self) -> Table:
        """Loss, gradient norm and learning rate of each step and seed of `train`."""
        return Table() if self.log is None else self.log.table()

    def __repr__(self) -> str:
        return f"Ensemble of {len(self)}: {label(self.module)}"

    def __len__(self) -> int:
        return next(iter(self.weights.values())).shape[0]

    def __getitem__(self, index: int) -> Module:
        return self.member(index)

    def __iter__(self) -> Iterator[Module]:
        return map(self.member, range(len(self)))

    def __call__(self, *inputs: Context | Tensor) -> Float[Tensor, "members *batch m dy"]:
        for part in tensors_of(inputs):
            if part.shape[:1] != (len(self),):
                refuse("inputs", f"have a first axis of {len(self)}, one per member", tuple(part.shape), "expand them")
        if len(self) == 1 or self._fills_the_machine(inputs):
            output, replaced = self.in_turn(*inputs)
        else:
            buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
            output, replaced = at_once(
                self.module, self._with_buffers, (self.weights, buffers, *inputs), lambda: self.in_turn(*inputs)
            )
        self.buffers.update({name: buffer.detach() for name, buffer in replaced.items()})
        return output

    def member(self, index: int) -> Module:
        """A copy of member ``index`` as an ordinary module."""
        index = require_count("index", index, least=-len(self))
        if index >= len(self):
            refuse("index", f"be below the number of members, {len(self)}", index, "count from 0")
        module = copied("members", self.module).to(next(iter(self.weights.values())).device)
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, weight in self.weights.items():
                parameters[name].copy_(weight[index])
        put(module, {name: buffer[index].clone() for name, buffer in self.buffers.items()})
        return module

    def members(self) -> list[Module]:
        """Copies of all members."""
        return list(self)

    def with_weights(self, weights: dict[str, Tensor]) -> Ensemble[Module]:
        """The same ensemble with other weights, which are not copied."""
        other = copy.copy(self)
        other.weights = weights
        return other

    def to(self, device: torch.device | str) -> Ensemble[Module]:
        """Move weights and buffers to ``device`` in place, and return the ensemble."""
        generator_on(device)
        self.weights = {name: w.detach().to(device).requires_grad_(w.requires_grad) for name, w in self.weights.items()}
        self.buffers = {name: buffer.to(device) for name, buffer in self.buffers.items()}
        self.module.to(device)
        return self

    def _fills_the_machine(self, inputs: Sequence[Context | Tensor]) -> bool:
        """True if one member alone keeps the CPU busy; several at once would compete for its caches."""
        rows = max(part.shape[1 : -1 if part.is_floating_point() else None].numel() for part in tensors_of(inputs))
        entries = sum(weight[0].numel() for weight in self.weights.values())
        return next(iter(self.weights.values())).device.type == "cpu" and rows * entries > _BUSY

    def in_turn(self, *inputs: Context | Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs of the members, called one after the other, and the buffers that they replaced.

        If a member raises a `MesascopeError`, its output is nan; if all do, the first error is raised.
        """
        tried = [self._tried(index, inputs) for index in range(len(self))]
        made = next((one for one in tried if not isinstance(one, MesascopeError)), None)
        if made is None:
            raise tried[0]  # type: ignore[misc]
        lost = (torch.full_like(made[0], torch.nan), {})
        outputs, replaced = zip(*(lost if isinstance(one, MesascopeError) else one for one in tried), strict=True)
        buffers = {
            name: torch.stack([own.get(name, old) for old, own in zip(self.buffers[name], replaced, strict=True)])
            for name in dict.fromkeys(name for own in replaced for name in own)
        }
        return torch.stack(outputs), buffers

    def _tried(self, index: int, inputs: Sequence[Context | Tensor]) -> tuple[Tensor, dict] | MesascopeError:
        weights, buffers = ({name: t[index] for name, t in part.items()} for part in (self.weights, self.buffers))
        own = [Context(*(t[index] for t in part)) if isinstance(part, Context) else part[index] for part in inputs]
        try:
            return self._call(weights, buffers, *own)
        except MesascopeError as error:
            return error

    def _call(self, weights: dict, buffers: dict, *inputs: Context | Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Output, and the buffers that the module replaced by other tensors."""
        output, replaced = run_with(self.module, weights | buffers, inputs)
        return require_tensor(self, output), replaced

    def _with_buffers(self, weights: dict, buffers: dict, *inputs: Context | Tensor) -> tuple[Tensor, dict]:
        """Output and all buffers; ``buffers`` must be copies, as vmap may abort a call half-way."""
        output, replaced = self._call(weights, buffers, *inputs)
        return output, buffers | replaced
