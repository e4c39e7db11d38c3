"""Training a language model on a corpus, in a run that goes on after any kill."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from mesascope.errors import NumericalError, RunDirectoryError, refuse, require_choice, require_count, require_instance
from mesascope.language.losses import in_context_score, next_token_loss, token_losses
from mesascope.language.models import layered
from mesascope.language.scales import Scales, layer_scales, moved
from mesascope.language.shards import SPLITS, TOKENIZER, open_corpus
from mesascope.language.windows import TextWindows
from mesascope.measurement import Measurement
from mesascope.modes import guarded
from mesascope.nets import LanguageModel, LanguageModelConfig
from mesascope.ops import without_reading_values
from mesascope.records import from_record, to_record
from mesascope.runs import Run
from mesascope.runs.checkpoints import TrainingCheckpoints
from mesascope.runs.provenance import available_device, made_with, tell_of_other_packages
from mesascope.shapes import Tensor
from mesascope.streams import stream
from mesascope.training import (
    Checkpoints,
    Metrics,
    ModuleState,
    ProgressBar,
    SharedCheckpoints,
    Training,
    by_first,
    fit,
    is_first_process,
    own_device,
    own_share,
    result_tensors,
    sharded,
)
from mesascope.validate import frozen

__all__ = ["PRESETS", "LanguageTraining", "new_language_run", "resume_language_run", "train_language_model"]

# Of the only training of such a run, and of the folder that its model is left in.
MODEL = "model"
_SCALED = 8  # windows that tokens are measured on after each layer
_AUTOCAST = {"none": None, "bfloat16": torch.bfloat16}


@frozen
class LanguageTraining:
    """A language model, the text that it learns from, and how."""

    corpus: str = "corpus"
    """Folder that mesascope language prepare wrote."""
    layers: str = "softmax, mesa"
    """Names of the layers' attention, such as "softmax, linear*3"."""
    width: int = 128
    """Of a token."""
    n_heads: int = 4
    """Of each layer."""
    mlp: int | None = 4
    """Hidden width of MLPs as a multiple of the width; attention alone if None."""
    context: int = 256
    """Tokens of a window."""
    positions: Literal["learned", "rotary", "none"] = "learned"
    """A vector a place, turned keys and queries of softmax layers, or none."""
    dpfp: int = 1
    """nu of the features of layers that are not softmax; 0 for none."""
    key_shift: bool = False
    """Whether keys of the first layer are those of the token before."""
    convolution: int = 0
    """Taps of short convolutions of layers that are not softmax; 0 for none."""
    forget: bool = False
    """Whether those layers learn to forget."""
    tied: bool = True
    """Whether logits are products with the embedding."""
    dropout: float = 0.0
    """Of the embedding."""
    training: Training = field(
        default_factory=lambda: Training(
            1000, 16, learning_rate=2e-3, schedule="cosine", warmup_steps=100, decay_from=0.0, final_rate=0.1,
            optimizer="adamw", betas=(0.9, 0.95), weight_decay=0.1, clip=1.0, evaluate_every=100, checkpoint_every=200,
        )
    )  # fmt: skip
    """Of what batches, at what rates; a batch is of windows."""
    accumulate: int = 1
    """Parts that a batch is computed in, one after the other."""
    autocast: Literal["none", "bfloat16"] = "none"
    """Precision of what is computed between weights, which stay in float32."""
    validation_windows: int = 64
    """Windows that the validation loss is the mean of."""
    shard: bool = False
    """Whether processes that torchrun starts share the weights too (FSDP2), and not the batch alone (DDP)."""

    def __post_init__(self) -> None:
        require_instance("corpus", self.corpus, str)
        require_count("context", self.context, least=20)
        for name in ("accumulate", "validation_windows"):
            require_count(name, getattr(self, name))
        if self.training.batch % self.accumulate:
            refuse(
                "accumulate", f"divide the batch of {self.training.batch} windows", self.accumulate, "pass a divisor"
            )
        require_choice("autocast", self.autocast, _AUTOCAST)
        self.network(vocabulary=257)

    def network(self, vocabulary: int) -> LanguageModelConfig:
        """The model."""
        return layered(
            self.layers, vocabulary, self.context, width=self.width, n_heads=self.n_heads, mlp=self.mlp,
            positions=self.positions, dpfp=self.dpfp, key_shift=self.key_shift, convolution=self.convolution,
            forget=self.forget, tied=self.tied, dropout=self.dropout,
        )  # fmt: skip


