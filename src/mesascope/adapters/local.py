"""Language models of Hugging Face's transformers, in this process, as models of text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mesascope.errors import ArgumentError, ArgumentTypeError, refuse, require_count, require_number, require_package
from mesascope.streams import stream

__all__ = ["LocalModel"]


class LocalModel:
    """A causal language model of a folder, or of the Hugging Face hub, as a batched model of text for `from_text`.

    It continues a prompt as it stands, without a template for chats; ``concurrency`` of `from_text` says how many it
    reads at once. Needs ``pip install 'mesascope[llm]'``.

    Args:
        name: a folder that ``save_pretrained`` wrote model and tokenizer to, or a name on the hub, which is downloaded.
        temperature: of what is drawn; 0 takes the likeliest token each time.
        max_tokens: the most tokens of an answer.
        device: where to compute.
        seed: of what is drawn.

    Raises:
        MissingPackageError: the package transformers is not installed.
        ArgumentError: there is no such model, or, when asked, a prompt and its answer are longer than it reads.
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
        transformers: Any = require_package("transformers", "LocalModel", "'mesascope[llm]'")
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

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str]) -> list[str]:
        """Texts that go on from the prompts, which are read at once.

        One token after the other, with what was computed for those before kept.
        """
        if not prompts:
            return []
        tokens = [self._tokens(prompt) for prompt in prompts]
        longest = max(map(len, tokens))
        self._require_room(longest + self.max_tokens)
        device = self.model.device
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in tokens], device=device)
        read = torch.tensor([[0] * (longest - len(one)) + one for one in tokens], device=device)
        places, kept, drawn = (mask.cumsum(-1) - 1).clamp(min=0), None, []
        for _ in range(self.max_tokens):
            out = self.model(
                input_ids=read, attention_mask=mask, position_ids=places, past_key_values=kept, use_cache=True
            )
            read, kept = self._next(out.logits[:, -1]), out.past_key_values
            mask, places = torch.cat([mask, torch.ones_like(read)], -1), places[:, -1:] + 1
            drawn.append(read)
        return [self._text(row) for row in torch.cat(drawn, -1).tolist()]

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

    def _next(self, logits: torch.Tensor) -> torch.Tensor:
        if self.temperature == 0:
            return logits.argmax(-1, keepdim=True)
        shares = (logits.double() / self.temperature).softmax(-1)
        return torch.multinomial(shares, 1, generator=self.generator)

    def _text(self, tokens: list[int]) -> str:
        """Up to the token that ends texts."""
        end = self.tokenizer.eos_token_id
        return self.tokenizer.decode(tokens[: tokens.index(end)] if end in tokens else tokens)

    def _tokens(self, text: str) -> list[int]:
        found = self.tokenizer.encode(text)
        if not found:
            refuse("prompt", "have at least one token", text, "add pairs or an instruction")
        return found

    def _require_room(self, length: int) -> None:
        most = getattr(self.model.config, "max_position_embeddings", None)
        if most is not None and length > most:
            refuse("prompt", f"be of at most {most} tokens with its answer", length, "use fewer pairs")
