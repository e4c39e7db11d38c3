"""Wrong types and shapes end in a sentence too where nothing but mesascope checks them, as in a user's process."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import children
import pytest

import mesascope
from mesascope.errors import DISTRIBUTIONS, MissingPackageError, require_package

PREAMBLE = """
import torch
from mesascope.errors import MesascopeError
from mesascope.learners import ChebyshevLeastSquares, RecursiveLeastSquares
from mesascope.nets import AttentionConfig, CausalTransformer, CausalTransformerConfig, MesaAttention
from mesascope.nets import SequencePredictor, SequencePredictorConfig
from mesascope.ops import mesa_attention, mesa_conjugate_gradients
q, k, v = torch.randn(3, 2, 4, 12, 8)
from mesascope.nets import EmbeddedDescentConfig, EmbeddingConfig, InContextRegressor, InContextRegressorConfig
from mesascope.nets import SoftmaxAttention, TokenMLP, Transformer, TransformerConfig, load_state, save_state
from mesascope.nets import set_products
from mesascope.ops import causal_linear_attention, causal_softmax_attention, dpfp
from mesascope.tasks import Context
regressor = InContextRegressorConfig(TransformerConfig(4)).build()
embedded = EmbeddedDescentConfig(EmbeddingConfig(4, 6)).build()
x, y, xq = torch.ones(2, 5, 3), torch.ones(2, 5, 1), torch.ones(2, 1, 3)
far = torch.ones(2, 5, 3, device="meta")
heads = AttentionConfig(8)
predictor = SequencePredictorConfig(CausalTransformerConfig(heads), 3).build()
behind = InContextRegressorConfig(TransformerConfig(6), embedding=EmbeddingConfig(4, 6)).build()
gates = AttentionConfig(8, forget=True, beta=True)
from torch.nn.utils.parametrizations import weight_norm
from mesascope.lenses import attention_maps, probe, prompt_tune
from mesascope.nets import LanguageModelConfig
from mesascope.ops import rotated
convolved = lambda taps: MesaAttention(AttentionConfig(8, n_heads=1, convolution=taps))
layers = tuple(AttentionConfig(8, n_heads=count) for count in (1, 2))
uneven = SequencePredictorConfig(CausalTransformerConfig(layers, 2), 3).build()
language = LanguageModelConfig(CausalTransformerConfig(heads), vocabulary=20, context=8).build()
ids = torch.arange(3)[None]
pruned = SequencePredictorConfig(CausalTransformerConfig(heads), 3).build()
weight_norm(pruned.transformer.layers[0].attention.q_proj)
causal = CausalTransformer(CausalTransformerConfig(gates, 2, ("mesa", "softmax"), layer_norm=True))
tokens = torch.randn(2, 5, 8)
"""
CALLS = {
    "mesa_attention(q, k, v, ridge=None)": "ridge must be a number, but is None",
    "mesa_attention(q, k, v, ridge=[1.0])": "ridge must be a number, but is [1.0] (list)",
    "mesa_attention(q, k, v, ridge=1.0, log_forget=-0.1)": "log_forget must be of type Tensor, but is -0.1 (float)",
    "mesa_attention(q[0, 0], k[0, 0], v[0, 0], ridge=1.0)": "q must have shape (*batch, heads, t, dk) with dk > 0",
    "mesa_attention(q, k[:, :, :5], v, ridge=1.0)": "k must have shape (2, 4, 12, 8) beside q (2, 4, 12, 8)",
    "mesa_attention(q.long(), k.long(), v.long(), ridge=1.0)": "q, k and v must share one floating-point dtype",
    "mesa_attention(q + 0j, k + 0j, v + 0j, ridge=1.0)": "q, k and v must share one floating-point dtype",
    "mesa_attention(*[x.to(torch.float8_e5m2) for x in (q, k, v)], ridge=1.0)": "q, k and v must share one floating",
    "mesa_attention(q, k, v, ridge=1.0, state=(q, k))": "state must be of type MesaState",
    "mesa_attention(q, k, v, ridge=1.0, lengths=[3, 4])": "lengths must be of type Tensor, but is [3, 4] (list)",
    "mesa_conjugate_gradients(q, k, v, ridge=1.0, iterations=2.5)": "iterations must be an integer, but is 2.5",
    "MesaAttention(8)": "config must be of type AttentionConfig, but is 8 (int)",
    "MesaAttention(heads)(torch.ones(2, 5, 7))": "tokens must have shape (*batch, t, 8), but is (2, 5, 7)",
    "AttentionConfig(None)": "width must be an integer, but is None",
    "CausalTransformer(heads)": "config must be of type CausalTransformerConfig",
    "CausalTransformerConfig(8)": "heads must be of type AttentionConfig, but is 8 (int)",
    "CausalTransformerConfig(heads, 1, 'messa')": "attention must be one of 'delta', 'linear', 'mesa', 'softmax'",
    "SequencePredictor(heads)": "config must be of type SequencePredictorConfig",
    "predictor.step(torch.ones(2, 5, 3), predictor.init_state(2))": "element must have shape (*batch, width) for a "
    "state of batch (2,), but is (2, 5, 3): drop the axis of time, or pass a sequence to advance.",
    "predictor.step(torch.ones(2, 3), None)": "state must be of type PredictorState, but is None (NoneType): begin "
    "with init_state(*batch).",
    "predictor.step(torch.ones(3, 3), predictor.init_state(2))": "state must be of batch (3,), but is (2,): begin with",
    "predictor.step('a', predictor.init_state(2))": "element must be of type Tensor, but is 'a' (str)",
    "predictor.init_state('a')": "batch must be an integer, but is 'a' (str)",
    "predictor(torch.ones(2, 5, 3) / 0)": "tokens must be finite where LinearAttention reads them, but 80 of 80",
    "causal(tokens[..., :7])": "tokens must have shape (*batch, t, 8), but is (2, 5, 7): set AttentionConfig.width",
    "causal.tokens(tokens[0, 0])": "tokens must have shape (*batch, t, 8), but is (8,): add the missing axes",
    "causal(tokens.long())": "tokens must be of a floating-point dtype, but is torch.int64: embed tokens first, with "
    "torch.nn.Embedding say, or convert numbers with .float().",
    "causal(tokens.double())": "tokens must have the dtype of the network, torch.float32, but is torch.float64",
    "causal(tokens.to('meta'))": "tokens must be on the device of the network, 'cpu', but is 'meta'",
    "causal([1.0])": "tokens must be of type Tensor, but is [1.0] (list)",
    "causal(tokens, mask=torch.ones(2, 4).bool())": "mask must have shape (2, 5), but is (2, 4)",
    "causal(tokens, mask=torch.ones(2, 5))": "mask must be a tensor of booleans, but is torch.float32",
    "causal(tokens, mask=torch.ones(2, 5, dtype=torch.bool, device='meta'))": "mask must be on the tokens' device",
    "causal(tokens, mask=torch.tensor([[True, False, True, True, True]] * 2))": "mask must be False only before a",
    "causal(tokens, 3)": "state must be of type tuple, but is 3 (int): begin with init_state(*batch).",
    "causal.step(tokens[:, 0], (1, 2))": "state must be of type AttentionState, but is 1 (int): begin with init_state",
    "causal.step(tokens[:, 0], causal.init_state(2)[:1])": "state must be of length 2, but is 1: begin with init_state",
    "causal.step(tokens[:, :1], causal.init_state(2))": "token must have shape (*batch, width) for a state of batch",
    "causal.step(tokens[0, 0], causal.init_state(2))": "token must have shape (*batch, width) for a state of batch "
    "(2,), but is (8,): add the missing axes.",
    "causal.step(tokens[:, 0], causal.init_state(3))": "state must be of batch (2,), but is (3,): begin",
    "causal.init_state(-1)": "batch must be at least 0, but is -1",
    "causal(tokens / 0)": "tokens must be finite where MesaAttention reads them, but 80 of 80 numbers are not: check",
    "CausalTransformer(causal.config).to('meta')(tokens.to('meta'))": "the network must be on a device that holds num",
    "InContextRegressor(regressor.config).to('meta')(Context(x, y), xq)": "the network must be on a device that holds",
    "TokenMLP(8, 8, 1.0)(tokens[..., :7])": "tokens must have shape (*batch, t, 8), but is (2, 5, 7): set the MLP's",
    "TokenMLP(8, 8, 1.0)(tokens.double())": "tokens must have the dtype of the network",
    "embedded(Context(x[..., :2], y), xq[..., :2])": "context must give tokens of the embedding's width 4, but is 3: "
    "set EmbeddingConfig.d_token to the layout's width(d_in, d_out).",
    "embedded(Context(x[..., :2], torch.ones(2, 5, 2)), xq[..., :2])": "context.y must have width 1, but is 2",
    "behind(Context(x[..., :2], y), xq[..., :2])": "context must give tokens of the embedding's width 4, but is 3",
    "mesa_attention(*(part.to('meta') for part in (q, k, v)), ridge=1.0)": "q must be on a device that holds numbers",
    "dpfp(3, 1)": "x must be of type Tensor, but is 3 (int)",
    "Transformer(TransformerConfig(4)).with_products(3)": "products must be of type Sequence, but is 3 (int)",
    "set_products(SoftmaxAttention(heads), 3)": "products must be of type tuple, but is 3 (int)",
    "Transformer(3)": "config must be of type TransformerConfig, but is 3 (int)",
    "save_state(causal.init_state(2), 3)": "path must be of type str or Path, but is 3 (int)",
    "save_state(causal.init_state(2), '/proc/none')": "path must be writable, but is '/proc/none' (",
    "load_state(3)": "path must be of type str or Path, but is 3 (int)",
    "regressor.save_pretrained('/proc/none')": "folder must be writable, but is '/proc/none' (",
    "regressor.save_pretrained(3)": "folder must be of type str or Path, but is 3 (int)",
    "InContextRegressor(regressor.config).to('meta').save_pretrained('none')": "the network must be on a device that",
    "Transformer.from_pretrained(3)": "folder must be of type str or Path, but is 3 (int)",
    "predictor(torch.ones(2, 5, 3).double())": "sequence must have the dtype of the network, torch.float32, but is "
    "torch.float64: convert sequence by .to(torch.float32), or the network by .to(torch.float64).",
    "predictor.bfloat16()(torch.ones(2, 5, 3))": "sequence must have the dtype of the network, torch.bfloat16, but is",
    "predictor.float()(far)": "sequence must be on the device of the network, 'cpu', but is 'meta': move sequence by",
    "regressor(Context(x.double(), y.double()), xq.double())": "context and xq must have the dtype of the network, "
    "torch.float32, but is torch.float64: convert context and xq by .to(torch.float32), or the network by",
    "regressor.half()(Context(x, y), xq)": "context and xq must have the dtype of the network, torch.float16, but",
    "regressor.float()(Context(far, far[..., :1]), far)": "context and xq must be on the device of the network, 'cpu'",
    "embedded(Context(x.double(), y.double()), xq.double())": "context and xq must have the dtype of the network",
    "Transformer(TransformerConfig(4))(x, xq)": "context must have shape (*batch, t, 4), but is (2, 5, 3): set "
    "TransformerConfig.width to 3, or fix the tokens.",
    "Transformer(TransformerConfig(3))(x, xq.double())": "query must have the dtype of the network, torch.float32",
    "Transformer(TransformerConfig(3)).tokens(x, xq[0])": "query must have the context's batch (2,), but is ()",
    "InContextRegressor(regressor.config, w0=torch.full((1, 3), torch.nan))": "w0 must hold finite floating-point",
    "InContextRegressor(regressor.config, w0=[[1.0] * 3])": "w0 must be of type Tensor, but is [[1.0, 1.0, 1.0]]",
    "InContextRegressor(regressor.config, w0=torch.ones(3))": "w0 must have shape (1, 3), but is (3,): match it to",
    "mesa_attention(q, k, v, ridge=1.0, ridge_kind='fixed')": "ridge_kind must be one of 'constant', 'decaying', ",
    "AttentionConfig(8, ridge_kind=True)": "ridge_kind must be one of 'constant', 'decaying', 'relative', but is True",
    "AttentionConfig(8, forget=1)": "forget must be of type bool, but is 1 (int): pass one.",
    "AttentionConfig(8, beta='yes')": "beta must be of type bool, but is 'yes' (str): pass one.",
    "TransformerConfig(3, layer_norm='no')": "layer_norm must be of type bool, but is 'no' (str): pass one.",
    "TransformerConfig(3, shared='no')": "shared must be of type bool, but is 'no' (str): pass one.",
    "EmbeddingConfig(3, 3, project='no')": "project must be of type bool, but is 'no' (str): pass one.",
    "causal_linear_attention(q, k, v, state=torch.zeros(2, 4, 8, 8))": "state must be of type LinearState, but is of",
    "causal_softmax_attention(q, k, v, state=SoftmaxAttention(heads).init_state(2).memory)": "state.k must have shape",
    "MesaAttention(heads).advance(torch.ones(2, 5, 8), SoftmaxAttention(heads).init_state(2))": "state must be of type "
    "MesaState, but is of type SoftmaxState: pass one.",
    "predictor.run_with_cache(torch.ones(2, 5, 3), names='layers.1')": "names must be one of 'embedded', 'layers.0', ",
    "RecursiveLeastSquares(1.0)([1.0, 2.0])": "sequence must be of type Tensor, but is [1.0, 2.0] (list)",
    "ChebyshevLeastSquares(None, 3.0)": "coefficients must be of type Sequence, but is None",
    "mesa_conjugate_gradients(q, k, v, ridge=None)": "ridge must be a number, but is None",
    "rotated(q[..., :5], torch.arange(12))": "vectors must have an even width, but is 5: add an entry.",
    "causal.tokens(tokens, -1)": "layers must be at least 0, but is -1",
    "convolved(4).advance(tokens, convolved(3).init_state(2))": "state must be of this layer, with (3, 16) recent "
    "rows, but is (2, 16): begin with init_state.",
    "probe({'constant': [predictor]}, x)": "groups must have other names than the baselines constant, "
    "constant-shuffled, but is 'constant': rename it.",
    "probe({'net': [predictor]}, x.repeat(2, 1, 1), times=[])": "times must name at least one time, but is []",
    "probe({'net': [predictor]}, x.repeat(2, 1, 1), times=2)": "times must name at least one time, but is 2",
    "attention_maps(uneven, x)": "network must have as many heads in each layer, but is [1, 2]: read the points",
    "prompt_tune(RecursiveLeastSquares(1.0), None, eos=True)": "network must be of type SequencePredictor or Prompted",
    "language(torch.tensor(3))": "tokens must have shape (*batch, t), but is (): add the missing axes.",
    "language([3], targets=ids)": "tokens must be of type Tensor, but is [3] (list): pass one.",
    "language(ids, targets=ids[:, 1:])": "targets must be int64 of the shape (1, 3) of tokens, but is 'torch.int64 (",
    "language(ids, targets=ids.float())": "targets must be int64 of the shape (1, 3) of tokens, but is 'torch.float32",
    "language.eval()(ids, targets=ids + 20)": "targets must be from 0 to 19, but is [20, 22]: use the model's own",
    "pruned.save_pretrained('none')": "the network must have plain weights, but is 'pruned or parametrized': call",
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    attempts = [f"try:\n    {call}\n    print()\nexcept MesascopeError as error:\n    print(error)" for call in CALLS]
    program = tmp_path_factory.mktemp("calls") / "calls.py"
    program.write_text(PREAMBLE + "\n".join(attempts))
    done = children.run(program)
    assert done.returncode == 0, done.stderr
    return dict(zip(CALLS, done.stdout.splitlines(), strict=True))


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_ends_in_a_sentence(call, printed):
    assert printed[call].startswith(CALLS[call])
    assert printed[call].endswith((".", "?"))


# Remedies

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
EXTRAS = {
    extra: {re.split(r"[<>=\[]", one)[0] for one in needed}
    for extra, needed in PROJECT["optional-dependencies"].items()
}


def required():
    """The constant arguments of each call of require_package, with its place."""
    for file in Path(mesascope.__file__).parent.rglob("*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if "require_package(" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require_package":
                module, _, extra = [*(getattr(one, "value", "?") for one in node.args), ""][:3]
                yield f"{file.name}: {node.lineno}", module.partition(".")[0], extra


def test_a_remedy_names_a_distribution_and_the_extra_that_contains_it():
    calls = list(required())
    assert len(calls) > 9
    for place, module, extra in calls:
        name = DISTRIBUTIONS.get(module, module)
        named = [one for one, needed in EXTRAS.items() if name in needed and one != "dev"]
        assert extra in named or (not extra and not named), f"{place}: {name} is in {named}"


def test_a_missing_package_and_one_that_is_broken_are_told_apart(tmp_path, monkeypatch):
    for name in ("sklearn", "sklearn.utils"):
        monkeypatch.setitem(sys.modules, name, None)
    remedy = "pip install scikit-learn, or pip install '.[sklearn]' in mesascope's folder."
    with pytest.raises(MissingPackageError) as error:
        require_package("sklearn.utils", "RealTable", "sklearn")
    assert str(error.value) == f"scikit-learn must be installed for RealTable, but is not: {remedy}"
    (tmp_path / "broken_package.py").write_text("import not_there_either\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingPackageError, match="but fails to import \\(No module named 'not_there_either'\\): pip"):
        require_package("broken_package", "RealTable")
