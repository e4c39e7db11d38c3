"""Language models of Hugging Face's transformers, run in this process."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from mesascope import errors
from mesascope.adapters.calls import RefusedPrompt, TruncatedAnswer
from mesascope.errors import ArgumentError, ArgumentTypeError, refuse
from mesascope.shapes import Tensor
from mesascope.streams import stream


class LocalModel:
    """A causal language model for ``from_text(model, batched=True)``.

    It continues the prompt without a chat template. ``concurrency`` of `from_text` is the batch size. A common prefix
    of prompts, such as the pairs of a task with several queries, is processed once. Needs ``pip install '.[llm]'``.

    Args:
        name: a folder written by ``save_pretrained`` of model and tokenizer; a GGUF file, whose weights are dequantised
            (``pip install '.[smollm]'``); or a name on the Hugging Face hub, from which it is downloaded.
        temperature: sampling temperature; 0 takes the likeliest token each time.
        max_tokens: maximum number of tokens in an answer; a cut answer is nan unless its first line is a complete
            number.
        end: text that ends an answer after its first digit.
        dtype: dtype of the weights, such as ``torch.bfloat16``; if None, that of the stored weights.
        device: device of the model.
        seed: seed for sampling.

    Raises:
        MissingPackageError: the package transformers is not installed.
        ArgumentError: there is no such model.
        RefusedPrompt: from a call, if prompt and answer are too long for the model.
    """

    def __init__(
        self, name: str | Path, *, temperature: float = 0.0, max_tokens: int = 16, end: str = "\n",
        dtype: torch.dtype | str | None = None, device: torch.device | str = "cpu", seed: int = 0,
    ) -> None:  # fmt: skip
        temperature = errors.require_number("temperature", temperature, least=0)
        max_tokens = errors.require_count("max_tokens", max_tokens)
        transformers: Any = errors.require_package("transformers", "LocalModel", "llm")
        folder, file = os.path.split(name) if str(name).endswith(".gguf") else (name, None)
        if file:
            errors.require_package("gguf", "LocalModel of a GGUF file", "smollm")
        try:
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
            load = transformers.AutoModelForCausalLM.from_pretrained
            self.model: Any = load(folder, gguf_file=file, dtype=dtype or "auto").to(device).eval()
        except (OSError, ValueError) as error:
            raise ArgumentError(
                f"name must be a model of transformers, but is {str(name)!r} ({errors.one_line(error)}): pass a folder "
                "that save_pretrained wrote."
            ) from None
        self.temperature, self.max_tokens, self.end, self.seed = temperature, max_tokens, end, seed
        self.generator = stream(seed, "answers", device=device)
        self.__name__ = Path(name).name
        ends = self.model.generation_config.eos_token_id
        self.ends = {*(ends if isinstance(ends, list) else [ends]), self.tokenizer.eos_token_id} - {None}
        # Ignore penalties, beams and the temperature in the folder's generation config.
        self.model.generation_config = transformers.GenerationConfig(
            max_new_tokens=max_tokens, do_sample=False, eos_token_id=sorted(self.ends) or None, pad_token_id=0,
            return_dict_in_generate=True,
        )  # fmt: skip

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings that determine an answer, with a hash of the network, for cache keys."""
        weights = [
            (one if one.element_size() > 1 else one.float()).hash_tensor().item() for one in self.model.parameters()
        ]
        config = {
            key: value
            for key, value in self.model.config.to_dict().items()
            if key not in ("_name_or_path", "transformers_version", "dtype", "architectures")
        }
        fast = getattr(self.tokenizer, "backend_tokenizer", None)
        words = sorted(self.tokenizer.get_vocab().items()) if fast is None else fast.to_str()
        network = json.dumps([weights, config, words], sort_keys=True, default=str)
        return {
            "network": hashlib.sha256(network.encode()).hexdigest(), "dtype": str(self.model.dtype),
            "ends": sorted(self.ends), "end": self.end, "temperature": self.temperature, "max_tokens": self.max_tokens,
            "seed": self.seed,
        }  # fmt: skip

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str]) -> list[str]:
        """Continue prompts in a batch.

        Recurrent models (Mamba, RWKV) read one prompt after another: padding would change their state, and RWKV in
        transformers 5.23 mixes the states of a batch.
        """
        tokens = [self._tokens(prompt) for prompt in prompts]
        for one in tokens:
            self._require_room(len(one) + self.max_tokens)
        if getattr(self.model, "_is_stateful", False):
            return [self._continued([one])[0] for one in tokens]
        return self._with_shared(tokens) if tokens else []

    def _with_shared(self, tokens: list[list[int]]) -> list[str]:
        """Continue prompts; process each shared prefix once.

        Prompts with the same number of tokens after the prefix form a batch, so that padding is only on the left. In
        sliding-window attention, padding in the middle would fill the window.
        """
        before = _beginnings(tokens)
        distinct = list(dict.fromkeys(before))
        if len(distinct) == len(before) or not all(before):
            return self._continued(tokens)
        width, found = max(map(len, distinct)), [""] * len(tokens)
        begun = self._generated(distinct, width, lambda read, logits: torch.ones_like(read[:, 0], dtype=torch.bool))
        after = [len(one) - len(known) for one, known in zip(tokens, before, strict=True)]
        for length in set(after):
            rows = [row for row, own in enumerate(after) if own == length]
            cache = copy.deepcopy(getattr(begun, _cache_name()))
            cache.batch_select_indices(torch.tensor([distinct.index(before[row]) for row in rows]))
            texts = self._continued([tokens[row] for row in rows], width + length, cache)
            for row, text in zip(rows, texts, strict=True):
                found[row] = text
        return found

    def _continued(self, tokens: list[list[int]], width: int = 0, cache: Any = None) -> list[str]:
        width = width or max(map(len, tokens))
        found = self._generated(tokens, width, lambda read, logits: self._ended(read[:, width:]), cache)
        return [self._text(row) for row in found.sequences[:, width:].tolist()]

    def _generated(self, tokens: Sequence[Sequence[int]], width: int, stop: Callable, cache: Any = None) -> Any:
        rows = [([0] * (width - len(one)) + [*one], [0] * (width - len(one)) + [1] * len(one)) for one in tokens]
        read, mask = torch.tensor(rows, device=self.model.device).unbind(1)
        return self.model.generate(
            read, attention_mask=mask, generation_config=self.model.generation_config, stopping_criteria=[stop],
            logits_processor=[self._drawn] if self.temperature else [], **{_cache_name(): cache},
        )  # fmt: skip

    @torch.no_grad()
    def log_probabilities(self, prompt: str, answers: Sequence[str]) -> list[float]:
        """Natural log-probability of each answer after the prompt: the sum over its tokens.

        Answers such as " 1.0" and " 1.1" show the model's uncertainty about a number. Raises ArgumentError if an answer
        is empty or does not begin a new token.
        """
        if isinstance(answers, str):
            raise ArgumentTypeError(f"answers must be a list of texts, but is {answers!r}: pass [answer].")
        before, found = self._tokens(prompt), []
        for answer in answers:
            tokens = self._tokens(prompt + answer)
            if tokens[: len(before)] != before or len(tokens) == len(before):
                refuse("answers", "begin with a token of their own", answer, "begin it with a space, say")
            self._require_room(len(tokens))
            logits = self.model(torch.tensor([tokens], device=self.model.device)).logits[0].double()
            rows = logits.log_softmax(-1)[len(before) - 1 : -1]
            found.append(sum(row[token].item() for row, token in zip(rows, tokens[len(before) :], strict=True)))
        return found

    def _drawn(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """Add Gumbel noise from this model's generator: the argmax is then a sample from the softmax."""
        noise = torch.empty_like(logits, dtype=torch.float64).exponential_(generator=self.generator).log()
        return logits.double() / self.temperature - noise

    def _ended(self, tokens: Tensor) -> Tensor:
        ended = [not isinstance(self._text(row), TruncatedAnswer) for row in tokens.tolist()]
        return torch.tensor(ended, device=tokens.device)

    def _text(self, tokens: list[int]) -> str:
        """Decode up to the first end-of-text token or the end of a number."""
        ends = [place for place, token in enumerate(tokens) if token in self.ends]
        text = self.tokenizer.decode(tokens[: ends[0]] if ends else tokens)
        if number := re.search(rf"\d.*?(?={re.escape(self.end)})", text, re.DOTALL):
            return text[: number.end()]
        return text if ends else TruncatedAnswer(text)

    def _tokens(self, text: str) -> list[int]:
        """Tokens of a prompt, without special tokens at the end."""
        found = self.tokenizer(text, return_special_tokens_mask=True)
        tokens, added = found["input_ids"], found["special_tokens_mask"]
        while tokens and added[len(tokens) - 1]:
            tokens = tokens[:-1]
        if not tokens:
            refuse("prompt", "have at least one token", text, "add pairs or an instruction")
        return tokens

    def _require_room(self, length: int) -> None:
        most = getattr(self.model.config, "max_position_embeddings", None)
        if most is not None and length > most:
            raise RefusedPrompt(
                f"prompt must have at most {most} tokens with its answer, but has {length}: use fewer pairs."
            )


def _beginnings(tokens: list[list[int]]) -> list[tuple[int, ...]]:
    """Shared prefix of each prompt; if less than half is shared, all tokens of the prompt but the last."""
    order = sorted(range(len(tokens)), key=tokens.__getitem__)
    groups = [order[:1]]
    for one, two in pairwise(order):
        if 2 * _shared(tokens[one], tokens[two]) >= max(len(tokens[one]), len(tokens[two])):
            groups[-1].append(two)
        else:
            groups.append([two])
    found: dict[int, tuple[int, ...]] = {}
    for group in groups:
        first, last = tokens[group[0]], tokens[group[-1]]
        found |= dict.fromkeys(group, tuple(first[: min(_shared(first, last), len(first) - 1)]))
    return [found[place] for place in range(len(tokens))]


def _shared(one: list[int], two: list[int]) -> int:
    """Length of the common prefix of two prompts."""
    shortest = min(len(one), len(two))
    return next((place for place in range(shortest) if one[place] != two[place]), shortest)


def _cache_name() -> str:
    """Name of the argument and output for a cache of keys and values: `cache` from transformers 5.24 on."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    return "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
