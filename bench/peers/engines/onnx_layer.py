"""ONNX Runtime: its own fused operators where they fit, the standard Attention operator, and the
graph of plain operators that exporters write. The session measures all and keeps the fastest."""

from __future__ import annotations

import numpy
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ..problem import Problem, Unsupported
from . import base

CONTRIB = "com.microsoft"


class Graph:
    """A model under construction: nodes in order, weights as initializers."""

    def __init__(self, p: Problem, arrays: dict) -> None:
        self.p, self.arrays = p, arrays
        self.nodes, self.initializers, self.inputs = [], [], {}
        self._names = 0

    def fresh(self) -> str:
        self._names += 1
        return f"t{self._names}"

    def constant(self, value) -> str:
        name = self.fresh()
        self.initializers.append(numpy_helper.from_array(numpy.ascontiguousarray(value), name))
        return name

    def input(self, name: str, value: numpy.ndarray) -> str:
        self.inputs[name] = numpy.ascontiguousarray(value)
        return name

    def node(self, kind: str, inputs: list[str], outputs: int = 1, domain: str = "",
             **attributes):
        names = [self.fresh() for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def linear(self, rows: str, names: str) -> str:
        """Product with the weights of one or several projections, bias added."""
        weight, bias = base.fused(self.arrays, names)
        product = self.node("MatMul", [rows, self.constant(weight.T)])
        return product if bias is None else self.node("Add", [product, self.constant(bias)])

    def split(self, rows: str, widths: list[int]) -> list[str]:
        sizes = self.constant(numpy.array(widths, numpy.int64))
        return self.node("Split", [rows, sizes], outputs=len(widths), axis=-1)

    def projections(self) -> tuple[str, str, str]:
        """q [B,L,H*D], k and v; the last two are the cache's tensors where they are given."""
        p, x = self.p, self.input("x", self.arrays["x"])
        if p.self_attention:
            return tuple(self.split(self.linear(x, "qkv"), [p.q_width, p.k_width, p.v_width]))
        q = self.linear(x, "q")
        if p.projects_kv:
            context = self.input("context", self.arrays["context"])
            return (q, *self.split(self.linear(context, "kv"), [p.k_width, p.v_width]))
        return (q, *(self.input(name, self.arrays[name]) for name in p.past))

    def finish(self, rows: str) -> None:
        if self.p.output_projection:
            rows = self.linear(rows, "o")
        self.nodes.append(helper.make_node("Identity", [rows], ["y"]))

    def model(self, opset: int) -> bytes:
        kinds = {name: helper.np_dtype_to_tensor_dtype(value.dtype)
                 for name, value in self.inputs.items()}
        inputs = [helper.make_tensor_value_info(name, kinds[name], value.shape)
                  for name, value in self.inputs.items()]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, self.p.y_shape)]
        graph = helper.make_graph(self.nodes, "layer", inputs, outputs, self.initializers)
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def heads_first(g: Graph, rows: str, heads: int) -> str:
    shape = g.constant(numpy.array([0, 0, heads, -1], numpy.int64))
    return g.node("Transpose", [g.node("Reshape", [rows, shape])], perm=[0, 2, 1, 3])


def rows_first(g: Graph, heads: str) -> str:
    shape = g.constant(numpy.array([0, 0, -1], numpy.int64))
    return g.node("Reshape", [g.node("Transpose", [heads], perm=[0, 2, 1, 3]), shape])


def with_cache(g: Graph, k: str, v: str) -> tuple[str, str]:
    """k and v in heads-first form, the old tokens of a growing cache before the new ones."""
    p = g.p
    if p.kv_cache == "static":
        return k, v
    k, v = heads_first(g, k, p.kv_heads), heads_first(g, v, p.kv_heads)
    if p.kv_cache == "append":
        old = p.total - p.seq_len
        k, v = (g.node("Concat", [g.input(past, g.arrays[past][:, :, :old]), new], axis=2)
                for past, new in zip(p.past, (k, v)))
    return k, v


def visible(p: Problem) -> numpy.ndarray | None:
    """The keep mask over the keys that the graph has."""
    keep = base.keep_mask(p)
    if keep is not None and p.kv_cache == "append":
        keep = keep[..., :p.total]
    return None if keep is None or keep.all() else keep


def additive(keep: numpy.ndarray) -> numpy.ndarray:
    return numpy.where(keep, numpy.float32(0), numpy.float32(-numpy.inf)).astype(numpy.float32)


def plain_graph(p: Problem, arrays: dict) -> tuple[Graph, int]:
    g = Graph(p, arrays)
    q, k, v = g.projections()
    q = heads_first(g, q, p.heads)
    k, v = with_cache(g, k, v)
    group = p.heads // p.kv_heads
    keep = visible(p)
    if group > 1:  # the group's queries as further rows of its key head
        grouped = g.constant(numpy.array([0, p.kv_heads, group * p.seq_len, -1], numpy.int64))
        q = g.node("Reshape", [q, grouped])
        if keep is not None and keep.shape[2] > 1:
            keep = numpy.tile(keep, (1, 1, group, 1))
    scores = g.node("MatMul", [q, g.node("Transpose", [k], perm=[0, 1, 3, 2])])
    scores = g.node("Mul", [scores, g.constant(numpy.float32(p.scale))])
    if keep is not None:
        scores = g.node("Add", [scores, g.constant(additive(keep))])
    context = g.node("MatMul", [g.node("Softmax", [scores], axis=-1), v])
    if group > 1:
        apart = g.constant(numpy.array([0, p.heads, p.seq_len, -1], numpy.int64))
        context = g.node("Reshape", [context, apart])
    g.finish(rows_first(g, context))
    return g, 17


