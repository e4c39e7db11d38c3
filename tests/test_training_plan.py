"""Plans: their schedules, and what they refuse."""

import itertools
import math
import subprocess
import sys

import pytest
from hypothesis import assume, given, strategies as st

from mesascope.errors import ArgumentError
from mesascope.training import SCHEDULES, ParameterGroup, Training, schedule_factor

shares = st.floats(0, 1)


@st.composite
def schedules(draw):
    """A schedule, its number of steps, and its factors at all of them."""
    kind, steps = draw(st.sampled_from(sorted(SCHEDULES))), draw(st.integers(1, 60))
    options = {"warmup_steps": draw(st.integers(0, steps)), "final_rate": draw(shares)}
    decay_from = draw(shares)
    factors = [schedule_factor(kind, step, steps, decay_from, **options) for step in range(steps)]
    return kind, steps, decay_from, options, factors


@given(schedules())
def test_factors_rise_by_equal_steps_to_one_and_fall_no_lower_than_the_final_rate(case):
    _, _, _, options, factors = case
    warmup, final = options["warmup_steps"], options["final_rate"]
    assert factors[:warmup] == pytest.approx([(step + 1) / warmup for step in range(warmup)])
    assert all(final - 1e-12 <= factor <= 1 for factor in factors[warmup:])
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors[warmup:]))


@given(schedules())
def test_a_schedule_stays_at_one_between_warm_up_and_decay_and_does_not_jump(case):
    kind, steps, decay_from, options, factors = case
    start = max(decay_from * steps, options["warmup_steps"])
    assert all(f == 1 for step, f in enumerate(factors) if options["warmup_steps"] <= step <= start)
    if options["warmup_steps"]:
        assert factors[options["warmup_steps"] - 1] == 1
    assume(kind != "constant" and start < steps)
    steepest = {"linear": 1, "cosine": math.pi / 2}[kind] * (1 - options["final_rate"]) / (steps - start)
    assert all(a - b <= steepest + 1e-12 for a, b in itertools.pairwise(factors[options["warmup_steps"] :]))
    assert schedule_factor(kind, steps, steps, decay_from, **options) == pytest.approx(options["final_rate"])


@given(st.integers(1, 60), shares)
def test_the_decay_of_a_cosine_is_half_way_where_that_of_a_line_is(steps, final):
    halfway = [schedule_factor(kind, steps, 2 * steps, 0.0, final_rate=final) for kind in ("linear", "cosine")]
    assert halfway == pytest.approx([(1 + final) / 2] * 2)


def test_a_constant_schedule_ignores_where_a_decay_would_begin_and_end():
    assert {schedule_factor("constant", step, 9, 0.3, final_rate=0.2) for step in range(9)} == {1.0}


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"learning_rate": -1.0}, "learning_rate must be greater than 0"),
        ({"learning_rate": math.inf}, "learning_rate must be finite"),
        ({"decay_from": 1.5}, "decay_from must be at most 1"),
        ({"final_rate": -0.5}, "final_rate must be at least 0"),
        ({"steps": 5, "warmup_steps": 6}, "warmup_steps must be at most 5"),
        ({"momentum": 0.9}, "momentum must be 0 for adam, but is 0.9: set training.betas"),
        ({"betas": (0.9, 1.0)}, "betas must be less than 1"),
        ({"steps": 5, "keep": (0, 6)}, "keep must be at most 5, but is 6"),
        ({"clip": 0.0}, "clip must be greater than 0"),
        ({"average": -1.0}, "average must be at least 0"),
    ],
)
def test_wrong_plans_are_refused_in_a_sentence(kwargs, message):
    with pytest.raises(ArgumentError, match=message):
        Training(**kwargs)


def test_wrong_groups_are_refused_in_a_sentence():
    with pytest.raises(ArgumentError, match="weight_decay must be at least 0"):
        ParameterGroup(("*",), weight_decay=-0.1)


def test_plans_load_without_torch():
    code = (
        "import sys; from mesascope.training import ParameterGroup, Training; Training(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("kind", SCHEDULES)
def test_after_the_last_step_a_rate_stays_where_it_fell_to(kind):
    after = schedule_factor(kind, 2500, 2000, final_rate=0.1)
    assert after == pytest.approx(1.0 if kind == "constant" else 0.1)
