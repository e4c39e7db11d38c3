"""Verdicts are what their intervals say, and intervals are what statistics says."""

import dataclasses
import json
import re
from pathlib import Path

import bounds
import numpy as np
import pytest
from cases import in_turn
from covering import cells, limits
from hypothesis import given, strategies as st
from scipy import stats
from uncertainties import ufloat

from mesascope.errors import ArgumentError, ArgumentTypeError, RunDirectoryError
from mesascope.evidence import (
    LEVEL,
    Arrays,
    Bound,
    Claim,
    Estimates,
    Reported,
    above,
    below,
    beside,
    column,
    controlled,
    judge,
    ours,
    printed,
    stage,
    two_sided,
)

BELOW_ONE = below(1.0)
DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "evidence.md").read_text()


def claim(reading=lambda r: r["x"], bounds=BELOW_ONE, **changes):
    return Claim(
        "c",
        "a sentence",
        reading,
        bounds,
        printed("Fig. 1"),
        measures="a number",
        **changes,
    )


def judged(claim, preset, results):
    return judge([claim], results, preset)[0]


def numbers(values, stderr):
    return np.array([ufloat(value, stderr) for value in values])


def verdict(values, **changes):
    found = judged(claim(**changes), "quick", {"x": values})
    return found["verdict"], found["reason"]


FIVE = np.array([0.1, 0.2, 0.15, 0.12, 0.18])
EIGHT = np.array([*FIVE, 0.14, 0.16, 0.17])


def test_every_replicate_must_be_inside():
    crosses = "its interval crosses the bound, and 11 times as many evaluation tasks would decide it"
    assert verdict(numbers(FIVE, 0.01)) == ("holds", "worst of 5 seeds")
    assert verdict(numbers([*FIVE[:4], 1.2], 0.01)) == ("fails", "worst of 5 seeds; 1 of 5 outside")
    assert verdict(numbers([*FIVE[:4], 0.99], 0.01)) == ("undecided", f"{crosses}; worst of 5 seeds; 4 of 5 inside")


@pytest.mark.parametrize(
    ("values", "changes", "reason"),
    [
        (numbers([1.2, *FIVE[:3], 1.1], 0.01), {}, "worst of 5 seeds; 2 of 5 outside"),
        (numbers([1.1, *FIVE[:3], 1.2], 0.01), {}, "worst of 5 seeds; 2 of 5 outside"),
        (numbers([*FIVE, *FIVE], 0.01).reshape(5, 2), {}, "worst of 5 seeds x 2 cases"),
        (np.stack([np.tile(FIVE, 2), np.tile(FIVE, 2) + 2], 1), {"quantifier": "median"},
         "worst of 2 cases; 1 of 2 outside"),
        (EIGHT + 2, {"quantifier": "median"}, ""),
        (FIVE + 2, {"quantifier": "exact", "exact_because": "read", "over": "sizes"},
         "worst of 5 sizes; 5 of 5 outside"),
        (numbers([2.0], 0.01), {"at_least": 1}, ""),
    ],
)  # fmt: skip
def test_a_number_that_is_one_of_several_says_of_how_many(values, changes, reason):
    assert verdict(values, **changes)[1] == reason


def test_every_case_holds_by_itself_and_fails_with_the_others():
    """A claim fails if k of m intervals lie outside at k / m of the level: one far outside, or all a little."""
    values = numbers(np.linspace(-0.1, 0.1, 40), 0.1).reshape(5, 8)
    holds, open_, fails = (judged(claim(bounds=above(low)), "quick", {"x": values}) for low in (-0.44, -0.42, 0.5))
    alone = 0.1 * stats.norm.isf(0.1 * (1 - LEVEL) / 2)
    assert [one["verdict"] for one in (holds, open_, fails)] == ["holds", "undecided", "fails"]
    assert [one["low"] for one in (holds, open_)] == pytest.approx([-0.1 - alone] * 2)
    assert (fails["value"], fails["high"], fails["n"]) == pytest.approx((-0.1, -0.1 + alone, 5)), (
        "printed at its own level"
    )
    eight = np.tile(EIGHT[:, None], (1, 4))
    assert verdict(eight, quantifier="median", bounds=above(0.3))[0] == "fails"
    found = verdict(eight + np.array([1, 1, 1, 0]), quantifier="median", bounds=above(0.3))
    assert found[0] == "undecided", "one case of four outside, at its own level alone"
    assert "about 10 seeds would decide it; worst of 4 cases; 3 of 4 inside" in found[1]


