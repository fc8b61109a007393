"""A whole network's inference as one row of kernel calls, where all its parts are made ready.

    maps = walked(x, net, compute)       compute(x), a list of maps; None where it is to be called

When a network meets images of one shape again, its kernel calls are noted (`ops.native.walk`), and
from then on made without Python between them. What `Watch` asks of a layer's parts it asks of the
whole network, and the contents of all weights are compared: whatever changed, modules are called.
Modules are also called in a network with a module whose class is not declared `walkable`.

Networks in bfloat16, and those under autocast to it, are walked in fp32, with products of bfloat16
where the processor has such: their weights are those of a copy in fp32, made anew if they change.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from saccade.layers.ready import Watch, unseen
from saccade.layers.untouched import as_built, built, note_methods
from saccade.ops import native
from saccade.ops.native.linear import pays
from saccade.ops.native.residual import NUMBERS
from saccade.ops.native.walk import Recorder, Walk

Kind = TypeVar("Kind", bound=nn.Module)
Compute = Callable[[Any, Tensor], Sequence[Tensor]]

SHAPES = 4  # of images for which walks are kept
_WALKABLE: dict[type[nn.Module], object] = {}


def walkable(kind: type[Kind]) -> type[Kind]:
    """Declare that modules of this class only compute, so that a walk may pass them by."""
    _WALKABLE[kind] = kind.forward
    return note_methods(kind)


class Walks:
    """The walks through one network, and when to make them; the network holds it.

    Copies of the network and saved networks have none.
    """

    def __init__(self) -> None:
        self.calls: dict[Any, int] = {}  # of shapes for which there is no walk
        self.walks: dict[Any, _Known] = {}

    def __reduce__(self) -> Any:
        return type(None), ()


class _Known:
    """A walk, the watch over the network, and the types of its maps."""

    def __init__(self, walk: Walk, net: nn.Module, alive: Any, dtypes: list[torch.dtype]):
        self.walk, self.watch, self.alive, self.dtypes = walk, Watch(net), alive, dtypes


def walked(x: Tensor, net: nn.Module, compute: Compute, name: str = "") -> list[Tensor] | None:
    """compute(net, x), of x with channels last, by one call; None where modules are to be called.

    They are at first: a walk is made when a shape comes again.

    Args:
        x: B C H W
        net: all that `compute` is made of
        compute: maps, of x in any dtype; called with `net`, or a copy of it
        name: of what is computed, where of one net there are several such
    """
    if not quiet(x):
        return None
    cast = torch.is_autocast_enabled("cpu")
    walks = net.__dict__.get("_walks")
    if walks is None:
        walks = net.__dict__["_walks"] = Walks()
    key = name, x.shape, x.dtype, cast, torch.get_num_threads(), native.uses
    walk = walks.walks.get(key)
    if walk is not None:
        if walk.watch.holds(net) and walk.walk.current():
            maps = walk.walk(_laid_out(x).float())
            if maps is None:
                return None
            return [y.to(dtype) for y, dtype in zip(maps, walk.dtypes, strict=True)]
        walks.walks.pop(key, None)
        walks.calls.pop(key, None)
    count = walks.calls[key] = walks.calls.get(key, 0) + 1
    if count > 1 and count & (count - 1) == 0 and _plain(net):  # at call 2, 4, 8, ...
        walk = _make(_laid_out(x), net, compute, cast)
        if walk is not None:
            if len(walks.walks) >= SHAPES:
                walks.walks.pop(next(iter(walks.walks)), None)
            walks.walks[key] = walk
    if len(walks.calls) > 16 * SHAPES:
        walks.calls.clear()
    return None


def quiet(x: Tensor) -> bool:
    """Whether a walk may take the place of what is called on x: nobody would notice."""
    if not unseen(x) or not pays() or x.ndim != 4:
        return False
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return False
    return x.dtype in (torch.float32, torch.bfloat16) and x.numel() > 0


def _laid_out(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def computes(module: nn.Module) -> bool:
    """Whether it only computes, in eval mode, and nobody hooked it; its parts are not asked."""
    known = as_built(module, _WALKABLE) or built(module)
    return known and (not module.training or type(module) is nn.ModuleList)  # which has no mode


def _plain(net: nn.Module) -> bool:
    return all(map(computes, net.modules()))


def _make(x: Tensor, net: nn.Module, compute: Any, cast: bool) -> _Known | None:
    half = cast or x.dtype == torch.bfloat16
    dtypes = [y.dtype for y in compute(net, x)] if half else []
    if any(p.dtype != x.dtype for p in net.parameters()) and not cast:
        return None
    through = net
    if any(t.dtype == torch.bfloat16 for t in net.parameters()):
        try:
            through = copy.deepcopy(net).float()
        except Exception:  # whatever a stranger's attribute raises
            return None
    with torch.autocast("cpu", enabled=False):
        wide, probe = x.float(), _probe(x)
        for image in (wide, probe):
            compute(through, image)  # layers make their calls ready
        stays = wide, *through.parameters(), *through.buffers(), *NUMBERS.values()
        with Recorder(half, stays) as recorder:
            maps = compute(through, wide)
        with Recorder(half):
            expected = compute(through, probe)
    if any(y.untyped_storage().data_ptr() == wide.untyped_storage().data_ptr() for y in maps):
        return None
    try:
        walk = Walk(recorder, wide, maps)
    except ValueError:
        return None
    del maps
    results = walk(probe) if walk.fits else None
    if results is None or not all(map(torch.equal, results, expected)):
        return None
    weights = [t for t in (*net.parameters(), *net.buffers()) if t.is_floating_point()]
    if through is not net:
        walk.watch_contents(weights)
    calls = [module.__dict__.get("_ready") for module in through.modules()]
    dtypes = dtypes or [torch.float32] * len(results)
    return _Known(walk, net, (calls, through, weights), dtypes)


def _probe(x: Tensor) -> Tensor:
    """A fixed image, made without any generator of random numbers."""
    count = torch.arange(x.numel(), dtype=torch.float32)
    flat = (count * 0.7391).remainder(2.31) - 1.07
    B, C, H, W = x.shape
    return flat.view(B, H, W, C).permute(0, 3, 1, 2)
