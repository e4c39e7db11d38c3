"""Language models of Hugging Face's transformers, in this process, as models of text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from mesascope.adapters.calls import CutAnswer, RefusedPrompt
from mesascope.errors import ArgumentError, ArgumentTypeError, refuse, require_count, require_number, require_package
from mesascope.streams import stream

__all__ = ["LocalModel"]


class LocalModel:
    """A causal language model of a folder, or of the Hugging Face hub, as a batched model of text for `from_text`.

    It continues a prompt as it stands, without a template for chats; ``concurrency`` of `from_text` says how many it
    reads at once. Needs ``pip install '.[llm]'``.

    Args:
        name: a folder that ``save_pretrained`` wrote model and tokenizer to, or a name on the hub, which is downloaded.
        temperature: of what is drawn; 0 takes the likeliest token each time.
        max_tokens: the most tokens of an answer; one that reaches it is nan unless its first line is a finished number.
        device: where to compute.
        seed: of what is drawn.

    Raises:
        MissingPackageError: the package transformers is not installed.
        ArgumentError: there is no such model.
        RefusedPrompt: when asked, if a prompt and its answer are longer than the model reads.
    """

    def __init__(
        self,
        name: str | Path,
        *,
        temperature: float = 0.0,
        max_tokens: int = 16,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        temperature = require_number("temperature", temperature, least=0)
        max_tokens = require_count("max_tokens", max_tokens)
        transformers: Any = require_package("transformers", "LocalModel", "llm")
        try:
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(name)
            self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(name).to(device).eval()
        except (OSError, ValueError) as error:
            first = " ".join(str(error).split())[:200]
            raise ArgumentError(
                f"name must be a model of transformers, but is {str(name)!r} ({first}): pass a folder that "
                "save_pretrained wrote."
            ) from None
        self.temperature, self.max_tokens = temperature, max_tokens
        self.generator = stream(seed, "answers", device=device)
        self.__name__ = Path(name).name
        ends = self.model.generation_config.eos_token_id
        self.ends = {*(ends if isinstance(ends, list) else [ends]), self.tokenizer.eos_token_id} - {None}
        # Answers are what the logits say: none of the penalties, beams or temperatures that the folder may ask for.
        self.model.generation_config = transformers.GenerationConfig(
            max_new_tokens=max_tokens, do_sample=False, eos_token_id=sorted(self.ends) or None, pad_token_id=0
        )
        self.seed = seed

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All that an answer depends on, with a hash of the network, for the keys under which answers are kept."""
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
            "ends": sorted(self.ends), "temperature": self.temperature, "max_tokens": self.max_tokens,
            "seed": self.seed,
        }  # fmt: skip

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str]) -> list[str]:
        """Texts that go on from the prompts, which are read at once.

        Models with a state that each token changes (Mamba, RWKV) read one prompt after the other: padding would change
        the state, and RWKV of transformers 5.23 mixes the states of a batch.
        """
        tokens = [self._tokens(prompt) for prompt in prompts]
        for one in tokens:
            self._require_room(len(one) + self.max_tokens)
        alone = not tokens or getattr(self.model, "_is_stateful", False)
        return [
            text for several in ([[one] for one in tokens] if alone else [tokens]) for text in self._continued(several)
        ]

    def _continued(self, tokens: list[list[int]]) -> list[str]:
        longest, device = max(map(len, tokens)), self.model.device
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in tokens], device=device)
        read = torch.tensor([[0] * (longest - len(one)) + one for one in tokens], device=device)
        found = self.model.generate(
            read, attention_mask=mask, generation_config=self.model.generation_config,
            logits_processor=[self._drawn] if self.temperature else [],
        )  # fmt: skip
        return [self._text(row) for row in found[:, longest:].tolist()]

    @torch.no_grad()
    def log_probabilities(self, prompt: str, answers: Sequence[str]) -> list[float]:
        """The logarithm of each answer's probability after the prompt: the sum over its tokens.

        Of texts such as " 1.0" and " 1.1" it tells how sure the model is of a number, which one answer does not.
        """
        if isinstance(answers, str):
            raise ArgumentTypeError(f"answers must be a list of texts, but is {answers!r}: pass [answer].")
        before, found = self._tokens(prompt), []
        for answer in answers:
            tokens = self._tokens(prompt + answer)
            if tokens[: len(before)] != before or len(tokens) == len(before):
                refuse("answers", "begin where a token of the model does", answer, "begin it with a space, say")
            self._require_room(len(tokens))
            logits = self.model(torch.tensor([tokens], device=self.model.device)).logits[0].double()
            rows = logits.log_softmax(-1)[len(before) - 1 : -1]
            found.append(sum(row[token].item() for row, token in zip(rows, tokens[len(before) :], strict=True)))
        return found

    def _drawn(self, tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Logits whose largest is a draw from their softmax: with Gumbel noise, from this model's own generator."""
        noise = torch.empty_like(logits, dtype=torch.float64).exponential_(generator=self.generator).log()
        return logits.double() / self.temperature - noise

    def _text(self, tokens: list[int]) -> str:
        """Up to the first token that ends texts."""
        ends = [place for place, token in enumerate(tokens) if token in self.ends]
        return self.tokenizer.decode(tokens[: ends[0]]) if ends else CutAnswer(self.tokenizer.decode(tokens))

    def _tokens(self, text: str) -> list[int]:
        """The tokens of a text as a prompt: without those that a tokenizer adds after it."""
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
                f"prompt must be of at most {most} tokens with its answer, but is {length}: use fewer pairs."
            )
