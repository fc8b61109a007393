"""The checks of types and shapes that every test runs with."""

import pytest
import torch
from beartype import BeartypeConf, beartype
from jaxtyping import Float

from saccade.engine.run import Run
from saccade.layers import KeyOnlyAttention
from saccade.recipes.recipe import Loop
from saccade.tasks.figures import formatted
from tests import type_checks


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        (lambda: formatted("loss", "1.5"), "value"),
        (lambda: Run.open(3), "folder"),
        (lambda: Loop(batch="8"), "batch"),
        (lambda: KeyOnlyAttention(8, 2).weights([1.0]), "x"),
    ],
)
def test_a_value_of_another_type_is_refused(call, wrong):
    with pytest.raises(TypeError) as refused:
        call()
    assert wrong in str(refused.value)


def test_a_tensor_of_another_shape_is_refused():
    from saccade.tasks.fidelity import psnr

    with pytest.raises(TypeError, match="Float"):
        psnr(torch.zeros(2, 3, 8), torch.zeros(2, 3, 8))


def test_results_are_checked_too(monkeypatch):
    from saccade.tasks import figures

    monkeypatch.setattr(figures, "FIGURES", {"loss": 3})
    with pytest.raises(TypeError, match="return"):
        figures.figure("loss")


def test_functions_keep_their_names_and_their_code():
    assert formatted.__module__ == "saccade.tasks.figures"
    assert formatted.__wrapped__.__code__.co_name == "formatted"


def test_only_arrays_need_the_shapes():
    array = Float[torch.Tensor, "B C"]
    named = [array, list[array], array | None, dict[str, tuple[array, ...]], "Float[Tensor, 'B']"]
    assert all(map(type_checks.names_arrays, named))
    assert not any(map(type_checks.names_arrays, [int, list[str], torch.Tensor, str | None]))


def pairs(f):
    """A function of a map that gives one of the same shape, checked."""
    array = Float[torch.Tensor, "B C"]

    def pair(x, scale=1):
        return f(x)

    pair.__annotations__ = {"x": array, "scale": int, "return": array}
    return type_checks.once(pair, beartype(conf=BeartypeConf(violation_type=TypeError)))


def test_what_differs_from_the_calls_before_is_checked_again():
    results = [torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(2, 3)]
    function, x = pairs(lambda _: results.pop(0)), torch.zeros(2, 3)
    for _ in range(2):
        assert function(x) is not x
    with pytest.raises(TypeError, match="return"):
        function(x)  # the same arguments with a result of another shape
    for wrong in (torch.zeros(2, 3, 4), [x], torch.zeros(2, 3, dtype=torch.int64)):
        with pytest.raises(TypeError, match=r"\bx\b"):
            function(wrong)
    with pytest.raises(TypeError, match="scale"):
        function(x, scale="1")
    assert len(results) == 1, "refused before the function ran"


def test_a_function_runs_once_a_call_and_its_errors_come_through():
    calls = []

    def double(x):
        calls.append(x)
        if len(calls) == 3:
            raise KeyError("third")
        return 2 * x

    function, x = pairs(double), torch.ones(2, 3)
    assert [function(x).sum().item() for _ in range(2)] == [12, 12]
    with pytest.raises(KeyError, match="third"):
        function(x)
    assert len(calls) == 3