@pytest.mark.parametrize(
    ("values", "changes", "expected"),
    [
        (numbers(FIVE[:1], 0.1), {"at_least": 1}, 10 * 2 * stats.norm.sf(9)),
        (numbers(FIVE[:1], 0.3), {"at_least": 1, "bounds": below(1.2)}, 10 * 2 * stats.norm.sf(11 / 3)),
        (EIGHT, {"quantifier": "median"}, 2 / 2**8),
        (np.tile(FIVE, 4), {"quantifier": "median"}, 2 / 2**20),
        (np.arange(30) > 2, {"quantifier": "share", "bounds": above(0.5)}, 2 * stats.binom.sf(26, 30, 0.5)),
    ],
)
def test_the_p_value_is_the_least_error_at_which_a_verdict_stands(values, changes, expected):
    found = judged(claim(**changes), "quick", {"x": values})
    assert found["verdict"] == "holds"
    assert expected - 1e-12 <= found["p"] <= max(1.01e-9, 1.25 * expected)


@pytest.mark.parametrize(
    ("values", "changes", "needed"),
    [
        (EIGHT, {"quantifier": "median", "bounds": above(0.13)}, "about 37 seeds would decide it"),
        (numbers(FIVE, 0.1), {"bounds": two_sided(2.0, around=FIVE.min() + 2.05)}, "times as many evaluation tasks"),
        (
            EIGHT,
            {"quantifier": "median", "bounds": above(np.median(EIGHT) + 1e-6)},
            "more seeds would hardly decide it",
        ),
        # Up to eleven, the interval of a median goes from the least to the largest replicate.
        (EIGHT, {"quantifier": "median", "bounds": above(0.102)}, "about 12 seeds would decide it"),
        # The interval of Clopper and Pearson for none of 528 ends at 0.01.
        (np.zeros(100), {"quantifier": "share", "bounds": below(0.01)}, "about 528 seeds would decide it"),
    ],
)
def test_an_undecided_claim_says_what_would_decide_it(values, changes, needed):
    found = judged(claim(**changes), "quick", {"x": values})
    assert found["verdict"] == "undecided"
    assert needed in found["reason"]


def test_an_error_of_measurement_widens_the_median():
    found, measured = (judged(claim(quantifier="median"), "quick", {"x": x}) for x in (EIGHT, numbers(EIGHT, 0.3)))
    assert (found["low"], found["high"]) == (EIGHT.min(), EIGHT.max())
    assert measured["high"] - found["high"] == pytest.approx(0.3 * stats.norm.isf((1 - LEVEL) / 2))


def test_the_median_has_an_interval_of_order_statistics():
    values = np.arange(21.0) / 100
    found = judged(claim(quantifier="median"), "quick", {"x": values})
    low = round(100 * found["low"])
    assert stats.binom.cdf(low, 21, 0.5) <= (1 - LEVEL) / 2 < stats.binom.cdf(low + 1, 21, 0.5)
    assert found["high"] == pytest.approx(values[20 - low])
    assert verdict(FIVE, quantifier="median") == ("undecided", "it needs 8 seeds, and has 5")
    assert verdict(np.linspace(0.1, 0.2, 8), quantifier="median") == ("holds", "")


def test_a_share_has_clopper_and_pearsons_interval():
    found = judged(claim(quantifier="share", bounds=above(0.5)), "quick", {"x": np.arange(30) > 2})
    interval = stats.binomtest(27, 30).proportion_ci(LEVEL, "exact")
    assert (found["value"], found["low"], found["verdict"]) == (0.9, pytest.approx(interval.low), "holds")
    assert verdict(np.ones(5), quantifier="share", bounds=above(0.5))[0] == "undecided"
    for values in (np.full(30, 0.3), -np.ones(30), np.arange(30)):  # of which none is true
        assert "other numbers than true and false" in verdict(values, quantifier="share", bounds=above(0.5))[1]


def test_a_statistic_of_several_samples_is_bootstrapped():
    rng = np.random.default_rng(0)
    wide, narrow = rng.normal(0, 10, 60), rng.normal(0, 1, 60)

    def ratio(one, other):
        return float(np.log2(np.std(one) / np.std(other)))

    found = judged(claim(lambda r: (wide, narrow), above(1.0), quantifier="bootstrap", statistic=ratio), "quick", {})
    assert found["verdict"] == "holds"
    assert found["low"] < ratio(wide, narrow) == found["value"] < found["high"]
    correlation = claim(  # of values above the interval, which is that of independent samples
        lambda r: (wide, wide**3), quantifier="bootstrap", statistic=lambda one, other: np.corrcoef(one, other)[0, 1]
    )
    assert judged(correlation, "quick", {})["reason"].startswith("its statistic lies outside the interval of its resam")
    rare = claim(lambda r: np.repeat([0.0, 1.0], [18, 2]), above(0.0), quantifier="bootstrap", statistic=np.mean)
    seen = judged(rare, "quick", {})  # of many samples drawn anew the share is 0
    assert seen["verdict"] == "undecided"
    assert seen["low"] <= 0 < seen["value"] < seen["high"]
    few = claim(lambda r: (wide[:5], narrow[:5]), quantifier="bootstrap", statistic=ratio)
    assert judged(few, "quick", {})["reason"] == "it needs 20 seeds, and has 5"


