"""Lenses of predictors: errors along sequences, and algorithms read from blocks of weights."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from mesascope.constructions import mesa_gradient_descent, online_gradient_descent
from mesascope.errors import ArgumentError, ArgumentTypeError, NumericalError
from mesascope.learners import Lags, OnlineGradientDescent, PairSums, RecursiveLeastSquares
from mesascope.lenses import (
    agreement,
    attention_maps,
    compare,
    element_sensitivity,
    errors_by_time,
    measure_predictors,
    per_task_errors,
    preconditioned,
    probe,
    reverse_engineer,
)
from mesascope.nets import (
    AttentionConfig,
    BlockMultiples,
    BlockMultiplesConfig,
    CausalTransformerConfig,
    SequencePredictorConfig,
)
from mesascope.streams import seeded, stream
from mesascope.tasks import LinearDynamics, ObservedDynamics
from mesascope.training import Training, pair_half_mse, train

D = 3
SEQUENCES = LinearDynamics(D, 12).sample(40, stream(0, "sequences")).double()


def built(layers=2, channels=("blank", "now", "now", "before"), **options):
    """A network with normal weights, whose blocks are no multiples of I."""
    width = len(channels) * D
    heads = AttentionConfig(width, 2, key_size=5, init_scale=0.05, **options)
    return (
        SequencePredictorConfig(CausalTransformerConfig(heads, layers), D, channels).build(stream(0, "init")).double()
    )


@pytest.mark.parametrize("part", [10_000, 7])
def test_errors_are_those_of_definition_over_all_times_and_at_each(part, monkeypatch):
    monkeypatch.setattr("mesascope.lenses.access.PART", part)
    groups = {"ridge": [RecursiveLeastSquares(0.1), RecursiveLeastSquares(1.0)], "gd": [OnlineGradientDescent(1, 0.05)]}
    found, along = measure_predictors(groups, ["gd"], SEQUENCES), errors_by_time(groups, SEQUENCES)
    answers = SEQUENCES[:, 1:]
    with torch.no_grad():
        ridge, gd = groups["ridge"][1](SEQUENCES[:, :-1]), groups["gd"][0](SEQUENCES[:, :-1])
    squares = (ridge - answers).square()
    assert found["mse", "ridge"][1].n == pytest.approx(squares.mean().item())
    assert found["mse", "ridge"][1].s == pytest.approx((squares.mean((1, 2)).std() / 40**0.5).item())
    assert found["prediction-difference", "ridge", "gd"][1].n == pytest.approx((ridge - gd).norm(dim=-1).mean().item())
    assert along.cases["t"].tolist() == list(range(1, 12))
    for t in (1, 5, 11):
        assert along["mse", "ridge"][1, t - 1].n == pytest.approx(squares[:, t - 1].mean().item())
    assert errors_by_time(groups, SEQUENCES, [5])["mse", "ridge"][1, 0].n == along["mse", "ridge"][1, 4].n


@pytest.mark.parametrize("known", [mesa_gradient_descent(D, 0.07), online_gradient_descent(D, (0.05, 0.02), 2)])
def test_what_a_construction_runs_is_read_back_exactly(known):
    read = reverse_engineer(known.network)
    torch.testing.assert_close(read.algorithm(SEQUENCES), known.algorithm(SEQUENCES), rtol=1e-12, atol=1e-12)
    # A block for each head's W_KQ, and one for its W_PV: W_0 = 0 leaves the other out.
    heads = known.network.products()[0].w_kq.shape[0]
    assert read.kept == 2 * heads * len(known.network.products()) == len(read.table())


def test_one_layer_is_its_pair_sums():
    net = built(1, ("blank", "now", "before"))
    read = reverse_engineer(net)
    torch.testing.assert_close(read.pair_sums()(SEQUENCES), read.algorithm(SEQUENCES), rtol=1e-10, atol=1e-12)
    sums = reverse_engineer(mesa_gradient_descent(D, 0.07).network).pair_sums()
    torch.testing.assert_close(sums.now, torch.tensor([0.0, 0.0, 0.07, 0.0]).double())
    assert not sums.before.any()


def test_blocks_are_means_of_diagonals_and_the_largest_are_kept():
    net = built()
    read = reverse_engineer(net)
    w_kq = net.products()[1].w_kq[0]
    assert read.kq[1, 0, 2, 1].item() == pytest.approx(w_kq[2 * D : 3 * D, D : 2 * D].diagonal().mean().item())
    few = reverse_engineer(net, keep=5)
    assert few.kept == 5 * 2 * 2
    assert few.share_kept == pytest.approx(20 / sum(weight.numel() for weight in net.parameters()))
    sizes = torch.cat(
        [(part / part.abs().mean((-2, -1), keepdim=True)).abs().flatten(2) for part in (read.kq, read.pv)], -1
    )
    kept = torch.cat([part.flatten(2) for part in (few.kq, few.pv)], -1) != 0
    assert bool((sizes.masked_fill(~kept, 9e9).amin(-1) >= sizes.masked_fill(kept, 0).amax(-1)).all())


def test_a_path_leads_from_the_network_to_its_algorithm():
    net = built()
    read = reverse_engineer(net)
    ends = (read.between(0.0)(SEQUENCES), read.between(1.0)(SEQUENCES))
    for found, end in zip(ends, (net, read.algorithm), strict=True):
        torch.testing.assert_close(found, end(SEQUENCES), rtol=1e-9, atol=1e-12)
    half = read.between(0.5).products()[0].w_pv
    torch.testing.assert_close(half, (net.products()[0].w_pv + read.algorithm.products()[0].w_pv) / 2)


@pytest.mark.parametrize("keep", [None, 16])
def test_blocks_that_are_read_are_trained_on_from_what_was_read(keep):
    config = built().config
    heads = dataclasses.replace(config.transformer.heads, init_scale=1.0)
    body = dataclasses.replace(config.transformer, heads=heads, token_clip=2.0)
    read = reverse_engineer(dataclasses.replace(config, transformer=body).build(stream(1, "init")).double(), keep=keep)
    start = BlockMultiples.read_from(read)
    assert start.kept == read.kept
    assert float(read.algorithm(SEQUENCES).detach().abs().mean()) > 0.01
    torch.testing.assert_close(start(SEQUENCES), read.algorithm(SEQUENCES), rtol=1e-9, atol=1e-9)
    for own, known in zip(start.products(), read.algorithm.products(), strict=True):
        torch.testing.assert_close(own, known)
    plan = Training(steps=40, batch=16, learning_rate=0.01)
    after = train(lambda generator: start.float(), LinearDynamics(D, 12), plan, [0]).member(0)
    with torch.no_grad():
        losses = [float(per_task_errors(net, SEQUENCES.float()).mean()) for net in (read.algorithm.float(), after)]
    assert losses[1] < losses[0]
    assert after.kept == read.kept
    for found, own in zip(after.coefficients(), (read.kq, read.pv), strict=True):
        assert bool((found[own == 0] == 0).all())
        assert not torch.equal(found, own.float())


def test_pair_sums_hold_a_gradient_step_from_any_multiple_of_the_identity():
    step = OnlineGradientDescent(1, 0.05, w0=0.4 * torch.eye(D).double())
    sums = PairSums((0, 0, 0.05, -0.05 * 0.4), (0, 0, 0, 0))
    torch.testing.assert_close(0.4 * SEQUENCES + sums(SEQUENCES), step(SEQUENCES), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: errors_by_time({"gd": [PairSums([0] * 4, [0] * 4)]}, SEQUENCES, [12]), ArgumentError, "times must be"),
        (lambda: measure_predictors({}, [], SEQUENCES), ArgumentTypeError, "groups must map names"),
        (lambda: measure_predictors({"gd": []}, [], SEQUENCES), ArgumentTypeError, "gd must be a non-empty list"),
        (lambda: reverse_engineer(built(), keep=40), ArgumentError, "keep must be at most 32"),
        (lambda: reverse_engineer(built(forget=True)), ArgumentTypeError, "reverse_engineer must be given a predictor"),
        (lambda: BlockMultiplesConfig(D, ("now", "blank")), ArgumentError, "channels must be a tuple that begins with"),
        (lambda: BlockMultiplesConfig(D, ("blank",)).build()(torch.ones(2, 4, D + 1)), ArgumentError, "sequence must "),
        (
            lambda: BlockMultiples(BlockMultiplesConfig(D, ("blank",)), kq=torch.ones(1, 1, 2, 2)),
            ArgumentError,
            r"kq must have shape \(1, 1, 1, 1\)",
        ),
        (lambda: reverse_engineer(built()).pair_sums(), ArgumentError, "pair_sums must be called for one layer"),
        (lambda: built(normalise=True).with_products([]), ArgumentError, "with_products must be called on a"),
        (lambda: built().with_products([]), ArgumentError, "products must be of length 2"),
        (lambda: PairSums([0.0] * 3, [0.0] * 4), ArgumentError, "now must have four numbers"),
        (lambda: probe({"net": [built()]}, SEQUENCES, "last"), ArgumentError, "target must be one of"),
        (lambda: probe({"net": [built()]}, SEQUENCES, times=[0]), ArgumentError, "times must be at least 1"),
        (lambda: probe({"net": [built()]}, SEQUENCES[:2]), ArgumentError, "sequences must be at least 4"),
        (
            lambda: probe({"a": [built()], "b": [built(1)]}, SEQUENCES),
            ArgumentError,
            "groups must be networks of one",
        ),
        (
            lambda: element_sensitivity(built(), SEQUENCES, 3),
            ArgumentError,
            "layer must be at most the network's depth 2",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(call, error, message, unchecked):
    with pytest.raises(error, match=message):
        call()


# Probes


def raw(attention=("softmax", "linear"), **options):
    heads = AttentionConfig(8, 2, positions=4, **options)
    return SequencePredictorConfig(CausalTransformerConfig(heads, 2, attention), D).build(stream(0, "init")).double()


class Told:
    """Shows the same numbers at every layer."""

    def __init__(self, *layers):
        self.layers = layers

    def __call__(self, sequence):
        return sequence

    def activations(self, sequence):
        return [layer(sequence) for layer in self.layers]


def test_preconditioned_inputs_solve_their_equation_and_make_one_gradient_step_least_squares():
    x = preconditioned(SEQUENCES, 0.3)
    gram = SEQUENCES[:, :5].mT @ SEQUENCES[:, :5] + 0.3 * torch.eye(D)
    torch.testing.assert_close((gram @ x[:, 5, :, None]).squeeze(-1), SEQUENCES[:, 5])
    pairs = SEQUENCES[:, 1:6].mT @ SEQUENCES[:, :5]
    torch.testing.assert_close((pairs @ x[:, 5, :, None]).squeeze(-1), RecursiveLeastSquares(0.3)(SEQUENCES)[:, 5])


def test_a_probe_finds_what_is_a_linear_map_of_the_activations_and_nothing_where_targets_are_shuffled():
    many = LinearDynamics(D, 8).sample(600, stream(0, "probes")).double()
    inverse = Told(
        lambda s: torch.randn(*s.shape, generator=stream(0, "noise")).double(), lambda s: preconditioned(s, 0.1)
    )
    found = probe({"net": [inverse]}, many, "preconditioned", regulariser=0.1, ridge=1e-9, times=[2, 7])
    assert found.cases["layer"].tolist() == [0, 0, 1, 1]
    assert found.cases["t"].tolist() == [2, 7, 2, 7]
    net, shuffled, constant = (found["mse", name][0] for name in ("net", "net-shuffled", "constant"))
    assert all(net[place].n < 1e-12 * constant[place].n for place in (2, 3))
    assert all(abs(shuffled[place].n / constant[place].n - 1) < 0.1 for place in range(4))
    assert all(abs(net[place].n / constant[place].n - 1) < 0.1 for place in (0, 1))
    best = Told(lambda s: s, lambda s: preconditioned(s, 1e-3))
    implicit = probe({"net": [best]}, many, "implicit", regulariser=1e-3, ridge=1e-12, times=[7])
    least = errors_by_time({"ridge": [RecursiveLeastSquares(1e-3)]}, many[300:], [7])["mse", "ridge"][0, 0].n
    assert implicit["mse", "net"][0, 1].n == pytest.approx(least, rel=0.02)


def test_probes_are_judged_on_sequences_that_they_were_not_fitted_on():
    """With as many directions as sequences to fit, the fit is perfect and means nothing."""
    wide = Told(lambda s: torch.randn(*s.shape[:-1], 60, generator=stream(0, "noise")).double())
    many = LinearDynamics(D, 5).sample(100, stream(0, "probes")).double()
    found = probe({"net": [wide]}, many, ridge=1e-9)
    assert all(
        one.n > constant.n for one, constant in zip(found["mse", "net"][0], found["mse", "constant"][0], strict=True)
    )


def test_errors_of_a_probe_and_of_the_probe_before_it_are_paired():
    """The second tokens are nearly the first, so the ratio of their errors is known better than each of them."""
    noise = stream(0, "noise")
    nearly = Told(lambda s: s, lambda s: s + 0.01 * torch.randn(*s.shape, generator=noise).double())
    many = LinearDynamics(D, 8).sample(600, stream(0, "probes")).double()
    found = probe({"net": [nearly]}, many, times=[2, 7])
    own, before = found["mse", "net"][0], found["before", "net"][0]
    assert [one.n for one in before[:2]] == [one.n for one in own[:2]]
    assert [one.n for one in before[2:]] == pytest.approx([one.n for one in own[:2]], rel=1e-12)
    assert all(one.s / one.n > 0.03 for one in own)
    assert all((one / other).s < 0.01 for one, other in zip(own[2:], before[2:], strict=True))


@pytest.mark.parametrize("attention", [("softmax", "linear"), ("mesa", "softmax")])
def test_sensitivities_of_elements_are_those_of_difference_quotients(attention):
    net, sequence = raw(attention), SEQUENCES[:2, :6]
    found = element_sensitivity(net, sequence, 2)
    assert bool((found.triu(1) == 0).all())
    direction = torch.randn(D, generator=stream(0, "direction")).double()
    moved = [sequence.clone() for _ in range(2)]
    for sign, one in zip((1, -1), moved, strict=True):
        one[:, 2] += sign * 1e-5 * direction
    with torch.no_grad():
        after = [net.activations(one)[2] for one in moved]
    quotient = ((after[0] - after[1]) / 2e-5).norm(dim=-1) / direction.norm()
    assert bool((quotient[:, 2:].mean(0) <= found[2:, 2] * (1 + 1e-6)).all())
    rows = [torch.func.jacrev(lambda s: net.activations(s)[2][4])(one)[:, 2] for one in sequence]
    assert found[4, 2].item() == pytest.approx(sum(row.norm().item() for row in rows) / 2, rel=1e-6)


def test_attention_maps_mix_values_into_what_heads_read():
    net, sequence = raw(), SEQUENCES[:1, :6]
    maps = attention_maps(net, sequence)
    assert maps.shape == (2, 2, 6, 6)
    torch.testing.assert_close(maps[0].sum(-1), torch.ones(2, 6).double())
    _, kept = net.run_with_cache(sequence)
    torch.testing.assert_close(maps[1] @ kept["layers.1.attention.value"][0], kept["layers.1.attention.read"][0])


class Lookahead(nn.Module):
    """A predictor that sees ``ahead`` elements after the newest."""

    def __init__(self, ahead):
        super().__init__()
        self.ahead, self.scale = ahead, nn.Parameter(torch.ones(()))

    def forward(self, sequence):
        return self.scale * (sequence.roll(-self.ahead, -2) if self.ahead else sequence)


class Average(nn.Linear):
    """A linear map of the element and of the mean of all: attention without a mask."""

    def forward(self, sequence):
        return super().forward(sequence + sequence.mean(-2, keepdim=True))


class Blocks(Average):
    """Sees all of its block of three."""

    def forward(self, sequence):
        t = sequence.shape[-2] // 3 * 3
        blocks = sequence[..., :t, :].unflatten(-2, (-1, 3))
        seen = blocks.mean(-2, keepdim=True).expand_as(blocks).flatten(-3, -2)
        return nn.Linear.forward(self, torch.cat([seen, sequence[..., t:, :]], -2))


@pytest.mark.parametrize(
    "make", [lambda: Lookahead(1), lambda: Lookahead(3), lambda: Average(3, 3), lambda: Blocks(3, 3)]
)
def test_a_predictor_that_looks_ahead_is_refused_wherever_it_is_asked(make):
    family = LinearDynamics(d=3, length=12)
    leaking, sequences = make(), family.sample(20, stream(0, "ahead"))
    calls = [
        lambda: compare(leaking, {"limit": RecursiveLeastSquares(0.1)}, family, tasks=20),
        lambda: compare(RecursiveLeastSquares(0.1), {"mine": leaking}, family, tasks=20),
        lambda: measure_predictors({"mine": [leaking]}, [], sequences),
        lambda: errors_by_time({"mine": [leaking]}, sequences),
        lambda: agreement(RecursiveLeastSquares(0.1), leaking, sequences),
        lambda: per_task_errors(leaking, sequences),
        lambda: train(lambda generator: make(), family, Training(steps=2, batch=4)),
        lambda: train(lambda generator: make(), family, Training(steps=2, batch=4), loss=pair_half_mse),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match=r"must not look ahead, but the prediction of .* after \d+ elements?"):
            call()


@pytest.mark.parametrize("attention", ["softmax", "linear", "delta", "mesa"])
def test_causal_networks_are_not_suspected(attention):
    heads = AttentionConfig(8, 2, convolution=2, forget=attention != "softmax")
    net = SequencePredictorConfig(CausalTransformerConfig(heads, 2, attention, mlp=2, layer_norm=True), 3).build()
    table = compare(net, {"limit": RecursiveLeastSquares(0.1)}, LinearDynamics(d=3, length=40), tasks=50)
    assert table.rows["limit"].mse_ratio.value > 1
    assert compare(Lookahead(0), {"limit": net}, LinearDynamics(d=3, length=2), tasks=50)  # nothing comes after


def test_rounding_noise_and_words_are_no_looking_ahead():
    """Least squares in chunks of float32, whose rounding moves with later elements; noise; rows of a table."""
    for draw in range(6):
        sequences = ObservedDynamics(length=51).sample(20, stream(draw, "rounding"))
        errors_by_time({"five": [RecursiveLeastSquares(1e-3, features=Lags(5))]}, sequences, [50])
    state = torch.get_rng_state()
    measure_predictors({"noise": [torch.randn_like]}, [], SEQUENCES)
    assert not torch.equal(torch.get_rng_state(), state)  # by its answers alone
    table = torch.randn(5, 1, generator=stream(0, "table"))
    words = torch.randint(5, (30, 9, 1), generator=stream(0, "words")).float()
    measure_predictors({"table": [lambda s: table[s[..., 0].long()]]}, [], words)


def test_pair_sums_are_not_those_of_networks_with_other_terms():
    start = mesa_gradient_descent(2, 0.1, w0=0.5 * torch.eye(2)).network
    with pytest.raises(ArgumentError, match="pair_sums must have neither w0 nor token_clip, but is 'w0'"):
        reverse_engineer(start).pair_sums()
    plain = mesa_gradient_descent(2, 0.1).network
    clipped = dataclasses.replace(plain.config.transformer, token_clip=0.05)
    network = dataclasses.replace(plain.config, transformer=clipped).build(stream(0, "init")).double()
    with pytest.raises(ArgumentError, match="but is 'token_clip'"):
        reverse_engineer(network.with_products(plain.products())).pair_sums()


class Scaled(nn.Module):
    """Elements times a constant."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def activations(self, sequences):
        return [self.scale * sequences]

    def forward(self, sequences):
        return sequences


