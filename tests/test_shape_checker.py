"""The checks that every other test runs under refuse wrong shapes, wrong types and wrong results."""

import pytest
import shape_checker
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from mesascope.identification.verdict import difference


def jaxtyped(function):
    return shape_checker.jaxtyped(function, typechecker=shape_checker.check)


def doubled(x: Float[Tensor, "n d"], y: "Float[Tensor, 'n d']", scale: float = 2) -> Float[Tensor, " n"]:
    return scale * (x + y).sum(-1) if scale > 0 else (x + y).sum(0)


def test_arguments_and_results_share_their_shapes():
    function = jaxtyped(doubled)
    assert function(torch.ones(2, 3), torch.ones(2, 3)).tolist() == [12, 12]
    with pytest.raises(TypeCheckError, match="Type-check error"):
        function(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(TypeCheckError):
        function(torch.ones(2, 3), torch.ones(2, 3), "2")
    with pytest.raises(TypeCheckError, match="return"):
        function(torch.ones(2, 3), torch.ones(2, 3), -1)


def test_of_many_calls_some_are_checked():
    function, refused = jaxtyped(doubled), 0
    for _ in range(10 * shape_checker.MOST):
        try:
            function(torch.ones(2, 3), torch.ones(2, 4)[:, :3], "2")
        except TypeCheckError:
            refused += 1
        except TypeError:
            pass
    assert refused == shape_checker.MOST + 9


def test_functions_within_functions_are_checked_where_they_state_shapes():
    def inner(x: Float[Tensor, " n"]) -> None: ...

    def plain(x: int) -> None: ...

    assert jaxtyped(plain) is plain
    with pytest.raises(TypeCheckError):
        jaxtyped(inner)(torch.ones(2, 3))


def test_mesascope_is_checked_unless_a_test_calls_it_as_users_do(monkeypatch):
    with pytest.raises(TypeCheckError):
        difference(torch.zeros(3), torch.zeros(4), 0.1)
    monkeypatch.setattr(shape_checker.config, "jaxtyping_disable", True)
    with pytest.raises(RuntimeError):
        difference(torch.zeros(3), torch.zeros(4), 0.1)
