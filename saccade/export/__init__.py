"""Export a trained model to a file that runs elsewhere, checked against the model.

    ready = prepared(task)                a copy in eval mode, re-parameterised, norms folded in
    to_onnx(ready, "net.onnx", about)     ONNX, for onnxruntime and the rest of the world
    to_torch(ready, "net.pt2", about)     torch.export, for torch without saccade
    to_aot(ready, "net.aot.pt2", about)   compiled ahead of time, for torch without a compiler
    worst = apart(Raw(task), runner(path))    the largest difference over random sizes

Batch, height and width stay free. Outputs are the task's raw tensors; what makes boxes or masks of
them stays outside the graph. `about` (names, classes, normalisation) travels inside the file.
"""

from saccade.export.check import CLOSE, apart, figures
from saccade.export.formats import program, to_aot, to_onnx, to_torch
from saccade.export.int8 import ENOUGH, to_int8, wide_products
from saccade.export.prepare import fold_norms, prepared
from saccade.export.raw import Raw
from saccade.export.runners import ENDINGS, Run, compiled, runner, runner_of
from saccade.export.writing import partial

__all__ = [
    "CLOSE", "ENDINGS", "ENOUGH", "Raw", "Run", "apart", "compiled", "figures", "fold_norms",
    "partial", "prepared", "program", "runner", "runner_of", "to_aot", "to_int8", "to_onnx",
    "to_torch", "wide_products",
]  # fmt: skip