def standard_attention(p: Problem, arrays: dict) -> tuple[Graph, int]:
    g = Graph(p, arrays)
    q, k, v = g.projections()
    keep = None if p.plainly_causal else visible(p)
    causal = int(p.plainly_causal and p.seq_len > 1)
    if keep is not None:  # the operator wants all rows, equal or not
        keep = numpy.broadcast_to(keep, (p.batch, 1, p.seq_len, keep.shape[-1]))
    mask = [] if keep is None else [g.constant(keep)]
    if p.kv_cache:
        k, v = with_cache(g, k, v)
        y = g.node("Attention", [heads_first(g, q, p.heads), k, v, *mask], scale=p.scale)
        y = rows_first(g, y)
    else:
        y = g.node("Attention", [q, k, v, *mask], scale=p.scale, is_causal=causal,
                   q_num_heads=p.heads, kv_num_heads=p.kv_heads)
    g.finish(y)
    return g, 23


def fused_attention(p: Problem, arrays: dict) -> tuple[Graph, int]:
    if not p.self_attention or p.kv_cache or p.kv_heads != p.heads:
        raise Unsupported("Attention projects q, k and v of equally many heads from one input")
    if p.causal and not p.plainly_causal:
        raise Unsupported("Attention is causal from the top left, without padding, only")
    g = Graph(p, arrays)
    weight, bias = base.fused(arrays, "qkv")
    if bias is None:
        bias = numpy.zeros(weight.shape[0], numpy.float32)
    inputs = [g.input("x", arrays["x"]), g.constant(weight.T), g.constant(bias)]
    if not p.full:
        inputs.append(g.constant(numpy.array(p.lengths, numpy.int32)))
    g.finish(g.node("Attention", inputs, domain=CONTRIB, num_heads=p.heads, scale=p.scale,
                    unidirectional=int(p.causal),
                    qkv_hidden_sizes=[p.q_width, p.k_width, p.v_width]))
    return g, 17


def multi_head_attention(p: Problem, arrays: dict) -> tuple[Graph, int]:
    if p.kv_cache == "append" or p.kv_heads != p.heads:
        raise Unsupported("MultiHeadAttention wants as many key heads as query heads")
    if p.causal and not p.plainly_causal:
        raise Unsupported("MultiHeadAttention is causal from the top left only")
    g = Graph(p, arrays)
    q, k, v = g.projections()
    inputs = [q, k, v]
    if not p.full:
        inputs += ["", g.constant(numpy.array(p.lengths, numpy.int32))]
    g.finish(g.node("MultiHeadAttention", inputs, domain=CONTRIB, num_heads=p.heads,
                    scale=p.scale, unidirectional=int(p.causal)))
    return g, 17


def group_query_attention(p: Problem, arrays: dict) -> tuple[Graph, int]:
    if not p.self_attention or not (p.plainly_causal or p.kv_cache == "append"):
        raise Unsupported("GroupQueryAttention is causal self-attention only")
    if p.head_dim != p.v_head_dim:
        raise Unsupported("GroupQueryAttention has one head width")
    if p.kv_cache == "append" and p.batch > 1 and p.seq_len > 1:
        raise Unsupported("GroupQueryAttention continues a cache by one token, or of one item")
    g = Graph(p, arrays)
    q, k, v = g.projections()
    past = ["", ""]
    if p.kv_cache == "append":
        old = p.total - p.seq_len
        past = [g.input(name, arrays[name][:, :, :old]) for name in p.past]
    lengths = g.constant(numpy.array([length - 1 for length in p.lengths], numpy.int32))
    total = g.constant(numpy.array(p.total, numpy.int32))
    y, _, _ = g.node("GroupQueryAttention", [q, k, v, *past, lengths, total], outputs=3,
                     domain=CONTRIB, num_heads=p.heads, kv_num_heads=p.kv_heads, scale=p.scale)
    g.finish(y)
    return g, 17


FORMS = {
    "Attention (contrib)": fused_attention,
    "MultiHeadAttention (contrib)": multi_head_attention,
    "GroupQueryAttention (contrib)": group_query_attention,
    "Attention (opset 23)": standard_attention,
    "plain graph": plain_graph,
}


def session_of(model: bytes) -> onnxruntime.InferenceSession:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    settings.log_severity_level = 3
    return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])


def layer_of(graph: Graph, opset: int) -> base.Layer:
    return bound_layer(graph.model(opset), graph.inputs, graph.p.y_shape)


def bound_layer(model: bytes, inputs: dict[str, numpy.ndarray], y_shape: tuple) -> base.Layer:
    """The model with inputs and output bound once, so that a call copies nothing."""
    session = session_of(model)
    binding = session.io_binding()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value)
              for name, value in inputs.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    y = onnxruntime.OrtValue.ortvalue_from_numpy(numpy.full(y_shape, numpy.nan, numpy.float32))
    binding.bind_ortvalue_output("y", y)

    def call() -> None:
        session.run_with_iobinding(binding)

    def output() -> numpy.ndarray:
        call()
        return y.numpy()

    return base.Layer(call, output)


def empty(_options: dict) -> base.Layer:
    """The library with next to nothing to do: what a call costs by itself."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (1,)) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "empty", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return bound_layer(model.SerializeToString(), {"x": numpy.ones(1, numpy.float32)}, (1,))


def describe(_options: dict) -> str:
    return onnxruntime.__version__


def variants(p: Problem, directory, _options: dict) -> dict:
    arrays = base.load(p, directory)
    return {name: (lambda form=form: layer_of(*form(p, arrays))) for name, form in FORMS.items()}
