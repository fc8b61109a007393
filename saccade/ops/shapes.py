"""Which tensors fit to each other, read from the annotations of an operator's reference.

    x: Float[Tensor, "B H W C"], weight: Float[Tensor, "J C"], bias: Float[Tensor, "J"] | None

says how many axes each has, which of them are equally long, and that the last may be absent. A
number is an axis of that length, `*B` stands for any number of axes, and a bare Tensor may have any
shape. All are on one device.
"""

from collections.abc import Collection, Sequence
from typing import Any, get_args

from saccade.ops.precision import autocasts


class Shapes:
    """The shapes of an operator's tensors."""

    def __init__(self, annotations: dict[str, Any], one_dtype: Collection[str]):
        """Read them; tensors in `one_dtype` must have one dtype, unless autocast casts them."""
        each = [(name, _axes(annotation)) for name, annotation in annotations.items()]
        self.about = ", ".join(f"{name} is {' '.join(axes)}" for name, axes in each)
        self.names, self.alike = list(annotations), [name in one_dtype for name in annotations]
        self.optional = [type(None) in get_args(a) for a in annotations.values()]
        self.any_rank = [axes[0].startswith("*") for _, axes in each]
        self.axes = [
            axes[any_rank:] for (_, axes), any_rank in zip(each, self.any_rank, strict=True)
        ]
        self.numbers = {axis: int(axis) for axes in self.axes for axis in axes if axis.isdecimal()}

    def check(self, operator: str, tensors: Sequence[Any]) -> None:
        """Refuse tensors that do not fit, in a sentence that says how they should."""
        if not self._fit(tensors):
            pairs = zip(self.names, tensors, strict=True)
            kinds = (
                f"{n} {tuple(t.shape)} {t.dtype} {t.device}" for n, t in pairs if t is not None
            )
            dtype = ", of one dtype" if any(self.alike) else ""
            raise ValueError(
                f"{operator}: {self.about}, on one device{dtype}; got {', '.join(kinds)}"
            )

    def _fit(self, tensors: Sequence[Any]) -> bool:
        device, dtype, sizes = tensors[0].device, tensors[0].dtype, dict(self.numbers)
        for i, t in enumerate(tensors):
            if t is None and self.optional[i]:
                continue
            if t is None or t.device != device:
                return False
            if self.alike[i] and t.dtype != dtype and not autocasts(device):
                return False
            shape, axes = t.shape, self.axes[i]
            if len(shape) != len(axes):
                if not self.any_rank[i] or len(shape) < len(axes):
                    return False
                shape = shape[len(shape) - len(axes) :]
            for axis, size in zip(axes, shape, strict=True):
                if sizes.setdefault(axis, size) != size:
                    return False
        return True


def _axes(annotation: Any) -> list[str]:
    for kind in (annotation, *get_args(annotation)):
        if hasattr(kind, "dim_str"):
            return str(kind.dim_str).split()
    return ["*any"]
