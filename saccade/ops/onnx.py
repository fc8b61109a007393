"""Operators as nodes of ONNX, domain "saccade", which the kernels' library brings to ONNX Runtime.

    table = translations(program)     for torch.onnx.export(program, custom_translation_table=table)

    options.register_custom_ops_library(saccade.kernels())

The inputs of each node are described in native/src/onnxruntime.cpp. If a kernel does not take one
of the program's calls of an operator, all calls of it are written in ONNX's own operators.
"""

from collections.abc import Callable
from typing import Any

import torch
from onnx.defs import OpSchema
from onnxscript import opset18
from onnxscript.values import Op, Opset

from saccade.ops.native.residual import LANES
from saccade.ops.operator import OPERATORS

DOMAIN = "saccade"


def _node(name: str, inputs: str, **attributes: type) -> Op:
    """A node of float tensors; inputs that end in "?" may be absent."""
    optional = {True: OpSchema.FormalParameterOption.Optional}
    single = OpSchema.FormalParameterOption.Single
    kinds: dict[type, Any] = {int: OpSchema.AttrType.INT, float: OpSchema.AttrType.FLOAT}
    schema = OpSchema(
        name, DOMAIN, 1,
        inputs=[
            OpSchema.FormalParameter(
                word.rstrip("?"), "T", param_option=optional.get(word.endswith("?"), single)
            )
            for word in inputs.split()
        ],
        outputs=[OpSchema.FormalParameter("y", "T")],
        type_constraints=[("T", ["tensor(float)"], "")],
        attributes=[OpSchema.Attribute(word, kinds[kind]) for word, kind in attributes.items()],
    )  # fmt: skip
    return Op(_OPSET, name, schema)


op: Any = opset18
_OPSET = Opset(DOMAIN, 1)
_LOCAL_ATTENTION = _node("LocalAttention", "q k? v row? col?", heads=int, window=int, mask=int)
_LEARNED_QUERIES = _node(
    "LearnedQueries", "x weight bias? rpe ws? mix mix_bias?", stride=int, padding=int
)
_FEED_FORWARD = _node(
    "FeedForward", "x w1 b1 w2 b2 taps? shift? scale? offset?", tanh=int, eps=float
)
_KEY_ONLY = _node("KeyOnlyAttention", "x scale offset ask wk bk wv bv p q c", eps=float)
_BLOCKS = _node("BlockAttention", "x wq wk wv row? col? scale? shift?", heads=int, mask=int)


def translations(program: torch.export.ExportedProgram) -> dict[Any, Callable[..., Any]]:
    """How to write the operators of this program that have kernels, for torch.onnx.export."""
    table: dict[Any, Callable[..., Any]] = {}
    for name, translate in _NODES.items():
        target = getattr(torch.ops.saccade, name).default
        nodes = [node for node in program.graph.nodes if node.target is target]
        if nodes and all(_fits(name, node) for node in nodes):
            table[target] = translate
    return table


def _fits(name: str, node: torch.fx.Node) -> bool:
    inputs: list[Any] = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in node.args]
    if name == "feed_forward":  # its `takes` asks for the number of pixels, which is open here
        return len(inputs[1]) % LANES == 0
    operator = OPERATORS[name]
    return operator.kernels["native"].takes(*inputs[: operator.arity])


def _unused(y, count):
    """Stands for what operators save for a backward; nothing reads it, so no node is written."""
    return [op.Identity(y) for _ in range(count)]


def _local_attention(q, k, v, row, col, heads, window, border, *_):
    y = _LOCAL_ATTENTION(q, k, v, row, col, heads=heads, window=window, mask=int(border == "mask"))
    return y, *_unused(y, 1)


def _attend(x, weight, bias, rpe, ws, mix, mix_bias, stride, padding, *_):
    y = _LEARNED_QUERIES(x, weight, bias, rpe, ws, mix, mix_bias, stride=stride, padding=padding)
    return y, *_unused(y, 2)


def _feed_forward(x, w1, b1, taps, shift, w2, b2, tanh, *_):
    inputs = x, w1, b1, w2, b2, _by_place(taps), shift
    y = _FEED_FORWARD(*inputs, tanh=int(tanh), eps=0.0)
    return y, *_unused(y, 1)


def _feed_residual(x, scale, offset, w1, b1, taps, shift, w2, b2, tanh, eps, *_):
    inputs = x, w1, b1, w2, b2, _by_place(taps), shift, scale, offset
    return _FEED_FORWARD(*inputs, tanh=int(tanh), eps=eps)


def _by_place(taps):
    """J 1 3 3 as 9 J."""
    if taps is None:
        return None
    return op.Transpose(op.Reshape(taps, op.Constant(value_ints=[0, 9])), perm=[1, 0])


def _key_only_residual(x, scale, offset, wk, bk, wv, bv, ws, u1, b1, u2, b2, eps, *_):
    heads, C = ws.shape
    share = op.Constant(value_float=float((C // heads) ** -0.5))
    ask = op.Mul(op.MatMul(ws, wk), share)
    constant = op.Add(op.MatMul(u2, op.Add(b1, bk)), b2)
    p, q = op.MatMul(u2, u1), op.MatMul(u2, wk)
    inputs = x, scale, offset, ask, wk, bk, wv, bv, p, q, constant
    return _KEY_ONLY(*inputs, eps=eps)


def _attend_blocks(x, wq, wk, wv, row, col, heads, mask, *_):
    y = _BLOCKS(x, wq, wk, wv, row, col, heads=heads, mask=int(mask))
    return op.Transpose(y, perm=[0, 3, 1, 2])


def _maximum_of_blocks(x, wq, wk, wv, row, col, scale, shift, heads, mask, *_):
    inputs = x, wq, wk, wv, row, col, scale, shift
    y = _BLOCKS(*inputs, heads=heads, mask=int(mask))
    return op.Transpose(y, perm=[0, 3, 1, 2])


_NODES: dict[str, Callable[..., Any]] = {
    "local_attention": _local_attention,
    "attend": _attend,
    "feed_forward": _feed_forward,
    "feed_residual": _feed_residual,
    "key_only_residual": _key_only_residual,
    "attend_blocks": _attend_blocks,
    "maximum_of_blocks": _maximum_of_blocks,
}
