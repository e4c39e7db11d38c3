"""Training of a language model on a corpus, in a run that can be resumed."""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from mesascope.errors import NumericalError, refuse, require_count, require_instance
from mesascope.language.losses import in_context_score, next_token_loss, token_losses
from mesascope.language.models import language_model_config
from mesascope.language.shards import SPLITS, TOKENIZER, open_corpus
from mesascope.language.windows import TextWindows
from mesascope.measurement import Measurement
from mesascope.modes import guarded
from mesascope.nets import LanguageModel, LanguageModelConfig
from mesascope.ops import without_reading_values
from mesascope.progress import tell
from mesascope.records import to_record
from mesascope.runs import Run
from mesascope.runs.checkpoints import TrainingCheckpoints, rewind
from mesascope.runs.provenance import available_device, made_with, tell_of_other_machine
from mesascope.shapes import Int, Tensor
from mesascope.streams import stream
from mesascope.training import Checkpoints, Metrics, ModuleState, ProgressBar, Training, fit, processes, result_tensors
from mesascope.validate import Count, Whole, frozen

MODEL = "model"  # name of the run's only training, and of the folder of the trained model
_SCALED = 8  # number of windows on which layer scales are measured
AUTOCAST = {"none": None, "bfloat16": torch.bfloat16}


@frozen
class LanguageTraining:
    """Settings of a language model, its text and its training."""

    corpus: str = "corpus"
    """Folder written by mesascope language prepare."""
    layers: str = "softmax, mesa"
    """Type of each layer, such as "softmax, linear*3"."""
    width: Count = 128
    """Embedding width."""
    n_heads: Count = 4
    """Number of heads in each layer."""
    mlp: Count | None = 4
    """Hidden width of MLPs as a multiple of the width; no MLPs if None."""
    context: Annotated[int, msgspec.Meta(ge=20)] = 256
    """Number of tokens in a window."""
    positions: Literal["learned", "rotary", "none"] = "learned"
    """Position embeddings: a learned vector per position, rotary embeddings in softmax layers, or none."""
    dpfp: Whole = 1
    """nu of the DPFP feature map in layers other than softmax; 0 for no feature map."""
    key_shift: bool = False
    """Compute the keys of the first layer from the previous token."""
    convolution: Whole = 0
    """Number of taps of short convolutions in layers other than softmax; 0 for no convolutions."""
    forget: bool = False
    """Learn forget gates in layers other than softmax."""
    tied: bool = True
    """Tie the weights of the logits to the embedding."""
    dropout: float = 0.0
    """Dropout rate of the embedding."""
    training: Training = Training(
        1000, 16, learning_rate=2e-3, schedule="cosine", warmup_steps=100, decay_from=0.0, final_rate=0.1,
        optimizer="adamw", betas=(0.9, 0.95), weight_decay=0.1, clip=1.0, evaluate_every=100, checkpoint_every=200,
    )  # fmt: skip
    """Batch size in windows, steps, learning rates and optimizer."""
    accumulate: Count = 1
    """Number of micro-batches per batch (gradient accumulation)."""
    autocast: Literal["none", "bfloat16"] = "none"
    """Precision of activations; weights stay in float32."""
    validation_windows: Count = 64
    """Number of windows for the validation loss."""
    shard: bool = False
    """Shard weights over the processes of torchrun (FSDP2); otherwise each process has all weights (DDP)."""

    def __post_init__(self) -> None:
        if self.training.batch % self.accumulate:
            rule = f"divide the batch of {self.training.batch} windows"
            refuse("accumulate", rule, self.accumulate, "pass a divisor")
        self.network(vocabulary=257)

    def network(self, vocabulary: int) -> LanguageModelConfig:
        """Config of the model."""
        return language_model_config(
            self.layers, vocabulary, self.context, **{name: getattr(self, name) for name in _OF_NETWORK}
        )


_OF_NETWORK = (
    "width", "n_heads", "mlp", "positions", "dpfp", "key_shift", "convolution", "forget", "tied", "dropout",
)  # fmt: skip
# quick takes minutes on two cores. paper has the four-layer models with MLPs of von Oswald (2024), for the Pile with
# GPT-2's tokenizer.
PRESETS = {
    "quick": LanguageTraining(),
    "paper": LanguageTraining(
        layers="softmax, mesa*3", width=768, n_heads=12, context=1024, dpfp=3, tied=False, dropout=0.1, accumulate=8,
        autocast="bfloat16", validation_windows=256, training=replace(
            LanguageTraining.training, steps=100_000, batch=256, learning_rate=3e-4, warmup_steps=8000,
            final_rate=2 / 3, evaluate_every=1000, checkpoint_every=1000,
        ),
    ),
}  # fmt: skip