def test_exact_numbers_say_why_they_are():
    assert verdict(FIVE, quantifier="exact", exact_because="read from built weights")[0] == "holds"
    with pytest.raises(ArgumentError, match="must set exact_because if and only if"):
        claim(quantifier="exact")


EXACT = "its numbers have standard errors, and 'exact' takes none"


@pytest.mark.parametrize(
    ("values", "changes", "reason"),
    [
        (numbers(FIVE[:3], 0.01), {}, "it needs 5 seeds, and has 3"),
        (FIVE, {}, "its numbers have no standard errors, and 'every' needs them: set quantifier='median', say"),
        (numbers([0.1] * 5, 0.01), {}, "all seeds are the same"),
        (np.full(8, 0.1), {"quantifier": "median"}, "all seeds are the same"),
        (FIVE[:1], {"quantifier": "median", "at_least": 1}, "it needs 8 seeds, and has 1"),
        (np.array([*EIGHT[:7], np.nan]), {"quantifier": "median"}, "1 of 8 numbers is not finite"),
        (numbers([*FIVE[:3], np.nan, np.inf], 0.01), {}, "2 of 5 numbers are not finite"),
        (np.ones((5, 0)), {}, "its reading returns no numbers"),
        (numbers(FIVE, 0.01), {"quantifier": "exact", "exact_because": "none is measured"}, EXACT),
    ],
)
def test_what_cannot_be_judged_is_undecided_with_its_reason(values, changes, reason):
    assert verdict(values, **changes) == ("undecided", reason)


def test_replicates_that_are_all_the_same_may_fail_but_not_hold():
    assert verdict(np.full(8, 2.0), quantifier="median") == ("fails", "")
    assert verdict(numbers([2.0] * 5, 0.01)) == ("fails", "worst of 5 seeds; 5 of 5 outside")


def test_a_median_is_widened_by_the_errors_of_the_networks_at_the_ends_of_its_interval():
    """One network far away, with a large error, changes neither end; a median of shifted networks is still covered."""
    values, errors = np.array([*EIGHT[:7], 50.0]), np.array([0.01] * 7 + [9.0])
    with_late = np.array([ufloat(*pair) for pair in zip(values, errors, strict=True)])
    plain = np.array([*EIGHT[:7], 50.0])
    found, bare = (judged(claim(quantifier="median"), "quick", {"x": one}) for one in (with_late[:8], plain))
    assert bare["low"] - 0.03 < found["low"] < bare["low"]
    rng, missed = np.random.default_rng(0), 0
    for _ in range(200):
        true = np.exp(rng.normal(size=16))
        spread = 0.1 + 0.3 * true
        read = np.array([ufloat(*pair) for pair in zip(true + spread * rng.normal(), spread, strict=True)])
        one = judged(claim(quantifier="median"), "quick", {"x": read})
        missed += not one["low"] <= 1.0 <= one["high"]
    assert missed <= 4  # 2 expected at most


def test_an_unknown_error_keeps_a_claim_about_every_replicate_from_holding_but_not_from_failing():
    def one_unknown(last):
        return np.array([*numbers([*FIVE[:3], last], 0.01), ufloat(0.1, np.nan)])

    assert verdict(one_unknown(3.0)) == ("fails", "worst of 5 seeds; 1 of 5 outside")
    for last in (0.1, 1.01):
        found = judged(claim(), "quick", {"x": one_unknown(last)})
        assert (found["verdict"], found["value"]) == ("undecided", None)
        assert found["reason"].startswith("1 of 5 standard errors is not finite")
    infinite = np.array([*numbers([*FIVE[:3], 3.0], 0.01), ufloat(np.inf, 0.01)])
    assert verdict(infinite)[0] == "undecided"


QUANTIFIERS = {
    "every": {}, "median": {}, "share": {}, "exact": {"exact_because": "a test"},
    "bootstrap": {"statistic": np.mean},
}  # fmt: skip


