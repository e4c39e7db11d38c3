"""Draw tasks from families and call learners; each failure is reported in one sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from mesascope.errors import ArgumentError, ArgumentTypeError, MesascopeError, raised, refuse, require_callable, shown
from mesascope.modules import out_of_memory, run_with
from mesascope.shapes import Float, Tensor
from mesascope.tasks.episodes import Context, Episode, check_episode, check_sequence
from mesascope.text import counted

# Parts of torch's error messages that `guarded` and lenses explain.
_EXPLAINED_ELSEWHERE = ("nference tensor", "requires grad")


class LearnerError(ArgumentError):
    """A learner raised an error, for example because the tasks' shapes do not fit it; ``__cause__`` is this error."""


def require_family(family: Any) -> None:
    """Raise unless ``family`` is an object with a method ``sample``."""
    if isinstance(family, type) or not callable(getattr(family, "sample", None)):
        remedy = f"pass {family.__name__}()" if isinstance(family, type) else "pass LinearRegression(), for example"
        refuse("family", "have a method sample(batch, generator)", family, remedy, ArgumentTypeError)


def require_labels(family: Any, tasks: Episode | Tensor) -> None:
    """Raise if all labels are 0, as algorithms would then be indistinguishable."""
    labels = tasks.context.y if isinstance(tasks, Episode) else tasks
    if not labels.any():
        raise ArgumentError(
            f"family must draw labels other than 0, but those of {label(family)} are all 0: choose other settings, or "
            "another family."
        )


def sample_tasks(family: Any, tasks: int, generator: torch.Generator) -> Any:
    """Draw ``tasks`` tasks of a family: an `Episode`, or sequences ``(tasks, t, d)``."""
    require_family(family)
    with explain_torch_errors(family, (), tasks):
        batch = family.sample(tasks, generator)
    if not isinstance(batch, Episode | Tensor):
        raise ArgumentTypeError(
            f"family must draw an Episode or a tensor of sequences, but {label(family)} drew a "
            f"{type(batch).__name__}: return Episode(Context(x, y), xq, yq)."
        )
    found = len(batch.xq if isinstance(batch, Episode) else batch)
    if found != tasks:
        raise ArgumentError(
            f"family must draw as many tasks as it is asked for, {tasks}, but {label(family)} drew {found}: fix its "
            "sample(batch, generator)."
        )
    return batch


def predict(model: Any, *inputs: Context | Tensor, weights: Mapping[str, Tensor] | None = None) -> Any:
    """Call ``model``, with ``weights`` instead of its own if given, and return its output.

    Raises:
        ArgumentTypeError: the model does not take these inputs, or its weights have another dtype or device.
        ArgumentError: the model runs out of memory.
        LearnerError: the model raises another error; mesascope's errors pass unchanged.
    """
    require_callable("a learner", model)
    if isinstance(model, type):
        raise ArgumentTypeError(
            f"a learner must be an instance, but is the class {model.__name__}: pass {model.__name__}(), with the "
            "arguments that it needs."
        )
    try:
        with explain_torch_errors(model, inputs):
            answer = model(*inputs) if weights is None else run_with(model, weights, inputs)[0]
    except Exception as error:
        if isinstance(error, MesascopeError) or any(part in str(error) for part in _EXPLAINED_ELSEWHERE):
            raise
        if isinstance(error, TypeError) and not takes(model, inputs):
            raise _of_other_arguments(model, inputs) from error
        raise _unanswered(model, inputs, error) from error
    # With a weight on "meta", torch may read arbitrary memory.
    empty = weights is None and isinstance(model, nn.Module) and any(weight.is_meta for weight in model.parameters())
    if empty or getattr(answer, "is_meta", False):
        raise ArgumentTypeError(
            f"a learner must return numbers, but {label(model)} computes on the device 'meta', which holds none: build "
            "it anew, or load its weights first."
        )
    return answer


def check_answer(model: object, answer: object, shape: tuple[int, ...]) -> Tensor:
    """Return ``answer``; raise unless it is a tensor of exactly this shape, as torch silently broadcasts others."""
    answer = require_tensor(model, answer)
    if answer.shape != shape:
        raise ArgumentError(
            f"a learner must return predictions of the answers' shape {tuple(shape)}, but {label(model)} returned "
            f"{tuple(answer.shape)}: return (*batch, m, dy), with dy the width of context.y, or (*batch, t, d) for "
            "sequences."
        )
    return answer


