"""The run-time checker behind jaxtyping's hook: beartype, with ints accepted as floats as Python's typing has it."""

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function):
    """Functions within functions are checked where they state shapes: a checker is compiled each time they are made."""
    stated = (hint for hint in function.__annotations__.values() if isinstance(hint, type))
    outer = "<locals>" not in function.__qualname__
    return checked(function) if outer or any(issubclass(hint, AbstractArray) for hint in stated) else function