def damaged_estimates(kind):
    """Twenty-four replicates within every bound but for one number of this kind in their means or covariance."""
    rng = np.random.default_rng(0)
    sound = Estimates.of({("mse", "a"): list(rng.gamma(9.0, 0.05, size=(24, 200)))})
    mean, covariance = sound.mean.copy(), sound.covariance.copy()
    if kind.endswith("mean"):
        mean[3] = float(kind.split()[0])
    elif kind == "negative variance":
        covariance[3, 3] *= -1
    elif kind == "asymmetric":
        covariance[3, 4] += 0.5 * covariance[3, 3]
    elif kind == "impossible correlation":
        covariance[3, 4] = covariance[4, 3] = 3 * covariance[3, 3]
    else:
        value, place = kind.split()
        covariance[{"variance": (3, 3), "covariance": (3, 4)}[place]] = float(value)
    return Estimates(sound.names, mean, covariance, sound.n)


@in_turn("quantifier", QUANTIFIERS)
@in_turn(
    ("kind", "reason"),
    [
        *((f"{value} mean", "1 of 24 numbers is not finite") for value in ("nan", "inf", "-inf")),
        *((f"{value} variance", "1 of 24 standard errors is not finite") for value in ("nan", "inf")),
        ("nan covariance", "1 of 24 standard errors is not finite"),
        *(
            (kind, "covariance must be symmetric and positive semidefinite")
            for kind in ("negative variance", "asymmetric", "impossible correlation")
        ),
    ],
)
def test_estimates_that_no_samples_can_have_decide_nothing(quantifier, kind, reason):
    """One bad number never holds or fails a claim; the 23 others of known error fail one about every number."""
    estimates = damaged_estimates(kind)
    for bound in (below(1.0), above(1.0)):
        own = claim(lambda r: r["x"]["mse", "a"], bound, quantifier=quantifier, **QUANTIFIERS[quantifier])
        found = judged(own, "quick", {"x": estimates})
        if quantifier == "every" and "standard errors" in reason and bound.low == 1.0:
            assert (found["verdict"], found["reason"]) == ("fails", "worst of 24 seeds; 23 of 24 outside")
        else:
            assert found["verdict"] == "undecided"
            assert found["reason"].startswith(reason)


def raising(results):
    raise ZeroDivisionError("division\nby zero")


@in_turn("quantifier", QUANTIFIERS)
@in_turn(
    ("reading", "reason"),
    [
        (lambda r: None, "its reading raises TypeError: must return numbers, but returns None"),
        (lambda r: np.array([None] * 24), "its reading raises TypeError: must return numbers"),
        (lambda r: ["a"] * 24, "its reading raises TypeError: must return numbers"),
        (lambda r: np.full(24, 0.5 + 1j), "its reading raises TypeError: must return numbers"),
        (lambda r: [[0.1], [0.2, 0.3]], "its reading raises ValueError"),
        (raising, "its reading raises ZeroDivisionError: division by zero"),
        (lambda r: r["y"], "y"),
        (lambda r: Arrays({"v": FIVE}, v="seed")["w"], "results must contain 'w', but contain 'v': correct the name"),
        (lambda r: (), "its reading returns no numbers"),
        (lambda r: [], "its reading returns no numbers"),
        (lambda r: np.ones((24, 0)), "its reading returns no numbers"),
        (lambda r: np.full(24, np.inf), "24 of 24 numbers are not finite"),
        (lambda r: np.ma.masked_equal([0] * 23 + [-999], -999), "1 of 24 numbers is not finite"),
    ],
)
def test_a_reading_that_gives_no_numbers_costs_its_own_claim_alone(quantifier, reading, reason):
    found = judged(claim(reading, quantifier=quantifier, **QUANTIFIERS[quantifier]), "quick", {})
    assert (found["verdict"], found["reason"][: len(reason)]) == ("undecided", reason)


def test_one_sample_is_judged_unless_the_quantifier_takes_several():
    two = (numbers(EIGHT, 0.01), numbers(10 * EIGHT, 0.01))
    for quantifier in ("every", "median", "share", "exact"):
        own = claim(lambda r: two, quantifier=quantifier, **QUANTIFIERS[quantifier])
        assert "returns 2 samples" in judged(own, "quick", {})["reason"]
    for statistic in (lambda x: None, lambda x: 1 / 0, lambda x: np.nan):
        own = claim(lambda r: FIVE.repeat(4), quantifier="bootstrap", statistic=statistic)
        assert judged(own, "quick", {})["reason"].startswith("its statistic ")
    cases = claim(lambda r: np.ones((24, 2)), quantifier="bootstrap", statistic=np.mean)
    assert judged(cases, "quick", {})["reason"] == "its reading returns several cases, and bootstrap takes one"


def test_a_failed_or_undecided_premise_leaves_a_claim_undecided():
    base = dataclasses.replace(claim(lambda r: numbers(FIVE, 0.01), above(0.5)), id="base")
    claims = [claim(lambda r: numbers(FIVE, 0.01), premises=("base",)), base]
    records = judge(claims, {}, "quick")
    assert [record["verdict"] for record in records] == ["undecided", "fails"]
    assert records[0]["reason"] == "its premise base fails; worst of 5 seeds"
    assert records[0]["value"] is not None, "what was measured is still shown"