def test_errors_of_probes_do_not_depend_on_the_unit_of_activations():
    many = LinearDynamics(4, 6, dynamics="fixed").sample(400, stream(0, "many")).double()
    errors = [probe({"net": [Scaled(scale)]}, many, times=[3])["mse", "net"][0, 0].n for scale in (1e-3, 1.0, 1e3)]
    assert errors == pytest.approx([errors[0]] * 3, rel=1e-6)


def test_probes_of_one_element_and_their_shuffled_targets():
    before = torch.get_rng_state()
    one, other = (probe({"net": [Scaled(1.0)]}, SEQUENCES, "implicit", times=[1, 5]) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert one["mse", "net-shuffled"][0, 1].n == other["mse", "net-shuffled"][0, 1].n
    assert one["mse", "net"][0, 0].n == pytest.approx(float(SEQUENCES[20:, 1].square().mean()))


def test_a_predictor_that_mixes_sequences_is_told_so():
    with pytest.raises(ArgumentError, match="must predict each sequence by itself"):
        compare(
            lambda s: s + s.mean(0, keepdim=True), {"ls": RecursiveLeastSquares(1e-3)}, LinearDynamics(D, 12), tasks=20
        )


class Encoder(nn.Module):
    """Torch's own encoder layer, or sums along time; it takes (tasks, t, d) and nothing else."""

    def __init__(self, sums=False, turned=False):
        super().__init__()
        with seeded(0):
            self.layer = nn.TransformerEncoderLayer(D, 1, 5, batch_first=True, dtype=torch.double)
        self.sums, self.turned = sums, turned

    def activations(self, s):
        assert s.ndim == 3
        mask = nn.Transformer.generate_square_subsequent_mask(s.shape[1], dtype=s.dtype)
        after = s.cumsum(1) if self.sums else self.layer(s, mask, is_causal=True)
        return [one.transpose(0, 1) if self.turned else one for one in (s, after)]

    def forward(self, s):
        return self.activations(s)[-1] if not self.turned else s


def test_networks_see_sequences_with_their_first_axis():
    found = element_sensitivity(Encoder(sums=True), SEQUENCES[:3, :5], 1)
    torch.testing.assert_close(found, D**0.5 * torch.ones(5, 5).tril().double())


def test_sensitivities_of_torchs_own_encoder_are_those_of_difference_quotients():
    net, (sequence,) = Encoder().eval(), SEQUENCES[:1, :4]
    found = element_sensitivity(net, sequence[None], 1)
    steps = 1e-6 * torch.eye(4 * D).double().reshape(-1, 4, D)
    with torch.no_grad():
        high, low = (net.activations(sequence + sign * steps)[1] for sign in (1, -1))
    blocks = ((high - low) / 2e-6).reshape(4, D, 4, D).square().sum((1, 3)).sqrt().T
    torch.testing.assert_close(found, blocks, rtol=1e-5, atol=1e-7)
    assert torch.backends.mha.get_fastpath_enabled()


def test_probes_refuse_activations_of_another_layout_and_those_that_are_not_finite():
    square = LinearDynamics(D, 41).sample(40, stream(0, "square")).double()  # 40 sequences of 40 known elements
    with pytest.raises(ArgumentError, match=r"have shape \(1, 40, width\) .* put tasks first, then time"):
        probe({"net": [Encoder(sums=True, turned=True)]}, square)
    with pytest.raises(ArgumentError, match=r"have shape \(40, 11, width\)"):
        probe({"net": [Encoder(sums=True, turned=True)]}, SEQUENCES)
    with pytest.raises(NumericalError, match="activations must be finite, but 1320 of 1320"):
        probe({"net": [Told(lambda s: s / 0)]}, SEQUENCES.abs() + 1)


def test_probes_of_activations_of_0_are_as_good_as_the_constant(unchecked):
    found = probe({"net": [Told(lambda s: 0 * s)]}, SEQUENCES, times=iter([2, 5]))
    own, constant = found["mse", "net"], found["mse", "constant"]
    assert [one.n for one in own[0]] == pytest.approx([one.n for one in constant[0]], rel=1e-12)


def test_one_sequence_has_errors_without_standard_errors():
    found = errors_by_time({"gd": [OnlineGradientDescent(1, 0.05)]}, SEQUENCES[:1])
    assert np.isnan(found.covariance).all()
    assert np.isfinite(found.mean).all()
