"""saccade: attention in a vision backbone at the price of a convolution.

    import saccade
    model = saccade.build("linglo_b0", num_classes=10)

Importing it registers every variant with timm.
"""

from saccade.models.saved import load, save
from saccade.models.zoo import build, names
from saccade.version import __version__

__all__ = ["__version__", "build", "load", "names", "save"]
