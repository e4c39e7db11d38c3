"""The mesa-layer as Triton kernels: their numbers, in Triton's interpreter, beside the plain path's."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from mesascope.errors import MissingPackageError
from mesascope.ops import mesa_attention

HAS_TRITON = importlib.util.find_spec("triton") is not None

PROGRAM = """
import torch
from torch.nn.functional import normalize
from mesascope.ops import mesa_attention

def problem(t, dk, dv, dtype, strongest):
    torch.manual_seed(0)
    q, k = (torch.randn(2, 2, t, dk, dtype=dtype) for _ in "qk")
    log_forget = -strongest * torch.rand(2, 2, t, dtype=dtype)
    leaves = [q, normalize(k, dim=-1), torch.randn(2, 2, t, dv, dtype=dtype), torch.rand(2, dk, dtype=dtype) + 0.5,
              log_forget, torch.rand(2, 2, t, dtype=dtype)]
    return [leaf.requires_grad_() for leaf in leaves]

def with_gradients(leaves, **options):
    q, k, v, ridge, log_forget, beta = leaves
    y, state = mesa_attention(q, k, v, ridge=ridge, log_forget=log_forget, beta=beta, return_state=True, **options)
    total = (y * y.detach().cos()).sum() + state.H.square().sum() + state.G.sin().sum()
    return [y, *state, *torch.autograd.grad(total, leaves)]

for dtype, bound, most in ((torch.float32, 1e-4, 0.2), (torch.float64, 1e-10, 2.0)):
    for t, dk, dv, chunk, strongest, check in ((40, 5, 4, None, 0.1, True), (40, 16, 3, 16, 0.2, False),
                                               (21, 7, 7, 8, most, True)):
        leaves = problem(t, dk, dv, dtype, strongest)
        found = with_gradients(leaves, method="fused", chunk=chunk, check=check)
        for one, expected in zip(found, with_gradients(leaves, method="chunk", chunk=chunk), strict=True):
            torch.testing.assert_close(one, expected, rtol=bound, atol=bound)
assert mesa_attention(*(part[..., :0, :] for part in leaves[:3]), ridge=1.0, method="fused").shape == (2, 2, 0, 7)
"""


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
def test_outputs_states_and_gradients_are_those_of_the_plain_path():
    """Chunks that forget too much for a factor of their own, too, where values are looked at."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(HAS_TRITON, reason="Triton is installed")
def test_without_triton_a_sentence_says_so():
    with pytest.raises(MissingPackageError, match="triton must be installed for method 'fused', but is not: pip inst"):
        mesa_attention(*torch.ones(3, 1, 8, 4), ridge=1.0, method="fused")
