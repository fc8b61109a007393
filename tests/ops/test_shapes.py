import pytest
import torch

from saccade.ops import linear


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, w, b: (x, w[:, :-1], b),
        lambda x, w, b: (x, w, b[:-1]),
        lambda x, w, b: (x, w[None], b),
        lambda x, w, b: (x[0, 0], w, b.repeat(2)),
        lambda x, w, b: (x, w, b.to("meta")),
        lambda x, w, b: (x, None, b),
        lambda x, w, b: (x, w, b.double()),
        lambda x, w, b: (torch.tensor(1.0), w, b),
    ],
)
def test_shapes_are_those_of_the_annotations(wrong, untyped):
    x, w, b = torch.randn(2, 3, 4), torch.randn(5, 4), torch.randn(5)
    says = r"linear: x is \*B C, weight is D C, bias is D, on one device, of one dtype; got x \("
    with pytest.raises(ValueError, match=says):
        linear.linear(*wrong(x, w, b))
    assert linear.linear(x, w, b).shape == (2, 3, 5)
    assert linear.linear(x[0, 0], w).shape == (5,)
