"""The answer in double precision, written from the formula; nobody's competitor."""

from __future__ import annotations

import numpy

from ..problem import Problem
from . import base


def describe(_options: dict) -> str:
    return numpy.__version__


def heads_of(rows: numpy.ndarray, heads: int) -> numpy.ndarray:
    batch, length, width = rows.shape
    return rows.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def attention(p: Problem, a: dict[str, numpy.ndarray]) -> numpy.ndarray:
    """y [B, L, …] of the problem."""
    def linear(rows: numpy.ndarray, name: str) -> numpy.ndarray:
        return rows @ a[f"{name}_weight"].T + a.get(f"{name}_bias", 0.0)

    rows = a.get("context", a["x"])
    q = heads_of(linear(a["x"], "q"), p.heads)
    if p.projects_kv:
        k, v = (heads_of(linear(rows, name), p.kv_heads) for name in "kv")
    if p.kv_cache == "static":
        k, v = (a[name] for name in p.past)
    elif p.kv_cache == "append":
        old = p.total - p.seq_len
        k, v = (numpy.concatenate([a[past][:, :, :old], new, a[past][:, :, p.total:]], axis=2)
                for past, new in zip(p.past, (k, v)))
    group = p.heads // p.kv_heads
    k, v = (numpy.repeat(part, group, axis=1) for part in (k, v))
    logits = p.scale * (q @ k.transpose(0, 1, 3, 2))
    keep = base.keep_mask(p)
    if keep is not None:
        logits = numpy.where(keep, logits, -numpy.inf)
    top = logits.max(axis=-1, keepdims=True)
    weights = numpy.exp(logits - numpy.where(numpy.isfinite(top), top, 0.0))
    weights /= numpy.maximum(weights.sum(axis=-1, keepdims=True), numpy.finfo(float).tiny)
    y = (weights @ v).transpose(0, 2, 1, 3).reshape(p.batch, p.seq_len, p.context_width)
    return linear(y, "o") if p.output_projection else y


def variants(p: Problem, directory, _options: dict) -> dict:
    def build() -> base.Layer:
        arrays = {name: value.astype(numpy.float64)
                  for name, value in base.load(p, directory).items()}
        y = attention(p, arrays)
        return base.Layer(lambda: None, lambda: y)
    return {"double": build}
