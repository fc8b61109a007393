"""Logits of a map for inference, in one call of a kernel.

y = W (mean over pixels of x) + b
"""

from timm.layers import ClassifierHead, SelectAdaptivePool2d
from torch import Tensor, fx, nn

from saccade.layers.ready import by_pixels, node
from saccade.layers.untouched import passes, untouched
from saccade.layers.walk import computes, walkable
from saccade.ops.native.pixels import MeanProduct, PixelProduct
from saccade.ops.native.residual import serves

for _kind in (ClassifierHead, SelectAdaptivePool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Dropout):
    walkable(_kind)


def classified(x: Tensor, head: nn.Module) -> Tensor:
    """head(x), of a map; in one call if it is timm's, with the mean of all pixels."""
    y = by_pixels(x, head, ready_head)
    if y is not None:
        return y.flatten(1)
    return node(classified, head(x), x, head) if isinstance(x, fx.Proxy) else head(x)


def ready_head(x: Tensor, head: nn.Module) -> MeanProduct | None:
    """The call for a head, of x in B H W C memory; None where modules must be called."""
    if type(head) is not ClassifierHead or not all(map(computes, head.modules())):
        return None
    pool, fc = head.global_pool, head.fc
    if type(pool) is not SelectAdaptivePool2d or type(pool.pool) is not nn.AdaptiveAvgPool2d:
        return None
    flat = type(pool.flatten) is nn.Flatten and pool.flatten.start_dim == 1
    if pool.pool.output_size != 1 or not flat or not passes(head.flatten):
        return None
    if type(head.drop) is not nn.Dropout or not isinstance(fc, nn.Linear) or not untouched(x, fc):
        return None
    weights = [fc.weight] if fc.bias is None else [fc.weight, fc.bias]
    if not serves(*weights):
        return None
    product = PixelProduct(fc.out_features, fc.in_features, weights, lambda: (fc.weight, fc.bias))
    return MeanProduct(product)
