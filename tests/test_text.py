"""The layers on real text: Python's own source, which has long stretches of bytes that hardly vary."""

import argparse
from pathlib import Path

import pytest
import torch
from torch import nn

from mesascope.nets import AttentionConfig, CausalTransformer, CausalTransformerConfig

TEXT = torch.tensor(list(Path(argparse.__file__).read_bytes()))


@pytest.mark.parametrize("convolution", [0, 4])
def test_a_mesa_layer_with_learned_gates_trains_on_bytes(convolution):
    """A ridge that is forgotten leaves H singular at the first step, from some 200 tokens on."""
    torch.manual_seed(0)
    heads = AttentionConfig(64, 2, forget=True, convolution=convolution)
    net = CausalTransformer(CausalTransformerConfig(heads, 2, ("mesa", "mesa"), layer_norm=True))
    model = nn.Sequential(nn.Embedding(256, 64), net, nn.Linear(64, 256))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(30):
        starts = torch.randint(len(TEXT) - 201, (1, 1))
        part = TEXT[starts + torch.arange(201)]
        loss = nn.functional.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) / 5 < 0.7 * losses[0]
