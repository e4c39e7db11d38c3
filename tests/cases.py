"""Tables of cases within one test: every case is checked, and one failure lists all that do not pass."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

__all__ = ["check_each", "in_turn"]

_PARAM = type(pytest.param())


def check_each(check: Callable[[Any], object], cases: Iterable[Any]) -> None:
    """Check every case; raises AssertionError with each case that fails and its reason.

    For sentences and other checks of a millisecond, which cost several as tests of their own.
    """
    checked, failed = 0, []
    for case in cases:
        checked += 1
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:
            failed.append(f"{case}: {type(error).__name__}: {error}")
    assert checked, "there must be a case"
    assert not failed, f"{len(failed)} of {checked} cases fail:\n" + "\n".join(failed)


def in_turn(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The decorator `pytest.mark.parametrize` for cases of one test; its fixtures are the same for all of them.

    Below a decorator of the same kind every combination is checked.
    """
    own = [names] if isinstance(names, str) else list(names)
    table = [case.values if isinstance(case, _PARAM) else [case] if isinstance(names, str) else case for case in cases]

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_of_them(**fixtures: Any) -> None:
            def check(case: Any) -> None:
                test(**fixtures, **dict(zip(own, case, strict=True)))

            check_each(check, table)

        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in own]
        all_of_them.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return all_of_them

    return decorated