def test_a_missing_or_stale_stage_leaves_a_claim_undecided():
    def stale(results):
        raise RunDirectoryError("results/x.npz must be what this run measured: delete it.")

    assert judged(claim(stale), "quick", {})["reason"] == "results/x.npz must be what this run measured: delete it"
    assert judged(claim(lambda r: r["y"]), "quick", {"x": FIVE})["verdict"] == "undecided"


def test_presets_may_have_bounds_of_their_own_and_the_record_names_who_set_them():
    own = claim(bounds={"quick": below(1.0), "paper": below(0.1, by="paper")}, reported=Reported(0.05, "printed"))
    quick, paper = (judged(own, preset, {"x": numbers(FIVE, 0.001)}) for preset in ("quick", "paper"))
    assert (quick["verdict"], paper["verdict"]) == ("holds", "fails")
    assert (paper["bound"], paper["bound_by"], paper["bound_high"], paper["bound_low"]) == ("< 0.1", "paper", 0.1, None)
    assert paper["reported"] == "0.05 (printed)"
    assert str(ours("premise")) == "ours: premise"


@given(
    low=st.floats(-3, 3), width=st.floats(0, 2), bound_low=st.floats(-3, 0), bound_high=st.floats(0.1, 3),
    wider=st.floats(0, 2),
)  # fmt: skip
def test_an_interval_is_inside_outside_or_across(low, width, bound_low, bound_high, wider):
    high, bound = low + width, Bound(bound_low, bound_high)
    side = bound.side(low, high)
    assert (side == "inside") == (bound_low <= low and high <= bound_high)
    assert (side == "outside") == (high < bound_low or low > bound_high)
    assert above(bound_low).side(bound_low, bound_high) == below(bound_high).side(bound_low, bound_high) == "across"
    larger = Bound(bound_low - wider, bound_high + wider).side(low, high)
    assert ("inside", side) == (larger, "inside") or side != "inside", "a wider bound keeps what was inside"


def test_ratios_of_means_over_the_same_tasks_share_their_noise():
    rng = np.random.default_rng(0)
    task = rng.gamma(2.0, size=20_000)
    one, other = 1.05 * task + rng.normal(0, 0.02, task.size), task
    both = Estimates.of({("mse", "a"): [one], ("mse", "b"): [other]})
    ratio = both.ratio("a", "b")[0]
    resampled = []
    for _ in range(200):
        index = rng.integers(0, task.size, task.size)
        resampled.append(one[index].mean() / other[index].mean())
    assert ratio.nominal_value == pytest.approx(one.mean() / other.mean())
    assert ratio.std_dev == pytest.approx(np.std(resampled), rel=0.2)
    assert both.difference("a", "a")[0].std_dev == pytest.approx(0.0, abs=1e-12)


def test_a_reference_stands_against_every_replicate():
    both = Estimates.of(
        {("mse", "a"): list(np.random.default_rng(0).gamma(2.0, size=(3, 50))), ("mse", "b"): [np.ones(50)]}
    )
    assert both.ratio("a", "b").shape == (3,)
    with pytest.raises(ArgumentError, match="did you mean 'mse a'"):
        both["mse", "aa"]


def test_estimates_and_arrays_come_back_from_what_a_file_holds():
    rng = np.random.default_rng(0)
    points = [
        Estimates.of({("mse", "a"): list(rng.gamma(2.0, size=(2, 30))), ("mse", "b"): [rng.gamma(2.0, size=30)]})
        for _ in range(3)
    ]
    swept = Estimates.over({"scale": [0.5, 1.0, 2.0]}, points)
    again = Estimates.from_arrays(swept.to_arrays())
    assert again.names == swept.names
    assert again["mse", "a"].shape == (2, 3)
    np.testing.assert_array_equal(again.mean, swept.mean)
    assert again.where(again.cases["scale"] > 0.7)["mse", "b"].shape == (1, 2)
    assert len(again.table()) == 9
    assert again.table()[0]["scale"] == 0.5
    read = Arrays({"eta": FIVE, "w": np.ones((5, 2, 2)), "limit": 0.4}, eta="seed", w="seed row column")
    assert "eta" in read
    assert "gamma" not in read
    back = Arrays.from_arrays(read.to_arrays())
    assert back.axes == read.axes
    np.testing.assert_array_equal(back["eta"], FIVE)
    with pytest.raises(ArgumentError, match="results must contain 'etaa', but contain 'eta', 'limit', 'w'"):
        back["etaa"]
    with pytest.raises(ArgumentError, match="must have a name for each axis"):
        Arrays({"eta": FIVE})


