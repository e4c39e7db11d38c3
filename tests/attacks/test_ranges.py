"""Types and ranges that fields of configs and settings declare: any other value ends in one sentence."""

import dataclasses
import math
import sys
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from cases import check_each
from examples import EXAMPLES, examples
from sentences import one_sentence

from mesascope.errors import MesascopeError, shown
from mesascope.evidence import Claim, below, column, ours
from mesascope.identification import candidates
from mesascope.language.documents import Reading
from mesascope.language.learning import PRESETS
from mesascope.learners import Range
from mesascope.nets import MLPConfig
from mesascope.records import registered
from mesascope.studies.icl_gd.regression import UnseenInputs
from mesascope.tasks import LinearRegression, SwitchingImages
from mesascope.training import ParameterGroup


def checked(kind):
    return hasattr(getattr(kind, "__post_init__", None), "validates")


def declared():
    """Public classes of the loaded modules whose fields are checked, except those with a subclass."""
    modules = [module for name, module in sys.modules.items() if name.startswith("mesascope.")]
    found = {one for module in modules for one in vars(module).values() if isinstance(one, type) and checked(one)}
    public = {one for one in found if not one.__name__.startswith("_")}
    return public - {base for one in found for base in one.__mro__[1:]}


def with_nested(config):
    yield config
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(one := getattr(config, field.name)):
            yield from with_nested(one)


def configs():
    """One config of each class."""
    own = [
        MLPConfig((3, 2)),
        ParameterGroup(("*",)),
        Range(0.1, 1.0, "log"),
        candidates()[0],
        SwitchingImages(),
        Reading(),
        UnseenInputs(LinearRegression()),
        Claim("faster", "It takes less time", column("time"), below(2), ours("a test")),
    ]
    own += PRESETS.values()
    own += [build() for kind in EXAMPLES if kind not in ("construction", "lens") for _, build in examples(kind)]
    own += [settings for study in registered("study").values() for settings in study.presets.values()]
    return {type(one): one for config in own if dataclasses.is_dataclass(config) for one in with_nested(config)}


def wrong(hint):
    """Values that a type excludes: each with the rule that its sentence gives, and the part that is shown in it."""
    bounds = msgspec.Meta()
    if get_origin(hint) is Annotated:
        hint, bounds = get_args(hint)
    origin, kinds = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        options = [one for one in kinds if one is not NoneType]
        excluded = wrong(options[0]) if len(options) == 1 else [(3j, "be ", 3j)]
        yield from (case for case in excluded if case[0] is not None)
    elif origin is Literal:
        yield from each(f"be one of {', '.join(map(repr, sorted(kinds)))}", None, "unifrom", -3, [])
    elif origin is tuple and kinds[-1] is ...:
        yield from each("be a tuple", None, "a", 3)
        yield from (((value,), rule, part) for value, rule, part in wrong(kinds[0]))
    elif origin is tuple:
        yield from each("be a tuple", None, "a", 3)
        yield from each(f"have {len(kinds)} entries", (1,) * (len(kinds) + 1))
        for index, kind in enumerate(kinds):
            others = [0.5] * len(kinds)
            for value, rule, part in wrong(kind):
                yield (*others[:index], value, *others[index + 1 :]), rule, part
    elif origin is int:
        yield from each("be an integer", None, "a", 1.5, math.nan, True, [3], 3j)
        yield from beyond(bounds, 1)
    elif origin is float:
        yield from each("be a number", None, "a", True, [], 3j)
        yield from each("be finite", math.nan, math.inf, -math.inf)
        yield from beyond(bounds, 0)
    elif origin in (bool, str) or dataclasses.is_dataclass(origin):
        yield from each(f"be of type {origin.__name__}", None, 3, [], 0.0, b"no")


def beyond(bounds, step):
    """The numbers nearest to the ends of a range outside it, at a distance of ``step`` or of rounding."""
    down, up = (-step, step) if step else (-math.inf, math.inf)
    next_to = (lambda end, way: end + way) if step else math.nextafter
    if bounds.gt is not None:
        yield from each(f"be greater than {bounds.gt:g}", bounds.gt)
    if bounds.ge is not None:
        yield from each(f"be at least {bounds.ge:g}", next_to(bounds.ge, down))
    if bounds.lt is not None:
        yield from each(f"be less than {bounds.lt:g}", bounds.lt)
    if bounds.le is not None:
        yield from each(f"be at most {bounds.le:g}", next_to(bounds.le, up))


def each(rule, *values):
    return [(value, rule, value) for value in values]


def test_every_declared_type_and_range_is_checked(unchecked):
    built = configs()
    assert not {one.__qualname__ for one in declared() - built.keys()}, "classes need an example"
    cases = [
        (kind, field.name, *case)
        for kind in built if checked(kind)
        for field in dataclasses.fields(kind)
        for case in wrong(get_type_hints(kind, include_extras=True)[field.name])
    ]  # fmt: skip

    def check(case):
        kind, name, value, rule, part = case
        with pytest.raises(MesascopeError) as refusal:
            dataclasses.replace(built[kind], **{name: value})
        said = one_sentence(str(refusal.value))
        assert said.startswith(f"{name} must {rule}")
        assert f", but is {shown(part)}" in said

    check_each(check, cases)