def require_tensor(model: object, answer: object) -> Tensor:
    """Return ``answer``; raise unless it is a tensor of real floating-point numbers."""
    if not isinstance(answer, Tensor):
        remedy = "return the predictions alone" if isinstance(answer, tuple | list) else "wrap it in torch.as_tensor"
        raise ArgumentTypeError(
            f"a learner must return a torch tensor, but {label(model)} returned {type(answer).__name__}: {remedy}."
        )
    if not answer.is_floating_point():
        remedy = "return the real part" if answer.is_complex() else "convert it to the dtype of its inputs"
        raise ArgumentTypeError(
            f"a learner must return real floating-point numbers, but {label(model)} returned {answer.dtype}: {remedy}."
        )
    return answer


def check_causal(predictor: Any, sequences: Float[Tensor, "tasks t d"]) -> None:
    """Raise if a prediction changes with the elements after it.

    In four sequences, the elements after a cut are replaced by elements of another sequence. The tolerance is
    0.1 % of the largest prediction, or ten times the change from rounding all elements, whichever is larger.
    """
    few = sequences[torch.arange(4, device=sequences.device) % len(sequences), :-1]
    t = few.shape[1]
    if t < 2:
        return
    cuts = torch.tensor([max(t // 4, 1), t // 2, min(t // 2 + 1, t - 1), t - 1], device=few.device)
    later = torch.arange(t, device=few.device) >= cuts[:, None]
    changed = torch.where(later[..., None], few.roll(1, 0).flip(1), few)

    def predictions(elements: Tensor) -> Tensor:
        return check_answer(predictor, predict(predictor, copied(elements)), elements.shape).detach().clone()

    with torch.random.fork_rng(devices=[few.device] if few.is_cuda else []):
        first = predictions(few)
        moved = (first - predictions(changed)).abs().amax(-1).masked_fill(later, 0)
        bound = 1e-3 * first.abs().amax(-1).masked_fill(later, 0).max()
        if not bool((moved > bound).any()):
            return
        rounded = predictions(few * (1 + 2 * torch.finfo(few.dtype).eps))
        bound = bound.maximum(10 * (first - rounded).abs().max())
    for row, time in (moved > bound).nonzero().tolist()[:1]:
        one, other = (predictions(part[row : row + 1])[0, time] for part in (few, changed))
        if not bool((one - other).abs().max() > bound):
            raise ArgumentError(
                f"a predictor must predict each sequence by itself, but predictions of {label(predictor)} change with "
                "other sequences of the batch: do not mix the first axis."
            )
        raise ArgumentError(
            f"a predictor must not look ahead, but the prediction of {label(predictor)} after "
            f"{counted(time + 1, 'element')} changes with element {int(cuts[row]) + 1} or later ones: mask later "
            "elements, as causal attention does."
        )


def check_tasks(tasks: Any) -> None:
    """Raise unless ``tasks`` contains at least one episode or sequence, and only finite numbers."""
    if not isinstance(tasks, Episode | Tensor):
        raise ArgumentTypeError(
            f"tasks must be an Episode or a tensor of sequences, but are {shown(tasks)}: draw them with "
            "family.sample(batch, generator)."
        )
    if isinstance(tasks, Episode):
        check_episode(tasks)
        if tasks.xq.ndim != 3 or not tasks.yq.numel():
            rule = "be (tasks, m, dy) with at least one task"
            refuse("yq", rule, tuple(tasks.yq.shape), "draw some, with one first axis")
        return
    check_sequence(tasks)
    if tasks.ndim != 3 or tasks.shape[1] < 2 or not tasks.numel() or not bool(torch.isfinite(tasks).all()):
        refuse("sequences", "be finite numbers (tasks, t, d) with t > 1", tuple(tasks.shape), "draw others")


def inputs_and_targets(tasks: Episode | Tensor) -> tuple[tuple[Any, ...], Tensor]:
    """Inputs of a learner or predictor, and the targets (the next elements, for a predictor)."""
    if isinstance(tasks, Episode):
        return (tasks.context, tasks.xq), tasks.yq
    return (tasks[..., :-1, :],), tasks[..., 1:, :]


def copied(tensor: Tensor) -> Tensor:
    """Copy a tensor for a learner that may overwrite it. Strides are kept, as rounding in products depends on them."""
    if 0 in tensor.stride():  # entries share memory
        return tensor.clone()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def label(model: object) -> str:
    """Short text for a learner or a family in error messages."""
    model = getattr(model, "module", model)  # the module of an ensemble
    if isinstance(model, nn.Module) and "\n" not in (line := repr(model)) and len(line) < 80:
        return line
    return display_name(model)


def display_name(model: object) -> str:
    """Name of a learner or a family in tables: the name of the function or class."""
    return getattr(model, "__name__", type(model).__name__)


def takes(model: Any, inputs: tuple[Any, ...], **options: Any) -> bool:
    """True if the signature of ``model``, or of an ensemble's module, accepts these arguments."""
    module = getattr(model, "module", model)
    try:
        inspect.signature(module.forward if isinstance(module, nn.Module) else module).bind(*inputs, **options)
    except TypeError:
        return False
    except ValueError:  # Python finds no signature
        pass
    return True


@contextmanager
def explain_torch_errors(model: Any, inputs: tuple[Any, ...], tasks: int | None = None) -> Iterator[None]:
    """Reword torch's errors about memory, derivatives, dtypes and devices in this context, naming ``model``.

    Args:
        tasks: number of tasks; counted in the inputs if None.
    """
    try:
        yield
    except RuntimeError as error:
        said = str(error)
        if out_of_memory(error):
            shapes = [tensor.shape[:-2] for tensor in tensors_of(inputs)]
            count = tasks or (shapes[0].numel() if shapes else 1)
            some = f"pass at most {count // 2:,}, or smaller ones" if count > 1 else "pass smaller ones"
            raise ArgumentError(
                f"the tasks must fit into memory, but {label(model)} ran out of it on {counted(count, 'task')}: {some}."
            ) from error
        if "derivative for" in said and "not implemented" in said:
            raise ArgumentError(
                f"a model must be made of operations that can be differentiated as often as the loss needs, but "
                f"{label(model)} is not ({' '.join(said.split())}): pass order=1 to a meta-learner, or replace the "
                "operation."
            ) from error
        tensors = tensors_of(inputs)
        for name, call in (("dtype", ".float() or .double()"), ("device", ".to(device)")):
            other = _other(model, tensors, name)
            if other is not None and (name in said or "same" in said):
                raise ArgumentTypeError(
                    f"a learner must have the {name} of the tasks, {getattr(tensors[0], name)}, but {label(model)} "
                    f"has weights of {other}: {'convert' if name == 'dtype' else 'move'} one of the two with "
                    f"{call}."
                ) from error
        raise


def tensors_of(inputs: Iterable[Any]) -> list[Tensor]:
    """Tensors among the inputs of a learner, and in its contexts."""
    return [tensor for part in inputs for tensor in (part if isinstance(part, tuple) else (part,))]


def _other(model: Any, tensors: list[Tensor], name: str) -> Any:
    """First ``name`` (dtype or device) of a weight that differs from the ``name`` of the inputs; None if all agree."""
    weights: Callable = getattr(getattr(model, "module", model), "parameters", tuple)
    of = [getattr(weight, name) for weight in weights() if weight.is_floating_point()]
    return next((one for one in of if tensors and one != getattr(tensors[0], name)), None)


def _of_other_arguments(model: Any, inputs: tuple[Any, ...]) -> ArgumentTypeError:
    """Error for a learner with other arguments, such as a sequence instead of a context and queries."""
    pair = len(inputs) == 2
    wanted, others = ("(context, xq)", "sequences") if pair else ("(sequence)", "episodes")
    remedy = f", or choose a family of {others}" if takes(model, (None,) * (1 if pair else 2)) else ""
    if pair and takes(model, (None,) * 3):
        remedy = ", or pass from_numpy(it) if it takes arrays (x, y, xq)"
    return ArgumentTypeError(
        f"a learner must take what the family draws, here {wanted}, but {label(model)} does not: write it to take "
        f"{wanted}{remedy}."
    )


def _unanswered(model: Any, inputs: tuple[Any, ...], error: Exception) -> LearnerError:
    context, *queries = inputs
    tensors = context._asdict() | {"xq": queries[0]} if queries else {"sequence": context}
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
    return LearnerError(
        f"a learner must accept tasks of these shapes, {shapes}, but {label(model)} raised {raised(error)}: fix it, or "
        "choose tasks of other shapes."
    )