# Minutes on two cores, and the thesis' models on the Pile: four layers with MLPs, GPT-2's tokens.
PRESETS = {
    "quick": LanguageTraining(),
    "paper": LanguageTraining(
        layers="softmax, mesa*3", width=768, n_heads=12, context=1024, dpfp=3, tied=False, dropout=0.1, accumulate=8,
        training=Training(
            100_000, 256, learning_rate=3e-4, schedule="cosine", warmup_steps=8000, decay_from=0.0, final_rate=2 / 3,
            optimizer="adamw", betas=(0.9, 0.95), weight_decay=0.1, clip=1.0, evaluate_every=1000,
            checkpoint_every=1000,
        ), autocast="bfloat16", validation_windows=256,
    ),
}  # fmt: skip


def new_language_run(
    settings: LanguageTraining, out: str | Path, *, seed: int = 0, device: str = "cpu", command: str = ""
) -> Run:
    """Create the folder of a run that trains a language model.

    Args:
        device: auto (a GPU if there is one), cpu, cuda, cuda:1, ...

    Raises:
        ArgumentError: there is no corpus, it is shorter than a window, or processes cannot share a batch evenly.
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
    """A run begun earlier, whose files are all as they were left."""
    run = Run.open(folder)
    _settings(run)
    available_device(run.config["device"])
    run.check()
    tell_of_other_packages(folder, run.config)
    return run


@guarded
def train_language_model(run: Run) -> LanguageModel:
    """Train from the last checkpoint on, and leave the model and its tokenizer in the folder ``model`` of the run.

    Metrics hold the validation loss in nats a token and `in_context_score`, both with their standard errors over
    windows, every ``evaluate_every`` steps; they are printed with the mean training loss since. Processes that have
    `joined` share the work, and the first of them writes.

    Raises:
        NumericalError: the loss has diverged; names the layer whose tokens grew most. The last checkpoint stays.
    """
    settings, seed, device = _settings(run), run.config["seed"], own_device(run.config["device"])
    _require_even_shares(settings)
    tokens = run.config["tokens"]
    by_first(lambda: [open_corpus(settings.corpus).verify(split) for split in SPLITS], list)
    windows, held = (TextWindows(settings.corpus, settings.context + 1, split, tokens) for split in SPLITS)
    network, plan = settings.network(windows.corpus.index.vocabulary), settings.training
    record = {
        "network": to_record(network),
        "family": to_record(windows),
        "settings": to_record(settings),
        "seeds": [seed],
        "tokens": tokens,
    }
    state = ModuleState(
        _shared(network.build(stream(seed, "init")).to(device), settings.shard), next_token_loss, plan,
        accumulate=settings.accumulate, autocast=_AUTOCAST[settings.autocast], seed=seed,
    )  # fmt: skip
    watch = _Watch(run, seed, plan.steps, held.spread(settings.validation_windows).to(device))

    def batch_at(step: int) -> Tensor:
        return own_share(windows.sample(plan.batch, stream(seed, "text", step))).to(device)

    with run.lock() if is_first_process() else contextlib.nullcontext():
        checkpoints = TrainingCheckpoints(run.path / "checkpoints" / MODEL, record, device, keep=plan.keep)
        watch.go_on(checkpoints.load(), state)
        with ProgressBar(MODEL, plan.steps, per_step=plan.batch * settings.context) as bar:

            def observe(step: int, metrics: Metrics) -> None:
                watch.read.append(float(metrics["loss"]))
                if is_first_process():
                    bar(step, metrics)

            try:
                kept = _Sound(SharedCheckpoints(checkpoints), watch, state)
                fit(state, batch_at, plan, evaluate=watch, checkpoints=kept, observe=observe)
            except NumericalError as error:
                raise watch.diverged(error, state) from None
        trained = network.build(stream(seed, "init"))
        trained.load_state_dict(result_tensors(state.tensors()))
        if is_first_process():
            trained.save_pretrained(run.path / MODEL)
            shutil.copyfile(Path(settings.corpus) / TOKENIZER, run.path / MODEL / TOKENIZER)
    return trained.to(device).eval()


def _require_even_shares(settings: LanguageTraining) -> None:
    """Refuse a batch that processes and parts do not share evenly."""
    count = distributed.get_world_size() if distributed.is_initialized() else 1
    if settings.training.batch % (settings.accumulate * count):
        parts = f"be a multiple of {settings.accumulate * count}, {settings.accumulate} parts in {count} processes"
        refuse("batch", parts, settings.training.batch, "choose one")


class _Watch:
    """Logs and prints how well a model predicts windows held back, and keeps how large its tokens are after each layer.

    All processes ask the model, of which each may hold a part; the first one writes.
    """

    def __init__(self, run: Run, seed: int, steps: int, shown: Tensor) -> None:
        self.run, self.seed, self.steps, self.shown = run, seed, steps, shown
        self.read: list[float] = []
        self.scales: Scales | None = None

    def __call__(self, step: int, model: Any) -> None:
        with without_reading_values():
            losses = token_losses(model, self.shown)
        if not bool(losses.isfinite().all()):
            raise NumericalError(
                f"the validation loss must stay finite, but is {float(losses.mean())}: lower the learning rate, or "
                "set training.clip."
            )
        self.look(step, model)
        loss, score = Measurement.of(losses.mean(1)), in_context_score(losses)
        numbers = {"loss": float(losses.mean()), "in_context_score": score.value}
        if len(losses) > 1:
            numbers |= {"loss_stderr": loss.stderr, "in_context_score_stderr": score.stderr}
        if is_first_process():
            self.run.append_metrics([{"training": MODEL, "step": step, "seed": self.seed, **numbers}])
            read = f"training loss {math.fsum(self.read) / len(self.read):.4f}, " if self.read else ""
            print(f"step {step}/{self.steps}: {read}validation loss {loss}, in-context score {score}", file=sys.stderr)
        self.read.clear()

    def look(self, step: int, model: Any) -> None:
        """Refuse a model that makes of text what is not finite."""
        scales = layer_scales(step, model, self.shown[:_SCALED])
        if not all(map(math.isfinite, scales.values)):
            raise NumericalError("tokens must stay finite, but do not: lower the learning rate.")
        self.scales = scales

    def go_on(self, found: tuple[int, Any] | None, state: ModuleState) -> None:
        """Forget what was logged after the checkpoint that was found."""
        if is_first_process():
            self.run.rewind_metrics(MODEL, found[0] if found else -1)
        if found:
            state.load(found[1])
            self.scales = layer_scales(found[0], state.result(), self.shown[:_SCALED])

    def diverged(self, error: NumericalError, state: ModuleState) -> NumericalError:
        """The error, with the layer that moved."""
        now = layer_scales(state.step, state.result(), self.shown[:_SCALED])
        said, remedy = str(error).rstrip("."), "lower the learning rate, or set training.clip"
        if "learning rate" not in said:  # of one layer's computation
            said = f"{said.rpartition(': ')[0]}: {remedy}"
        return NumericalError(f"{said}; after step {state.step}, {moved(self.scales, now)}.")


class _Sound:
    """Checkpoints of a model that reads text, and none of one that has diverged: the last good one stays."""

    def __init__(self, checkpoints: Checkpoints, watch: _Watch, state: ModuleState) -> None:
        self.checkpoints, self.watch, self.state = checkpoints, watch, state

    def save(self, step: int, tensors: dict[str, Tensor]) -> None:
        self.watch.look(step, self.state.result())
        self.checkpoints.save(step, tensors)

    def load(self) -> tuple[int, dict[str, Tensor]] | None:
        return self.checkpoints.load()


def _shared(model: LanguageModel, shard: bool) -> Any:
    """The model for as many processes as have joined."""
    if not distributed.is_initialized():
        return model
    return sharded(model, model.transformer.layers) if shard else DistributedDataParallel(model)


def _settings(run: Run) -> LanguageTraining:
    try:
        return from_record(run.config["settings"], LanguageTraining)
    except (ValueError, TypeError, KeyError) as error:
        raise RunDirectoryError(
            f"{run.path / 'config.json'} must hold the settings of a language model, but does not "
            f"({str(error).rstrip('.')}): start a new run."
        ) from None
