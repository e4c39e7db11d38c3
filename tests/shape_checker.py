"""The run-time checker behind jaxtyping's hook: beartype, with ints accepted as floats as Python's typing has it.

`jaxtyped` replaces jaxtyping's own decorator of functions. It makes the same checks of arguments and of what is
returned, with shapes shared between both, in one generated function in place of three, and takes a third of the time.
Of the calls of a function within one test, the first `MOST` are checked, and then every `MOST`-th.
"""

import functools
import inspect
import types
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import AbstractArray, TypeCheckError, config
from jaxtyping._storage import pop_shape_memo, push_shape_memo

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
original = jaxtyping.jaxtyped
MOST = 16
# Number of calls in the current test by name of function, which tests/conftest.py empties for each.
CALLS: dict[str, int] = {}
# True for functions that state shapes; by their code, as functions within functions are made again and again.
SHAPED: dict[types.CodeType, bool] = {}


def check(function):
    """Functions within functions are checked where they state shapes: a checker is compiled each time they are made."""
    return checked(function) if "<locals>" not in function.__qualname__ or shaped(function) else function


def jaxtyped(function=None, *, typechecker=None):
    if function is None:
        return lambda function: jaxtyped(function, typechecker=typechecker)
    if not isinstance(function, types.FunctionType) or inspect.isgeneratorfunction(function):
        return original(function, typechecker=typechecker)
    if "<locals>" in function.__qualname__ and (config.jaxtyping_disable or not shaped(function)):
        return function
    if not function.__annotations__:
        return function
    typed = None  # until the first call, as many functions are called by few tests or none
    name = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        __tracebackhide__ = True
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        CALLS[name] = count = CALLS.get(name, 0) + 1
        if count > MOST and count % MOST:
            return function(*args, **kwargs)
        nonlocal typed
        typed = typed or compiled(function)
        push_shape_memo({})
        try:
            return typed(*args, **kwargs)
        except BeartypeCallHintViolation as error:
            raise TypeCheckError(f"Type-check error: {error}") from error
        finally:
            pop_shape_memo()

    return wrapped


def compiled(function):
    """A copy that checks its arguments and its result: what is stated as text is resolved as jaxtyping does."""
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, hints(function)
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return checked(copy)


def shaped(function):
    if function.__code__ not in SHAPED:
        SHAPED[function.__code__] = any(map(states_shapes, hints(function).values()))
    return SHAPED[function.__code__]


def states_shapes(hint):
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(states_shapes, get_args(hint)))


def hints(function):
    """Annotations of a function. Names that do not exist at run time stand for anything, as jaxtyping has it."""
    return {name: evaluated(hint, function.__globals__) for name, hint in function.__annotations__.items()}


def evaluated(hint, names):
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, names)
    except Exception:
        return Any
