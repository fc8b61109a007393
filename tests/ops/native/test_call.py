import ctypes
from pathlib import Path

import pytest
import torch

from saccade.ops import native
from saccade.ops.native import call, header

pytestmark = pytest.mark.skipif(not native.available(), reason=native.where())


def layout():
    count = ctypes.c_int64()
    return native.library().saccade_layout(count)[: count.value]


def linear(**changes):
    """A product of four pixels, and what keeps its memory."""
    x, w, y = torch.randn(4, 3), torch.randn(5, 3), torch.zeros(4, 5)
    sizes = {"threads": 1, "batches": 1, "rows": 4, "inputs": 3, "outputs": 5}
    pointers = {"x": x.data_ptr(), "w": w.data_ptr(), "y": y.data_ptr()}
    fields = sizes | pointers | {"w_output": 3, "w_input": 1} | changes
    return call.Linear(**fields), (x, w, y)


def test_the_compiler_and_ctypes_put_every_field_at_the_same_place():
    numbers = layout()
    fields = sum(map(len, header.read().structures.values()))
    assert len(numbers) == 2 * fields + 2 * len(call.STRUCTURES)
    assert list(call.differences(numbers)) == []


def test_every_number_of_the_layout_counts():
    numbers = layout()
    for i in range(len(numbers)):
        other = [*numbers[:i], numbers[i] + 4, *numbers[i + 1 :]]
        assert list(call.differences(other)), i
    assert list(call.differences(numbers[:-1]))
    assert list(call.differences([*numbers, 8]))


def test_a_library_with_another_layout_is_not_called(monkeypatch):
    """As after a change of the header that the library has not seen."""

    class Linear(ctypes.Structure):
        first, second, *rest = call.Linear._fields_
        _fields_ = (*rest, first, second)

    monkeypatch.setitem(call.STRUCTURES, "Linear", Linear)
    with pytest.raises(native.RefusedError, match=r"laid out otherwise: Linear\.\w+ is 4 bytes"):
        native._load(Path(native.library()._name))


def test_a_structure_of_another_size_is_not_read():
    one, (x, w, y) = linear()
    function = native.library().saccade_linear_forward
    size = ctypes.sizeof(one)
    codes = [function(one, n) for n in (0, size - 8, size + 8, size)]
    assert codes == [2, 2, 2, 0]
    torch.testing.assert_close(y, x @ w.mT)


@pytest.mark.parametrize(
    "change", [{"threads": 0}, {"rows": -1}, {"inputs": 0}, {"w": None}, {"y": None}]
)
def test_a_call_outside_the_limits_is_refused_with_its_sizes(change):
    one, (_, _, y) = linear(**change)
    sizes = " ".join(f"{name}={getattr(one, name)}" for name in ("threads", "batches", "rows"))
    with pytest.raises(ValueError, match=f"saccade_linear_forward: .* got {sizes}"):
        call.run("saccade_linear_forward", one)
    assert not y.any()


@pytest.mark.parametrize("window", [0, 1, 2, 4, call.LIMITS["sasa_window"] + 2, -3])
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_window_that_does_not_fit_the_kernels_is_refused(window, way):
    q = torch.randn(1, 4, 5, 5)
    maps = dict.fromkeys(("q", "k", "v", "out", "gout", "dq", "dk", "dv"), call.Map.of(q))
    one = call.Sasa(0, 1, 1, 2, 2, 5, 5, window, 0, 1, **maps)
    with pytest.raises(ValueError, match=f"saccade_sasa_{way}: .* window={window} "):
        call.run(f"saccade_sasa_{way}", one)


def test_an_empty_batch_leaves_nothing_but_zeros_for_the_tables():
    d, window = 4, 3
    tables = [torch.ones(1, window, d // 2) for _ in range(4)]
    row, col, drow, dcol = (t.data_ptr() for t in tables)
    one = call.Sasa(0, 1, 0, 2, d, 5, 5, window, 0, 1, row=row, col=col, drow=drow, dcol=dcol)
    call.run("saccade_sasa_forward", one)
    call.run("saccade_sasa_backward", one)
    assert not tables[2].any()
    assert not tables[3].any()


def test_one_matrix_may_serve_images_that_have_a_bias_each():
    x, w, b = torch.randn(3, 4, 6), torch.randn(5, 6), torch.randn(3, 5)
    y = torch.empty(3, 4, 5)
    one = call.Linear(1, 3, 4, 6, 5, x.data_ptr(), w.data_ptr(), 0, 6, 1, b.data_ptr(), 5)
    one.y = y.data_ptr()
    call.run("saccade_linear_forward", one)
    torch.testing.assert_close(y, x @ w.mT + b[:, None])
