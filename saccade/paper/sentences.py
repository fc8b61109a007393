"""Check sentences of the papers against their own tables: how much better, and which is best.

The numbers in these sentences are claims that follow from other printed cells of the same paper.
"""

from collections.abc import Callable

from saccade.paper import Claim

Printed = Callable[[str, str], list[Claim]]  # (name, what): the cells that print it

NO_ROW = "Table 2 has no row of PVT-Small, so its accuracy is another paper's"
BEST_K = (
    "the poster names k = 11, where Table 4 prints 77.6%; its best is k = 9, with 77.7%. That a "
    "larger extent helps from k = 3 on, as the poster says, holds for both"
)


def _above(where: str, what: str, other: str, printed: str, unmeasured: str = "") -> Claim:
    return Claim(where, f"{what} above {other}'s", printed, unmeasured=unmeasured)


def _fewer(where: str, other: str) -> Claim:
    return Claim(where, f"fewer parameters than {other}", "yes")


def _higher(where: str, what: str, *others: str) -> tuple[Claim, ...]:
    return tuple(Claim(where, f"higher {what} than {other}", "yes") for other in others)


_TOP1 = "top-1 at 100 epochs"

CLAIMS: dict[str, dict[str, tuple[Claim, ...]]] = {
    "linglo": {
        "linglo_b0": (
            *_higher("5.1", _TOP1, "linglo_b0_chhh"),
            *_higher("5.3", _TOP1, "linglo_b0_rcpe", "linglo_b0_pcpe"),
        ),
        "linglo_b0_chhh": _higher("5.1", _TOP1, "linglo_b0_cchh"),
        "linglo_b0_rcpe": _higher("5.3", _TOP1, "linglo_b0_cpe"),
        "linglo_b0_pcpe": _higher("5.3", _TOP1, "linglo_b0_cpe"),
        "linglo_b1": (_above("§4.1", "top-1", "pvt_tiny", "4.6%"),),
        "linglo_b2": (
            _above("§4.1", "top-1", "pvt_small", "2.9%", NO_ROW),
            _above("§4.1", "top-1", "swin_tiny", "1.4%"),
            _above("§4.1", "top-1", "convnext_tiny", "0.6%"),
            _fewer("§4.1", "swin_tiny"),
            _fewer("§4.1", "convnext_tiny"),
        ),
        "linglo_b1_retinanet": (_above("§4.2", "AP", "pvt_tiny_retinanet", "4.8"),),
        "linglo_b2_retinanet": (
            _above("§4.2", "AP", "pvt_small_retinanet", "4.3"),
            _above("§4.2", "AP", "swin_tiny_retinanet", "3.2"),
            _fewer("§4.2", "swin_tiny_retinanet"),
        ),
        "linglo_b1_semantic_fpn": (_above("§4.3", "mIoU", "pvt_tiny_semantic_fpn", "6.8"),),
        "linglo_b2_semantic_fpn": (
            _above("§4.3", "mIoU", "pvt_small_semantic_fpn", "5.4"),
            _above("§4.3", "mIoU", "swin_tiny_semantic_fpn", "3.7"),
            _fewer("§4.3", "swin_tiny_semantic_fpn"),
        ),
    },
    "qna": {},
    "sasa": {
        **{
            f"sasa_resnet{depth}": (
                _fewer("poster", f"sasa_resnet{depth}_conv"),
                *_higher("poster", "top-1", f"sasa_resnet{depth}_conv"),
            )
            for depth in (26, 38, 50)
        },
        "sasa_resnet50_k11": _higher("poster", "top-1", "sasa_resnet50_k3"),
        "sasa_resnet50_convstem": (
            _above("poster", "val acc", "sasa_resnet50_abspos", "2%"),
            Claim("poster", "best k", "11", differs=BEST_K),
        ),
    },
}
EXTENTS = {"sasa_resnet50_convstem": 7} | {f"sasa_resnet50_k{k}": k for k in (3, 5, 9, 11)}


def measure(name: str, claim: Claim, printed: Printed) -> float | int | str | None:
    """What the printed cells give for a sentence."""
    if claim.what.startswith("fewer parameters than "):
        own, other = (_parameters(n, printed) for n in (name, claim.what.rpartition(" ")[2]))
        return "yes" if own < other else "no"
    if claim.what.startswith("higher "):
        what, _, other = claim.what.removeprefix("higher ").rpartition(" than ")
        return "yes" if _number(name, what, printed) > _number(other, what, printed) else "no"
    if claim.what == "best k":
        best = max(EXTENTS, key=lambda net: _number(net, "top-1", printed))
        return EXTENTS[best]
    if claim.unmeasured:
        return None
    what, _, other = claim.what.partition(" above ")
    return _number(name, what, printed) - _number(other.removesuffix("'s"), what, printed)


def _parameters(name: str, printed: Printed) -> float:
    what = "params" if printed(name, "params") else "deployed backbone params"
    return _number(name, what, printed)


def _number(name: str, what: str, printed: Printed) -> float:
    (number,) = {claim.number for claim in printed(name, what)}
    assert number is not None
    return number