def test_a_mean_that_is_not_finite_has_no_error():
    overflowing = np.ones(50)
    overflowing[3] = np.inf
    both = Estimates.of({("mse", "a"): [overflowing], ("mse", "b"): [np.random.default_rng(0).gamma(2.0, size=50)]})
    assert np.isnan(both["mse", "a"][0].std_dev)
    assert both["mse", "b"][0].std_dev > 0


@pytest.mark.parametrize("arrays", [[], [np.ones(3), np.ones(4)], [np.ones((3, 2))], [np.array(1.0)]])
def test_estimates_are_of_one_number_a_task(arrays):
    with pytest.raises(ArgumentError, match=r"arrays of one shape \(n,\), one number per task, but is \["):
        Estimates.of({("mse", "a"): arrays})


def test_claims_that_are_not_claims_are_refused(unchecked):
    for low, high in ((-np.inf, np.inf), (1.0, 1.0), (2.0, 1.0)):
        with pytest.raises(ArgumentError, match="a bound must have low < high and a finite end"):
            Bound(low, high)
    with pytest.raises(ArgumentError, match="must have a statistic if and only if"):
        claim(quantifier="bootstrap")
    assert two_sided(0.1, around=2.0) == Bound(1.9, 2.1)
    with pytest.raises(ArgumentTypeError, match=r"a bound must be of type float or int, but is '0\.5'"):
        below("0.5")
    for changes, message in (
        ({"over": "seedz"}, "over must be one of .* did you mean 'seeds'"),
        ({"bounds": 0.5}, r"bounds must be of type Bound or Mapping, but is 0.5 \(float\): pass below"),
        ({"premises": "base"}, "premises must be a tuple, but is 'base'"),
        ({"reading": None}, "reading must be callable"),
        ({"former": 0.42}, r"former must be of type str, but is 0\.42"),
    ):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
            claim(**changes)


