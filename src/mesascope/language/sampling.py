"""Text generation, token by token; linear, delta and mesa layers need constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mesascope.errors import NumericalError, refuse, require_count, require_instance, require_number, require_package
from mesascope.language.documents import is_utf8
from mesascope.language.shards import TOKENIZER
from mesascope.language.tokenizing import end_of_document, load_tokenizer, vocabulary_of
from mesascope.nets import LanguageModel
from mesascope.progress import tell
from mesascope.runs.provenance import available_device, tell_device
from mesascope.shapes import Float, Int, Tensor
from mesascope.streams import stream
from mesascope.training.modes import evaluating

_DRAWN = 200  # default number of tokens to sample
_CHUNK = 256  # prompt tokens per forward pass


def load_language_model(folder: str | Path, device: str = "cpu") -> tuple[LanguageModel, Any]:
    """Load a model and its tokenizer from a run, or from a run's folder ``model``.

    Args:
        device: auto (a GPU if there is one), cpu, cuda, cuda:1, ...

    Raises:
        ArgumentError: there is no model, it is damaged, or the tokenizer has another vocabulary.
    """
    taken = available_device(device)
    path = Path(folder)
    if not path.is_dir():
        refuse("folder", "exist", str(folder), "pass a run that has ended, or its model")
    if (path / "checkpoints").is_dir():
        path = path / "model"
        if not path.is_dir():
            refuse("folder", "be a run whose training has ended", str(folder), "continue it with --resume")
    if not (path / TOKENIZER).is_file():
        rule = f"hold a language model and {TOKENIZER}"
        refuse("folder", rule, str(folder), "pass a run that has ended, or its model")
    model, tokenizer = LanguageModel.from_pretrained(path).eval(), load_tokenizer(path / TOKENIZER)
    if (known := vocabulary_of(tokenizer)) != model.config.vocabulary:
        rule = f"have the {model.config.vocabulary} tokens of the model"
        refuse(f"{path / TOKENIZER}", rule, known, "put the tokenizer back that the model was trained with")
    tell_device(device, taken)
    return model.to(taken), tokenizer


def generate(
    model: LanguageModel, tokenizer: Any, prompt: str = "", *, tokens: int | None = None, temperature: float = 1.0,
    top_p: float = 1.0, seed: int = 0,
) -> Iterator[str]:  # fmt: skip
    """Yield a continuation of a prompt, piece by piece, up to ``tokens`` tokens or the end of the document.

    Args:
        prompt: beginning of the document; may be empty.
        tokens: maximum number of tokens; if None, 200, or fewer (with a message) if the model has fewer positions left.
        temperature: sampling temperature; 0 takes the likeliest token each time.
        top_p: sample only from the likeliest tokens that together have this probability (nucleus sampling).

    Raises:
        ArgumentError: prompt and continuation need more positions than the model has learned.
        NumericalError: the model's logits are not finite.
    """
    require_instance("model", model, LanguageModel)
    require_instance("prompt", prompt, str)
    if not is_utf8(prompt):
        refuse("prompt", "be text", prompt, "leave out bytes that are not UTF-8")
    count = _DRAWN if tokens is None else require_count("tokens", tokens)
    temperature = require_number("temperature", temperature, least=0)
    top_p = require_number("top_p", top_p, above=0, most=1)
    end = end_of_document(tokenizer)
    read = [end, *tokenizer.encode(prompt, add_special_tokens=False).ids]
    # the last token drawn is not read
    most = model.config.context - len(read) + 1 if model.places is not None else count
    if most < 1:
        rule = f"take at most the {model.config.context} positions that the model has learned"
        refuse("prompt", rule, f"{len(read)} tokens, the end of a document before it included", "shorten it")
    if count > most:
        why = f"the model has learned {model.config.context} positions, and the prompt takes {len(read)}"
        if tokens is not None:
            refuse("tokens", f"be at most {most}, as {why}", tokens, f"pass {most} or fewer")
        tell(f"tokens: {most}, as {why}")
    return _drawn(model, tokenizer, read, min(count, most), temperature, top_p, seed)


def next_tokens(
    logits: Float[Tensor, "batch vocabulary"], temperature: float, top_p: float, generator: torch.Generator
) -> Int[Tensor, " batch"]:
    """Sample one token per row, with nucleus sampling (``top_p``); temperature 0 takes the likeliest."""
    if not bool(logits.isfinite().all()):
        raise NumericalError("logits must be finite, but some are not: train the model anew.")
    if temperature == 0:
        return logits.argmax(-1)
    below = logits.double() - logits.amax(-1, keepdim=True)  # keeps the softmax finite at any temperature
    shares, order = (below / temperature).softmax(-1).sort(-1, descending=True)
    before = shares.cumsum(-1) - shares
    drawn = torch.multinomial(shares.masked_fill(before >= top_p, 0), 1, generator=generator)
    return order.gather(-1, drawn)[:, 0]


@torch.no_grad()
def _drawn(
    model: LanguageModel, tokenizer: Any, read: list[int], tokens: int, temperature: float, top_p: float, seed: int
) -> Iterator[str]:
    device = model.embedding.weight.device
    generator, end = stream(seed, "text", device=device), read[0]
    decoders = require_package("tokenizers.decoders", "the package language", "language")
    text = decoders.DecodeStream(skip_special_tokens=True)
    for token in read[1:]:
        text.step(tokenizer, token)  # earlier text determines the space before a word
    with evaluating(model):
        state, logits = model.init_state(1), None
        for part in torch.tensor(read, device=device).split(_CHUNK):
            logits, state = model.advance(part[None], state, last=1)
        assert logits is not None
        logits = logits[:, -1]
        held: list[int] = []  # tokens of an incomplete character
        for left in reversed(range(tokens)):
            token = next_tokens(logits, temperature, top_p, generator)
            if int(token) == end:
                break
            held.append(int(token))
            if piece := text.step(tokenizer, int(token)):
                held.clear()
                yield piece
            if left:
                logits, state = model.step(token, state)
    if held:
        yield tokenizer.decode(held)
