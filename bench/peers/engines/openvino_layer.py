"""OpenVINO: the layer in its own operators, with ScaledDotProductAttention or as plain products and
softmax. The session measures both and keeps the faster."""

from __future__ import annotations

import numpy
import openvino
from openvino import opset13 as ops

from ..problem import Problem
from . import base

LATENCY = {
    "INFERENCE_NUM_THREADS": 1,
    "NUM_STREAMS": 1,
    "PERFORMANCE_HINT": "LATENCY",
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "ENABLE_CPU_PINNING": False,
}


Built = tuple[openvino.Model, list[numpy.ndarray]]  # and the values of its inputs


class Graph:
    """The layer as OpenVINO nodes; weights are constants, inputs are parameters."""

    def __init__(self, p: Problem, arrays: dict) -> None:
        self.p, self.arrays = p, arrays
        self.parameters, self.values = [], []

    def input(self, value: numpy.ndarray):
        node = ops.parameter(list(value.shape), numpy.float32)
        self.parameters.append(node)
        self.values.append(numpy.ascontiguousarray(value))
        return node

    def linear(self, rows, names: str):
        weight, bias = base.fused(self.arrays, names)
        product = ops.matmul(rows, ops.constant(weight), False, True)
        return product if bias is None else ops.add(product, ops.constant(bias))

    def heads(self, rows, heads: int):
        shape = ops.constant(numpy.array([0, 0, heads, -1], numpy.int64))
        return ops.transpose(ops.reshape(rows, shape, True),
                             ops.constant(numpy.array([0, 2, 1, 3], numpy.int64)))

    def split(self, rows, widths: list[int]):
        return ops.variadic_split(rows, ops.constant(numpy.int64(-1)),
                                  ops.constant(numpy.array(widths, numpy.int64))).outputs()

    def keys_and_values(self, k, v):
        """Both as [B, G, S, …], with the tokens of a cache."""
        p = self.p
        if p.kv_cache == "static":
            return (self.input(self.arrays[name]) for name in p.past)
        k, v = self.heads(k, p.kv_heads), self.heads(v, p.kv_heads)
        if p.kv_cache == "append":
            old = p.total - p.seq_len
            k, v = (ops.concat([self.input(self.arrays[past][:, :, :old]), new], 2)
                    for past, new in zip(p.past, (k, v)))
        return k, v

    def projected(self):
        """q, k, v with the heads first, one key head for each group of query heads."""
        p, x = self.p, self.input(self.arrays["x"])
        k = v = None
        if p.self_attention:
            q, k, v = self.split(self.linear(x, "qkv"), [p.q_width, p.k_width, p.v_width])
        else:
            q = self.linear(x, "q")
            if p.projects_kv:
                rows = self.input(self.arrays["context"])
                k, v = self.split(self.linear(rows, "kv"), [p.k_width, p.v_width])
        return (self.heads(q, p.heads), *self.keys_and_values(k, v))

    def repeated(self, part, width: int):
        """Key heads repeated for their group of query heads, the way exported models do it."""
        p = self.p
        group = p.heads // p.kv_heads
        if group == 1:
            return part
        length = p.total if p.kv_cache == "append" else p.kv_len
        shape = [p.batch, p.kv_heads, group, length, width]
        wide = ops.broadcast(ops.unsqueeze(part, ops.constant(numpy.int64(2))),
                             ops.constant(numpy.array(shape, numpy.int64)))
        return ops.reshape(wide, ops.constant(
            numpy.array([p.batch, p.heads, length, width], numpy.int64)), False)

    def keep(self):
        keep = base.keep_mask(self.p)
        if keep is not None and self.p.kv_cache == "append":
            keep = keep[..., :self.p.total]
        return None if keep is None or keep.all() else keep

    def model(self, context) -> openvino.Model:
        p = self.p
        rows = ops.reshape(
            ops.transpose(context, ops.constant(numpy.array([0, 2, 1, 3], numpy.int64))),
            ops.constant(numpy.array([0, 0, -1], numpy.int64)), True)
        y = self.linear(rows, "o") if p.output_projection else rows
        return openvino.Model([y], self.parameters, "layer")


def additive(keep: numpy.ndarray):
    return ops.constant(numpy.where(keep, 0.0, -numpy.inf).astype(numpy.float32))


def fused_graph(p: Problem, arrays: dict) -> Built:
    g = Graph(p, arrays)
    q, k, v = g.projected()
    keep = None if p.plainly_causal else g.keep()
    # A scale needs a mask before it; a scalar 0 is none.
    mask = ops.constant(numpy.float32(0.0)) if keep is None else additive(keep)
    context = ops.scaled_dot_product_attention(
        q, g.repeated(k, p.head_dim), g.repeated(v, p.v_head_dim), mask,
        ops.constant(numpy.float32(p.scale)), causal=p.plainly_causal and p.seq_len > 1)
    return g.model(context), g.values


def plain_graph(p: Problem, arrays: dict) -> Built:
    g = Graph(p, arrays)
    q, k, v = g.projected()
    scores = ops.multiply(ops.matmul(q, g.repeated(k, p.head_dim), False, True),
                          ops.constant(numpy.float32(p.scale)))
    keep = g.keep()
    if keep is not None:
        scores = ops.add(scores, additive(keep))
    context = ops.matmul(ops.softmax(scores, -1), g.repeated(v, p.v_head_dim), False, False)
    return g.model(context), g.values


FORMS = {"ScaledDotProductAttention": fused_graph, "plain graph": plain_graph}


def layer_of(model: openvino.Model, values: list[numpy.ndarray]) -> base.Layer:
    """The model with its inputs set once."""
    request = openvino.Core().compile_model(model, "CPU", LATENCY).create_infer_request()
    for index, value in enumerate(values):
        request.set_input_tensor(index, openvino.Tensor(value, shared_memory=True))

    def output() -> numpy.ndarray:
        request.infer()
        return request.get_output_tensor(0).data.copy()

    layer = base.Layer(request.infer, output)
    layer.values = values  # shared with the request
    return layer


def empty(_options: dict) -> base.Layer:
    """The library with next to nothing to do: what a call costs by itself."""
    x = ops.parameter([1], numpy.float32)
    return layer_of(openvino.Model([ops.relu(x)], [x], "empty"), [numpy.ones(1, numpy.float32)])


def describe(_options: dict) -> str:
    return openvino.__version__.split("-")[0]


def variants(p: Problem, directory, _options: dict) -> dict:
    arrays = base.load(p, directory)
    return {name: (lambda form=form: layer_of(*form(p, arrays))) for name, form in FORMS.items()}