def test_claims_that_cannot_be_judged_together_are_refused():
    a, b = (dataclasses.replace(claim(premises=(other,)), id=own) for own, other in ("ab", "ba"))
    only_paper = dataclasses.replace(a, premises=(), bounds={"paper": BELOW_ONE})
    for claims, message in (
        ([a, a], "claims must have different ids"),
        ([a], "a premise of a must be one of 'a', but is 'b'"),
        ([a, b], r"premises must not lead back to their claim, but do \([ab] -> [ab] -> [ab]\)"),
        ([only_paper], "a preset with a bound of a must be one of 'paper', but is 'quick'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            judge(claims, {}, "quick")


def test_readings_compute_and_spell_themselves():
    tasks = np.random.default_rng(0).normal(5.0, 1.0, (2, 1000))
    found = Estimates.of({("mse", "trained"): [tasks[0]], ("mse", "gd"): [tasks[0] + 0.1 * tasks[1]]})
    results = {"main": found, "sizes": Arrays({"eta": np.array([4.0, 8.0])}, eta="seed")}
    main, sizes = stage("main", trained="layers"), stage("sizes")
    both = main.ratio("gd", "trained")
    (ratio,), (log,) = both(results), both.log2()(results)
    assert log.nominal_value == pytest.approx(np.log2(ratio.nominal_value))
    assert log.std_dev == pytest.approx(ratio.std_dev / ratio.nominal_value / np.log(2))
    assert (abs(1 * sizes["eta"] - 6) / 2)(results).tolist() == [1.0, 1.0]
    assert sizes["eta"].log2().at(-1, "the last")(results) == 3.0
    assert (10 - sizes["eta"] + 1)(results).tolist() == [7.0, 3.0]
    assert (1 + 8 / sizes["eta"])(results).tolist() == [3.0, 2.0]
    assert str(1 / (sizes["eta"] - 2)) == "1 / (eta - 2)"
    assert beside([sizes["eta"], sizes["eta"] * 2], "both")(results).tolist() == [[4.0, 8.0], [8.0, 16.0]]
    assert str(both.log2()) == "log2(loss of gradient descent / of layers)"


@pytest.mark.parametrize(
    ("samples", "resampled"), [(1000, 0), pytest.param(100, 200, marks=pytest.mark.slow, id="bootstraps")]
)
def test_intervals_cover_as_the_page_says(samples, resampled, unchecked):
    """On each law of docs/evidence.md: within chance of its table, and never below the level."""
    rows = re.findall(
        r"^\| (every|median|share|bootstrap) \| ([^|]*) \| ([^|]*: \d+\.\d\d[^|]*) \|$", PAGE, re.MULTILINE
    )
    printed = {
        (quantifier, law, int(n.replace(",", ""))): float(value) / 100
        for quantifier, law, cells in rows
        for n, value in re.findall(r"([\d,]+): ([\d.]+)", cells)
    }
    assert min(printed.values()) >= LEVEL
    for quantifier, law, n, coverage in cells(samples, resampled):
        stated = printed[quantifier, law, n]
        drawn = resampled if quantifier == "bootstrap" else samples
        chance = 4 * np.sqrt(stated * (1.001 - stated) / drawn) + 1 / drawn  # coverage is a multiple of 1 / drawn
        assert abs(coverage - stated) <= chance, (quantifier, law, n)


# Sentences of docs/evidence.md with numbers from simulations, and with numbers from the history of docs/results.
LIMITS = {
    "Student's t, late by 100": r"100 standard deviations above .* in (\d+), (\d+), (\d+) and (\d+) % of samples of 3",
    "Student's t, late by 10": r"At 10 standard deviations, it does in ([\d.]+), ([\d.]+), ([\d.]+) and ([\d.]+) %",
    "no late seed": r"(\d+) % of samples of eight have no late seed",
    "few tasks": r"over 64 lognormal losses they cover (\d+) %",
    "correlation, ignored": r"of eight covers (\d+) % at a correlation of 0.2, and (\d+) % at 0.5",
    "standard deviation": r"of the standard deviation of 100 lognormal replicates covers (\d+) %",
}
COUNTS = {
    "bound": r"Of (\d+) claims .*, (\d+) have had more than one bound",
    "later studies": r"Of (\d+) claims in the studies of language, .* only the bounds of (\d+) have moved",
    "kind of source": r"Of (\d+) printed sentences that .*, (\d+) had held, (\d+) had failed and (\d+) were undecided",
    "quantifier": r"The quantifier of (\d+) claims changed, of (\d+) only because",
    "published arrays": r"(\d+) claims were first judged on arrays .*: (\d+) premises and controls, of which (\d+) "
    r"held, and (\d+) others, of which (\d+) held, (\d+) failed and (\d+) were undecided",
}


def stated(pattern):
    found = re.search(pattern, PAGE)
    assert found, pattern
    return [float(one) for one in found.groups()]


@pytest.mark.parametrize(
    ("samples", "resampled"), [(4000, 0), pytest.param(100, 300, marks=pytest.mark.slow, id="bootstraps")]
)
def test_limits_of_intervals_are_those_of_the_page(samples, resampled, unchecked):
    for subject, drawn, shares in limits(samples, resampled):
        for said, share in zip(stated(LIMITS[subject]), shares, strict=True):
            chance = 4 * np.sqrt(share * (1.001 - share) / drawn)
            assert abs(share - said / 100) <= chance + 0.005, (subject, said, share)


def test_published_claims_have_the_minimums_of_the_page():
    few = {
        (path.parent.name, one["at_least"], one["n"])
        for path in sorted((DOCS / "results").glob("*/claims.json"))
        for one in json.loads(path.read_text())
        if one["quantifier"] in ("every", "exact", "share") and one["about"] == "training" and one["over"] == "seeds"
        and one["at_least"] < 5
    }  # fmt: skip
    known = {path.name: 5 for path in (DOCS / "results").glob("mesa-*")}
    known |= {"language-mesa": 3, "llm-regression": 10, "mesa-transformer": 8, "mesa-contracting": 8}
    assert few == {(name, 3, networks) for name, networks in known.items()} | {("deep", 1, 1)}
    assert "3 networks for claims of `language-mesa`, whose run has 3 of each kind, and for some claims of `llm" in PAGE
    eight = "8 in `mesa-transformer` and `mesa-contracting`"
    assert f"whose run has 10, and of the `mesa-` studies, whose runs have 5 ({eight})" in PAGE


@pytest.mark.slow
@pytest.mark.skipif(not bounds.has_history(), reason="needs a complete clone")
def test_changes_of_published_claims_are_counted_on_the_page():
    assert {name: stated(pattern) for name, pattern in COUNTS.items()} == bounds.counts(bounds.history())


def test_claims_follow_their_premise_when_it_is_taken_back():
    """Claims of the same run follow, and claims that depend on these."""
    crossing = np.linspace(0.0, 2.0, 8)
    small, then, last = (
        dataclasses.replace(claim(lambda r, key=key: r[key], quantifier="median", premises=premises), id=name)
        for name, key, premises in (("small", "x", ()), ("next", "y", ("small",)), ("last", "y", ("next",)))
    )
    chain = [small, then, last]
    one, other = ([{**row, "run": run} for row in judge(chain, {"x": EIGHT, "y": np.tile(EIGHT, 5)})] for run in "ab")
    many = [{**row, "run": "c"} for _ in range(900) for row in judge([small], {"x": crossing})]
    strong = [{**row, "p": 1e-9} for row in other]
    found = controlled([*one, *strong, *many])
    assert [row["verdict"] for row in found[:6]] == ["undecided"] * 3 + ["holds"] * 3
    assert found[0]["reason"].startswith("it holds by itself")
    assert [row["reason"] for row in found[1:3]] == [f"its premise {name} is undecided" for name in ("small", "next")]


def test_false_discoveries_are_controlled_over_all_claims():
    """With 300 claims whose values lie on their bounds and 20 far inside, only the 20 stand."""
    rng = np.random.default_rng(0)
    on, inside = rng.normal(1.0, 0.1, (300, 8)), rng.normal(0.0, 0.1, (20, 16))
    found = [judged(claim(quantifier="median"), "quick", {"x": x}) for x in [*on, *inside]]
    alone = [record["verdict"] != "undecided" for record in found]
    stands = [record["verdict"] != "undecided" for record in controlled(found)]
    assert 0 < sum(alone[:300]) <= 10
    assert (sum(stands[:300]), sum(stands[300:])) == (0, 20)
    moved = next(new for old, new in zip(found, controlled(found), strict=True) if old["verdict"] != new["verdict"])
    assert re.fullmatch(
        r"it \w+ .* \(p = 0\.00\d+\), but .* among 320 claims, which about 14 seeds would decide", moved["reason"]
    )


def test_bootstraps_whose_p_is_the_least_that_resamples_show_are_not_said_to_be_decided_by_more_seeds():
    wide = np.linspace(1.0, 3.0, 20)
    one = judged(claim(lambda r: wide, above(0.1), quantifier="bootstrap", statistic=np.median), "quick", {})
    many = [judged(claim(lambda r: np.linspace(0.0, 2.0, 8), below(1.0), quantifier="median"), "quick", {})] * 900
    found = controlled([one, *many])[0]
    assert found["verdict"] == "undecided"
    assert found["reason"].endswith("among 901 claims, as resamples show no p below 0.002")


def test_one_claim_in_place_of_a_list_is_refused(unchecked):
    with pytest.raises(ArgumentTypeError, match=r"claims must be .*: pass them in a list"):
        judge(claim(lambda r: EIGHT), {})


def test_a_statistic_may_need_its_axis():
    wide = np.linspace(1.0, 3.0, 20)
    found = judged(
        claim(lambda r: wide, above(1.0), quantifier="bootstrap", statistic=lambda one, axis: np.median(one, axis)),
        "quick", {},
    )  # fmt: skip
    assert found["verdict"] == "holds"


def test_arithmetic_is_row_by_row():
    """Also with as many columns as rows, and with whole numbers."""
    base = np.arange(1.0, 9.0)
    ratio = column("loss") / column("base")
    for columns in (1, 3, 8):
        loss = 0.5 * np.repeat(base[:, None], columns, 1)
        np.testing.assert_array_equal(ratio({"loss": loss, "base": base}), np.full((8, columns), 0.5))
    small = {"a": np.array([1, 2], "uint8"), "b": np.array([3, 5], "uint8"), "c": np.array([True, True])}
    np.testing.assert_array_equal((column("a") - column("b"))(small), [-2, -3])
    np.testing.assert_array_equal((column("a") - 5)(small), [-4, -3])
    np.testing.assert_array_equal((column("c") + column("c"))(small), [2, 2])


@pytest.mark.parametrize("nearness", [1e-8, 1e-10, 1e-12])
def test_equal_learners_are_not_told_apart_by_rounding(nearness):
    own = claim(stage("m").difference("net", "gd"), above(0.0), at_least=1)
    for seed in range(20):
        draws = np.random.default_rng(seed)
        x = draws.lognormal(size=1000)
        both = Estimates.of({("mse", "net"): [x * (1 + nearness * draws.normal(size=1000))], ("mse", "gd"): [x]})
        assert judged(own, "quick", {"m": both})["verdict"] == "undecided"


def test_ends_of_a_two_sided_bound_are_allowed():
    whole = claim(lambda r: np.array([9, 10, 11]), two_sided(1, around=10), quantifier="exact", exact_because="counted")
    assert judged(dataclasses.replace(whole, at_least=3), "quick", {})["verdict"] == "holds"
    share = claim(lambda r: np.ones(5000, bool), two_sided(0.05, around=0.95), quantifier="share")
    assert judged(share, "quick", {})["verdict"] == "holds"
    assert str(below(0.9999999)) == "< 0.9999999"


def test_points_of_other_quantities_are_not_stacked():
    one, other = (Estimates.of({("mse", name): [np.arange(4.0)] for name in names}) for names in ("ab", "ba"))
    with pytest.raises(ArgumentError, match="points must have the same quantities in one order"):
        Estimates.over({"scale": [1, 2]}, [one, other])
