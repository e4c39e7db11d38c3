"""Learners of streams: of tasks one after another, and of batches whose task switches unannounced.

Both continue from their last checkpoint when a run is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import meta, study, tasks, training
from mesascope.records import to_record
from mesascope.streams import stream
from mesascope.study import Arrays, Training

if TYPE_CHECKING:
    from torch import Tensor

    from mesascope.training import Ensemble


def follow(
    lab: study.Lab,
    name: str,
    network: Any,
    method: Any,
    family: tasks.Family,
    count: int,
    *,
    seeds: Sequence[int] | None = None,
    batch: int = 10,
    passes: int = 1,
    looks: int = 1,
) -> Any:
    """Train networks by a method of continual learning on ``count`` tasks of a stream for each seed.

    Stage ``name`` holds accuracies by seed and task: ``learned`` at the task's end, ``retained`` at the stream's end.
    If the method has rates, ``closed`` is the share of rates that are 0, by seed, look and parameter.

    Args:
        seeds: of networks and streams; the run's if None.
        batch: number of examples per step.
        passes: number of passes over each task before the next.
        looks: number of evaluations (accuracy and closed entries) per task.
    """
    from mesascope.training.family import stacked

    seeds = list(seeds or lab.seeds)
    made = {"network": network, "method": method, "family": family, "tasks": count, "batch": batch, "passes": passes}
    record = to_record({**made, "seeds": seeds})
    drawn = stacked([family.sample(count, stream(seed, "tasks", device=lab.device)) for seed in seeds])
    assert isinstance(drawn, tasks.Episode)
    each = passes * drawn.context.x.shape[2] // batch
    plan = Training(count * each, batch, evaluate_every=each // looks, checkpoint_every=10 * each)

    def begun() -> meta.ContinualState:
        members = [network.build(stream(seed, "init")).to(lab.device) for seed in seeds]
        return meta.ContinualState(members, method, seeds)

    def finished(tensors: Mapping[str, Tensor]) -> list[Any]:
        state = begun()
        state.load(tensors)
        return _watches(state, drawn, each)

    state = begun()
    go = _fit(state, lambda step: meta.batch_of(drawn, step, batch, passes), plan)
    ensemble = lab.resumed(name, record, plan, _watches(state, drawn, each), go, finished)
    return lab.stage(name, lambda: _followed(lab.run.curves(name), meta.retained_accuracy(ensemble, drawn), looks))


def _fit(state: Any, batches: Callable[[int], Any], plan: Training) -> Callable[..., Ensemble]:
    """Argument ``go`` of `Lab.resumed`: a function that fits ``state`` to ``batches``."""
    return lambda log, checkpoints, bar: training.fit(
        state, batches, plan, evaluate=log, checkpoints=checkpoints, observe=bar
    )


def _watches(state: meta.ContinualState, drawn: tasks.Episode, steps: int) -> list[Any]:
    """Watch of each member: accuracy on the current task (tasks take ``steps`` steps each), and closed shares."""

    def look(member: int, net: Any) -> dict[str, float]:
        task = max(state.step - 1, 0) // steps
        right = tasks.accuracy(net(drawn.xq[member, task]), drawn.yq[member, task])
        shares = {f"closed {key}": share for key, share in state.sparsity_by_parameter()[member].items()}
        return {"accuracy": float(right)} | shares

    return [partial(look, member) for member in range(len(state.seeds))]


def _followed(curves: Arrays, at_the_end: Tensor, looks: int) -> Arrays:
    shares = [curves[name] for name in curves if name.startswith("closed ")]
    arrays = {"learned": curves["accuracy"][:, looks::looks], "retained": at_the_end.cpu().numpy()}
    arrays |= {"closed": np.stack(shares, -1)} if shares else {}
    return Arrays(arrays, learned="seed task", retained="seed task", closed="seed look parameter")


class Streams:
    """State of the training of several learners, each on its own stream of ``steps`` batches.

    ``metrics`` has the metrics of each batch by name, ``(members, steps)``; they are nan for batches still to come.
    """

    def __init__(self, states: Sequence[Any], steps: int) -> None:
        self.states, self.steps, self.step = states, steps, 0
        self.metrics: dict[str, Tensor] = {}

    def update(self, batches: Sequence[tasks.Context]) -> dict[str, Tensor]:
        """One step of each learner on its own batch."""
        import torch

        metrics = [state.update(batch) for state, batch in zip(self.states, batches, strict=True)]
        found = {name: torch.tensor([one[name] for one in metrics], dtype=torch.float64) for name in metrics[0]}
        for name, numbers in found.items():
            rows = self.metrics.setdefault(name, torch.full((len(metrics), self.steps), torch.nan, dtype=torch.float64))
            rows[:, self.step] = numbers
        self.step += 1
        return found

    def result(self) -> Ensemble:
        return training.Ensemble([state.result() for state in self.states])

    def tensors(self) -> dict[str, Tensor]:
        """Tensors for a checkpoint, by name; ``weights`` and ``buffers`` are for `Run.network`."""
        import torch

        found, each = self.result(), [state.tensors().items() for state in self.states]
        named = {f"{member}/{name}": one for member, own in enumerate(each) for name, one in own}
        named |= {f"metrics/{name}": one for name, one in self.metrics.items()} | {"step": torch.tensor(self.step)}
        for kind, part in (("weights", found.weights), ("buffers", found.buffers)):
            named |= {f"{kind}/{name}": one for name, one in part.items()}
        return named

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from a checkpoint of `tensors`."""

        def under(kind: object) -> dict[str, Tensor]:
            return {key.removeprefix(f"{kind}/"): one for key, one in tensors.items() if key.startswith(f"{kind}/")}

        for member, state in enumerate(self.states):
            state.load(under(member))
        self.step = int(tensors["step"])
        self.metrics = {name: one.cpu().clone() for name, one in under("metrics").items()}


def follow_batches(
    lab: study.Lab, name: str, method: Any, network: Any, streams: Sequence[tasks.ImageStream], start: str, starts: Any
) -> dict[str, np.ndarray]:
    """Metrics of each batch before the learner trains on it, ``(seeds, steps)`` by name, one stream per seed.

    ``start`` names the training that networks start from, with their weights in ``starts``; it may be empty.
    """
    steps, settings = len(streams[0]), streams[0].settings
    record = {"network": network, "method": method, "family": settings, "steps": steps, "seeds": lab.seeds}
    record |= {"start": start} if start else {}
    given = starts or [None] * len(lab.seeds)
    state = Streams([method.state(seed, one, lab.device) for seed, one in zip(lab.seeds, given, strict=True)], steps)
    plan = Training(steps, evaluate_every=steps)

    def batches(step: int) -> list[tasks.Context]:
        return [tasks.Context(*(part.to(lab.device) for part in own(step))) for own in streams]

    lab.resumed(name, to_record(record), plan, (), _fit(state, batches, plan))
    return {name: numbers.numpy() for name, numbers in state.metrics.items()}
