"""Quantise an ONNX file: products and convolutions in eight bits, where that makes them faster."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from saccade.export.writing import needed, partial, quiet

ENOUGH = 128  # multiplications for each number in and out, for eight bits to be faster


def to_int8(
    source: str | Path, path: str | Path, images: Iterable[np.ndarray], only: Sequence[str] = ()
) -> Path:
    """The ONNX file with 8-bit products and convolutions, their ranges measured on images.

    Args:
        source: a file of `to_onnx`
        path: where to write
        images: batches, B 3 H W, on which ranges are measured
        only: names of the nodes to quantise, such as `wide_products(source)`; all if empty
    """
    quantization = needed("onnxruntime.quantization")

    class Calibration(quantization.CalibrationDataReader):
        def __init__(self):
            self.images = iter(images)

        def get_next(self) -> dict[str, np.ndarray] | None:
            image = next(self.images, None)
            return None if image is None else {"image": image}

    with partial(path) as part, quiet():
        quantization.quantize_static(
            str(source), str(part), Calibration(), per_channel=True,
            op_types_to_quantize=["Conv", "MatMul", "Gemm"], nodes_to_quantize=list(only) or None,
            extra_options={"ActivationSymmetric": False, "WeightSymmetric": True},
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )  # fmt: skip
    return Path(path)


def wide_products(source: str | Path) -> list[str]:
    """The nodes of an ONNX file with enough arithmetic per number to be faster in eight bits.

    Numbers are turned into eight bits and back one by one. A product that makes N numbers of C does
    K N / (C + N) multiplications for each of them, where K is C, or C times a window's pixels.
    """
    graph = needed("onnx").load(str(source)).graph
    weights = {tensor.name: list(tensor.dims) for tensor in graph.initializer}

    def work(node: Any) -> float:
        shape = weights.get(node.input[1], ()) if len(node.input) > 1 else ()
        group = next((a.i for a in node.attribute if a.name == "group"), 1)
        if node.op_type == "Conv" and len(shape) > 2 and group == 1:
            outputs, inputs, *window = shape
            return math.prod(window) * inputs * outputs / (inputs + outputs)
        if node.op_type in ("MatMul", "Gemm") and len(shape) == 2:
            return math.prod(shape) / sum(shape)
        return 0

    return [node.name for node in graph.node if work(node) >= ENOUGH]
