"""Weights and inputs of a problem, drawn once and kept as raw float32 files that workers read."""

from __future__ import annotations

import math
import random
from array import array
from pathlib import Path

from .problem import Problem

UNIT = math.sqrt(3.0)  # a uniform draw from [-UNIT, UNIT] has variance 1


def shapes(p: Problem) -> dict[str, tuple[int, ...]]:
    """Name to shape, in the names of attn_weights and attn_args."""
    out: dict[str, tuple[int, ...]] = {"x": (p.batch, p.seq_len, p.d_model)}
    if p.cross and p.projects_kv:
        out["context"] = (p.batch, p.kv_len, p.kv_dim)
    for name, width in zip(p.past, (p.head_dim, p.v_head_dim)):
        out[name] = (p.batch, p.kv_heads, p.kv_len, width)
    widths = {"q": (p.q_width, p.d_model)}
    if p.projects_kv:
        widths["k"] = (p.k_width, p.kv_dim)
        widths["v"] = (p.v_width, p.kv_dim)
    if p.output_projection:
        widths["o"] = (p.d_model, p.context_width)
    for name, shape in widths.items():
        out[f"{name}_weight"] = shape
        if p.biases[name]:
            out[f"{name}_bias"] = shape[:1]
    return out


def _bound(name: str, shape: tuple[int, ...]) -> float:
    """Draws that keep projections, logits and outputs near 1, so that softmax has work to do."""
    if name.endswith("_weight"):
        return UNIT / math.sqrt(shape[-1])
    return 0.5 if name.endswith("_bias") else UNIT


def path(directory: Path, name: str) -> Path:
    return directory / f"{name}.f32"


def create(p: Problem, directory: Path, seed: int = 1) -> None:
    """Writes every tensor of the problem; equal seeds give equal bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, shape in shapes(p).items():
        draw, bound = random.Random(f"{seed} {name}").random, _bound(name, shape)
        values = array("f", (bound * (2.0 * draw() - 1.0) for _ in range(math.prod(shape))))
        save(values, path(directory, name))


def save(values: array, file: Path) -> None:
    with file.open("wb") as stream:
        values.tofile(stream)


def load(file: Path, kind: str = "f") -> array:
    values = array(kind)
    values.frombytes(file.read_bytes())
    return values
