"""The run-time checker behind jaxtyping's hook: beartype, with ints accepted as floats as Python's typing has it."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function):
    """Functions within functions are not checked: a checker would be compiled each time that they are made."""
    return function if "<locals>" in function.__qualname__ else checked(function)
