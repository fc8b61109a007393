"""The base class of detectors and segmenters: a backbone, and layers on its maps.

`net.backbone` can start from a classifier's weights, and may have its own learning rate;
`net.arguments` build the network again; `net.default_cfg` is timm's config of the backbone.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn


class Maps(Protocol):
    """A backbone: an image in, maps out, finest first."""

    widths: tuple[int, ...]
    strides: tuple[int, ...]

    def __call__(self, image: Tensor) -> list[Tensor]: ...


class DenseNetwork(nn.Module, ABC):
    """A backbone, and the layers that predict boxes (or a mask) from its maps."""

    kind: ClassVar[str]  # the module that builds it
    body: ClassVar[str]  # where the backbone's own parameters begin, as their names say
    default_cfg: dict[str, Any] = {}  # noqa: RUF012  (timm's word; `build` sets it)
    arguments: dict[str, Any] = {}  # noqa: RUF012
    num_classes: int
    fused = False

    @abstractmethod
    def backbone_from(self, source: nn.Module) -> None:
        """Start with the backbone of a classifier or a detector of the same architecture."""

    @abstractmethod
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the backbone's blocks in backward instead of keeping what they computed."""

    def describe(self) -> dict[str, Any]:
        """The arguments from which `build` makes this network again."""
        return {"kind": self.kind, **self.arguments, "fused": self.fused}

    def fuse(self) -> "DenseNetwork":
        """Re-parameterise for deployment, exactly: fewer parameters, the same function."""
        for module in list(self.modules()):
            fuse = getattr(module, "fuse", None)
            if callable(fuse) and module is not self:
                fuse()
        self.fused = True
        return self

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Depths for layer decay: the backbone's stages, then all other layers."""
        body = re.escape(self.body)
        names = [name.removeprefix(self.body) for name, _ in self.named_parameters()]
        if any(name.startswith("stages.") and ".blocks." in name for name in names):  # saccade's
            stage = rf"^{body}stages\.(\d+)"
            blocks = stage if coarse else [
                (stage + r"\.down", (0,)),
                (stage + r"\.blocks\.(\d+)", None),
                (stage + r"\.norm", (99999,)),
            ]  # fmt: skip
            return {"stem": rf"^{body}stem", "blocks": blocks}
        stage = rf"^{body}(?:layers?|stages?|blocks)[._]?(\d+)"
        if not any(re.match(stage, name) for name, _ in self.named_parameters()):
            raise ValueError(
                "optim.layer_decay: this backbone's parameters do not tell their depth; "
                "set optim.layer_decay=null"
            )
        return {"stem": rf"^{body}(?:stem|conv1|bn1|conv_stem|patch_embed)", "blocks": stage}

    def no_weight_decay(self) -> set[str]:
        """Names of what layers declare `undecayed`, such as position tables."""
        return {
            f"{path}.{name}"
            for path, module in self.named_modules()
            for name in getattr(module, "undecayed", ())
        }


def split_arguments(
    names: Sequence[str], settings: Any, words: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A detector's own arguments, and those of its backbone.

    With settings (a recipe's task, or a dict), all words are the backbone's: it too may have
    `heads`. Without, those that the detector knows are its own.
    """
    if isinstance(settings, dict):
        return dict(settings), words
    if settings is not None:
        return {name: getattr(settings, name) for name in names}, words
    own = {name: value for name, value in words.items() if name in names}
    return own, {name: value for name, value in words.items() if name not in names}
