"""PyTorch: F.linear with the projections fused and F.scaled_dot_product_attention, eager or
compiled with frozen weights; eager also through nn.MultiheadAttention's own fast path."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..problem import Problem
from . import base


class Attention(torch.nn.Module):
    """The layer, with one product for whatever is projected from the same rows."""

    def __init__(self, p: Problem, arrays: dict) -> None:
        super().__init__()
        self.p = p
        names = {True: ("qkv",), False: ("q", "kv") if p.projects_kv else ("q",)}[p.self_attention]
        self.first = self._linear(*base.fused(arrays, names[0]))
        self.second = self._linear(*base.fused(arrays, names[1])) if len(names) > 1 else None
        self.out = self._linear(*base.fused(arrays, "o")) if p.output_projection else None
        for attribute, name in zip(("past_k", "past_v"), p.past):
            self.register_buffer(attribute, torch.from_numpy(arrays[name].copy()))
        keep = None if p.plainly_causal else base.keep_mask(p)
        if keep is not None and p.kv_cache == "append":
            keep = keep[..., :p.total]
            keep = None if keep.all() else keep
        self.keep = None if keep is None else torch.from_numpy(keep)

    @staticmethod
    def _linear(weight, bias) -> torch.nn.Linear:
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        layer.weight.data = torch.from_numpy(weight)
        if bias is not None:
            layer.bias.data = torch.from_numpy(bias)
        return layer

    def _heads(self, rows: torch.Tensor, heads: int) -> torch.Tensor:
        return rows.unflatten(-1, (heads, -1)).transpose(1, 2)

    def forward(self, x: torch.Tensor, context: torch.Tensor | None) -> torch.Tensor:
        p = self.p
        first = self.first(x)
        if p.self_attention:
            q, k, v = first.split([p.q_width, p.k_width, p.v_width], -1)
        elif p.projects_kv:
            q = first
            k, v = self.second(context).split([p.k_width, p.v_width], -1)
        else:
            q = first
        q = self._heads(q, p.heads)
        if p.projects_kv:
            k, v = self._heads(k, p.kv_heads), self._heads(v, p.kv_heads)
        if p.kv_cache == "static":
            k, v = self.past_k, self.past_v
        elif p.kv_cache == "append":
            self.past_k[:, :, p.total - p.seq_len:p.total] = k
            self.past_v[:, :, p.total - p.seq_len:p.total] = v
            k, v = self.past_k[:, :, :p.total], self.past_v[:, :, :p.total]
        y = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=self.keep, is_causal=p.plainly_causal and p.seq_len > 1,
            scale=p.scale, enable_gqa=p.kv_heads != p.heads)
        y = y.transpose(1, 2).flatten(2)
        return y if self.out is None else self.out(y)


def describe(_options: dict) -> str:
    return torch.__version__


def fits_multihead(p: Problem) -> bool:
    """Whether nn.MultiheadAttention's fast path computes this layer."""
    return (p.self_attention and not p.kv_cache and p.kv_heads == p.heads
            and p.head_dim == p.v_head_dim and p.q_width == p.d_model and p.output_projection
            and all(p.biases.values()) and not p.causal and p.full
            and p.scale == 1.0 / p.head_dim ** 0.5)


def multihead(p: Problem, arrays: dict) -> torch.nn.Module:
    module = torch.nn.MultiheadAttention(p.d_model, p.heads, batch_first=True)
    weight, bias = base.fused(arrays, "qkv")
    module.in_proj_weight.data = torch.from_numpy(weight)
    module.in_proj_bias.data = torch.from_numpy(bias)
    module.out_proj.weight.data = torch.from_numpy(arrays["o_weight"])
    module.out_proj.bias.data = torch.from_numpy(arrays["o_bias"])
    return module.eval()


def layer_of(call) -> base.Layer:
    """Calls without autograd; the output is that of the last call."""
    def output():
        with torch.inference_mode():
            return call().numpy()

    layer = base.Layer(call, output)
    run = layer.run

    def run_without_autograd(calls: int) -> float:
        with torch.inference_mode():
            return run(calls)

    layer.run = run_without_autograd
    return layer


def compiled(module, x, context, settings: dict):
    """A module or function through torch.compile with Inductor's settings, called once."""
    from torch._inductor import config

    torch.compiler.reset()  # else the previous layer's code is checked for on every call
    for name, value in settings.items():
        setattr(config, name, value)
    config.freezing = True
    function = torch.compile(module, dynamic=False)
    with torch.inference_mode():
        function(x, context)
    return function


def empty(options: dict) -> base.Layer:
    """The library with next to nothing to do: what a call costs by itself."""
    module, one = torch.nn.Linear(1, 1).eval(), torch.ones(1, 1)
    if options["engine"] != "compiled":
        return layer_of(lambda: module(one))
    function = compiled(lambda x, _: module(x), one, None, COMPILED["default"])
    return layer_of(lambda: function(one, None))


COMPILED = {
    "default": {"max_autotune": False, "cpp_wrapper": False},
    "C++ wrapper": {"max_autotune": False, "cpp_wrapper": True},
    "max-autotune": {"max_autotune": True, "cpp_wrapper": False},
}


def variants(p: Problem, directory, options: dict) -> dict:
    torch.set_num_threads(1)
    arrays = base.load(p, directory)
    x = torch.from_numpy(arrays["x"])
    context = torch.from_numpy(arrays["context"]) if "context" in arrays else None

    def build_eager():
        module = Attention(p, arrays).eval()
        return layer_of(lambda: module(x, context))

    def build_multihead():
        module = multihead(p, arrays)
        return layer_of(lambda: module(x, x, x, need_weights=False)[0])

    def build_compiled(settings: dict):
        def build():
            function = compiled(Attention(p, arrays).eval(), x, context, settings)
            return layer_of(lambda: function(x, context))
        return build

    if options["engine"] == "compiled":
        return {name: build_compiled(settings) for name, settings in COMPILED.items()}
    found = {"scaled_dot_product_attention": build_eager}
    if fits_multihead(p):
        found["nn.MultiheadAttention"] = build_multihead
    return found
