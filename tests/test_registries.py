"""Everything registered keeps its contract."""

import pytest
import torch

from mesascope.constructions import CONSTRUCTIONS
from mesascope.learners import LEARNERS
from mesascope.nets import ATTENTIONS, LAYOUTS, InContextRegressor, Transformer, TransformerConfig
from mesascope.streams import stream
from mesascope.studies import STUDIES
from mesascope.tasks import FAMILIES, LinearRegression
from mesascope.testing import check_family, check_learner


@pytest.mark.parametrize("name", LEARNERS)
def test_learners_keep_the_contract(name):
    check_learner(LEARNERS[name]())


@pytest.mark.parametrize("name", FAMILIES)
def test_families_keep_the_contract(name):
    check_family(FAMILIES[name]())


@pytest.mark.parametrize("x", ["uniform", "normal", "exponential", "laplace", "mixture"])
@pytest.mark.parametrize("extra", [{}, {"noise": 0.3}, {"covariance": [1.0, 2.0, 0.5]}, {"pool": 20}, {"n_query": 4}])
def test_linear_regression_keeps_the_contract_in_all_its_variants(x, extra):
    check_family(LinearRegression(n_context=5, d_in=3, x=x, d_out=2, **extra))


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"n_heads": 2, "key_size": 3},
        {"n_layers": 3, "shared": True, "damping": 0.5},
        {"n_layers": 3},
        {"n_layers": 2, "mlp": 2},
        {"n_layers": 2, "layer_norm": True},
        {"n_layers": 2, "token_clip": 0.5},
    ],
)
def test_nets_keep_the_contract(attention, layout, extra):
    config = TransformerConfig(width=LAYOUTS[layout].width(3, 1), attention=attention, init_scale=1.0, **extra)
    ordered = layout != "concatenated"
    check_learner(InContextRegressor(Transformer(config, stream(0, "init")), layout), permutation_invariant=not ordered)


@pytest.mark.parametrize("name", CONSTRUCTIONS)
@pytest.mark.parametrize(("d_in", "d_out", "n_context"), [(1, 1, 1), (3, 2, 7), (10, 1, 10), (4, 5, 2), (6, 1, 40)])
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("start", [False, True])
def test_constructions_equal_their_algorithms(name, d_in, d_out, n_context, steps, start):
    w0 = torch.randn(d_out, d_in, dtype=torch.float64, generator=stream(0, "w0")) if start else None
    network, algorithm = CONSTRUCTIONS[name](d_in, d_out, n_context, steps, w0)
    family = LinearRegression(n_context, d_in, d_out, n_query=5)
    episode = family.sample(9, stream(1, name)).to(torch.float64)
    with torch.no_grad():
        expected = algorithm.trajectory(episode.context, episode.xq)
        # The layers that come before the first step predict what no step does.
        layers = network.trajectory(episode.context, episode.xq)
        expected_layers = torch.cat([expected[:1].expand(len(layers) - len(expected), *expected[0].shape), expected])
        torch.testing.assert_close(layers, expected_layers, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(network(episode.context, episode.xq), expected[-1], rtol=1e-12, atol=1e-12)
    assert float((expected[-1] - expected[0]).abs().max()) > 1e-3, "an algorithm that does nothing shows nothing"


@pytest.mark.parametrize("name", STUDIES)
def test_studies_state_claims_with_bounds_for_each_preset(name):
    study = STUDIES[name]
    assert study.name == name
    assert set(study.presets) == {"quick", "paper"}
    assert study.question.endswith("?")
    assert len(study.claims) >= 1
    for claim in study.claims:
        assert set(claim.bounds) == set(study.presets)
        assert claim.source
