"""What the server of processes imports once, so that none of its runs does it again.

A process that is forked from it trains from its first moment on, and ends by SIGKILL as any other.
"""

import gc
import importlib

from PIL import Image

for name in (
    "tools.campaign.runs", "saccade.report.write", "saccade.tasks.detect.retinanet",
    "saccade.tasks.detect.average_precision", "faster_coco_eval", "numpy.ma", "numpy.ctypeslib",
):  # fmt: skip
    importlib.import_module(name)
Image.init()
gc.freeze()  # or each process would visit, and so copy, all that the server imported