def new_language_run(
    settings: LanguageTraining, out: str | Path, *, seed: int = 0, device: str = "cpu", command: str = ""
) -> Run:
    """Create a run for `train_language_model`.

    Args:
        device: auto (a GPU if there is one), cpu, cuda, cuda:1, ...

    Raises:
        ArgumentError: the corpus is missing or shorter than a window, or processes have unequal shares of a batch.
    """
    require_instance("settings", settings, LanguageTraining)
    seed = require_count("seed", seed, least=0)
    made = made_with(available_device(device), command)
    _require_even_shares(settings)
    settings = replace(settings, corpus=str(Path(settings.corpus).resolve()))
    corpus = open_corpus(settings.corpus)
    for split in SPLITS:
        if corpus.tokens(split) <= settings.context:
            rule = f"be below the {corpus.tokens(split)} tokens of {split}"
            refuse("context", rule, settings.context, "lower it, or prepare more text (for validation a larger share)")
        corpus.verify(split)
    question = f"A language model: {settings.layers}"
    record = {"settings": to_record(settings), "seed": seed, "question": question, "tokens": corpus.checksum}
    return Run.create(out, "training", record | made)


def resume_language_run(folder: str | Path) -> Run:
    """Open a run for `train_language_model` to continue.

    Raises:
        RunDirectoryError: its records are damaged.
        ArgumentError: its device is not available.
    """
    run = Run.open(folder)
    _settings(run)
    available_device(run.config["device"])
    run.check()
    tell_of_other_machine(run)
    return run


@guarded
def train_language_model(run: Run) -> LanguageModel:
    """Train from the last checkpoint, and save the model and its tokenizer in the run's folder ``model``.

    Every ``evaluate_every`` steps, the validation loss in nats per token and `in_context_score` are logged, with
    standard errors over windows. They are printed with the mean training loss since the last evaluation or resume.
    Processes in a `distributed_context` share the work, and the first one writes files.

    Raises:
        NumericalError: the loss has diverged. The message names the layer whose tokens grew most; checkpoints are kept.
    """
    settings, seed, device = _settings(run), run.config["seed"], processes.local_device(run.config["device"])
    _require_even_shares(settings)
    tokens = run.config["tokens"]
    processes.on_rank_zero(lambda: [open_corpus(settings.corpus).verify(split) for split in SPLITS], list)
    windows, held = (TextWindows(settings.corpus, settings.context + 1, split, tokens) for split in SPLITS)
    network, plan = settings.network(windows.corpus.index.vocabulary), settings.training
    record = {"network": to_record(network), "family": to_record(windows), "settings": to_record(settings)}
    record |= {"seeds": [seed], "tokens": tokens}
    state, batch_at = begun(settings, windows, seed, device)
    shown = held.spread(settings.validation_windows).to(device)

    with run.lock() if processes.is_rank_zero() else contextlib.nullcontext():
        checkpoints = TrainingCheckpoints(run.path / "checkpoints" / MODEL, record, device, keep=plan.keep)
        monitor = _Monitor(run, plan, shown, state, processes.SharedCheckpoints(checkpoints))
        with ProgressBar(MODEL, plan.steps, per_step=plan.batch * settings.context) as bar:

            def observe(step: int, metrics: Metrics) -> None:
                monitor.training_losses.append(float(metrics["loss"]))
                if processes.is_rank_zero():
                    bar(step, metrics)

            try:
                fit(state, batch_at, plan, evaluate=monitor, checkpoints=monitor, observe=observe)
            except NumericalError as error:
                raise monitor.diverged(error) from None
        trained = network.build(stream(seed, "init"))
        trained.load_state_dict(result_tensors(state.tensors()))
        if processes.is_rank_zero():
            trained.save_pretrained(run.path / MODEL)
            shutil.copyfile(Path(settings.corpus) / TOKENIZER, run.path / MODEL / TOKENIZER)
    return trained.to(device).eval()


def begun(
    settings: LanguageTraining, windows: TextWindows, seed: int, device: torch.device
) -> tuple[ModuleState, Callable[[int], Tensor]]:
    """State of a training before its first step, and a function from a step to its batch."""
    model = settings.network(windows.corpus.index.vocabulary).build(stream(seed, "init")).to(device)
    state = ModuleState(
        _shared(model, settings.shard), next_token_loss, settings.training, accumulate=settings.accumulate,
        autocast=AUTOCAST[settings.autocast], seed=seed,
    )  # fmt: skip

    def batch_at(step: int) -> Tensor:
        return processes.local_batch(windows.sample(settings.training.batch, stream(seed, "text", step))).to(device)

    return state, batch_at


def _require_even_shares(settings: LanguageTraining) -> None:
    count = distributed.get_world_size() if distributed.is_initialized() else 1
    if settings.training.batch % (settings.accumulate * count):
        parts = f"be a multiple of {settings.accumulate * count}, {settings.accumulate} parts in {count} processes"
        refuse("batch", parts, settings.training.batch, "choose one")


class _Monitor:
    """Evaluation and checkpoints of a training, with the scale of tokens after each layer.

    All processes run the model, which may be sharded; the first one writes files. Only finite models are saved.
    """

    def __init__(self, run: Run, plan: Training, shown: Tensor, state: ModuleState, checkpoints: Checkpoints) -> None:
        self.run, self.plan, self.shown, self.state, self.checkpoints = run, plan, shown, state, checkpoints
        self.training_losses: list[float] = []
        self.since = 0  # step after which these losses were collected
        self.scales: Scales | None = None

    def __call__(self, step: int, model: Any) -> None:
        with without_reading_values():
            losses = token_losses(model, self.shown)
        if not bool(losses.isfinite().all()):
            raise NumericalError(
                f"the validation loss must stay finite, but is {float(losses.mean())}: lower the learning rate, or "
                "set training.clip."
            )
        self._measure_scales(step, model)
        loss, score = Measurement.of(losses.mean(1)), in_context_score(losses)
        numbers = {"loss": float(losses.mean()), "in_context_score": score.value}
        if len(losses) > 1:
            numbers |= {"loss_stderr": loss.stderr, "in_context_score_stderr": score.stderr}
        if processes.is_rank_zero():
            self.run.append_metrics([{"training": MODEL, "step": step, "seed": self.run.config["seed"], **numbers}])
            own = self.training_losses
            since = f" since step {self.since}" if self.since % self.plan.evaluate_every else ""  # a resumed training
            read = f"training loss{since} {math.fsum(own) / len(own):.4f}, " if own else ""
            tell(f"step {step}/{self.plan.steps}: {read}validation loss {loss}, in-context score {score}")
        self.training_losses.clear()
        self.since = step

    def save(self, step: int, tensors: dict[str, Tensor]) -> None:
        """Save a checkpoint; raise if the model is not finite."""
        self._measure_scales(step, self.state.result())
        self.checkpoints.save(step, tensors)

    def load(self) -> tuple[int, dict[str, Tensor]] | None:
        """Load the last checkpoint, and drop metrics logged after it."""
        found = self.checkpoints.load()
        if processes.is_rank_zero():
            rewind(self.run, MODEL, found[0] if found else None, self.plan, [self.run.config["seed"]])
        if found:
            self.state.load(found[1])
            self.since = found[0]
            self.scales = layer_scales(found[0], self.state.result(), self.shown)
        return found

    def diverged(self, error: NumericalError) -> NumericalError:
        """Return the error with the name of the layer whose tokens grew most."""
        now = layer_scales(self.state.step, self.state.result(), self.shown)
        said, remedy = str(error).rstrip("."), "lower the learning rate, or set training.clip"
        if "learning rate" not in said:  # raised by one layer
            said = f"{said.rpartition(': ')[0]}: {remedy}"
        return NumericalError(f"{said}; after step {self.state.step}, {moved(self.scales, now)}.")

    def _measure_scales(self, step: int, model: Any) -> None:
        scales = layer_scales(step, model, self.shown)
        if not all(map(math.isfinite, scales.values)):
            raise NumericalError("tokens must stay finite, but do not: lower the learning rate.")
        self.scales = scales


def _shared(model: LanguageModel, shard: bool) -> Any:
    """Wrap the model for distributed training, if there are several processes."""
    if not distributed.is_initialized():
        return model
    return processes.sharded(model, model.transformer.layers) if shard else DistributedDataParallel(model)


def _settings(run: Run) -> LanguageTraining:
    return run.settings_as(LanguageTraining, "the settings of a language model")


@dataclass(frozen=True)
class Scales:
    """Root mean squares of the tokens before the first layer and after each layer, at a training step."""

    step: int
    values: tuple[float, ...]


@torch.no_grad()
def layer_scales(step: int, model: Any, windows: Int[Tensor, "n t"]) -> Scales:
    """Measure a language model's scales on the first windows of text; nan after a layer that raises an error."""
    names = ["embedded", *(f"layers.{index}" for index in range(model.config.transformer.n_layers))]
    with model.cached(names) as cache, without_reading_values(), contextlib.suppress(NumericalError):
        model(windows[:_SCALED, :-1])
    found = {name: tokens.float().square().mean().sqrt().item() for name, tokens in cache.items()}
    return Scales(step, tuple(found.get(name, math.nan) for name in names))


def moved(before: Scales | None, now: Scales) -> str:
    """Describe the first layer whose tokens are not finite, or the layer whose tokens grew most.

    >>> moved(Scales(40, (1.0, 1.1, 1.2)), Scales(49, (1.0, 1.1, 60.0)))
    'tokens after layer 1 grew most: their root mean square is 60, and was 1.2 at step 40'
    """
    places = ["embedded tokens", *(f"tokens after layer {index}" for index in range(len(now.values) - 1))]
    for place, value in zip(places, now.values, strict=True):
        if not math.isfinite(value):
            return f"{place} are the first that are not finite"
    if before is None:
        own = now.values.index(max(now.values))
        return f"{places[own]} are the largest: their root mean square is {now.values[own]:.3g}"
    # Growth of each layer relative to the previous layer: tokens that grow in one layer are large in all later ones.
    grown = [value / max(old, 1e-30) for value, old in zip(now.values, before.values, strict=True)]
    steps = [grown[0], *(later / earlier for earlier, later in itertools.pairwise(grown))]
    own = steps.index(max(steps))
    if steps[own] < 2:
        return f"no layer has doubled its tokens since step {before.step}"
    was, value = before.values[own], now.values[own]
    return f"{places[own]} grew most: their root mean square is {value:.3g}, and was {was:.3g} at step {before.step}"
