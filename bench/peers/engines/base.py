"""What every engine makes: a layer that can run n times and show its output."""

from __future__ import annotations

from itertools import repeat
from time import perf_counter_ns
from typing import Callable

import numpy

from .. import tensors
from ..problem import Problem


class Layer:
    """A layer behind a Python call. Engines in C have their own `run`, with the loop in C."""

    def __init__(self, call: Callable[[], object], output: Callable[[], numpy.ndarray]) -> None:
        self._call = call
        self.output = output

    def run(self, calls: int) -> float:
        """Seconds that `calls` calls take."""
        call = self._call
        start = perf_counter_ns()
        for _ in repeat(None, calls):
            call()
        return (perf_counter_ns() - start) * 1e-9


def load(p: Problem, directory) -> dict[str, numpy.ndarray]:
    """Every tensor of the problem as a float32 array."""
    return {name: numpy.fromfile(tensors.path(directory, name), numpy.float32).reshape(shape)
            for name, shape in tensors.shapes(p).items()}


def fused(arrays: dict[str, numpy.ndarray],
          names: str) -> tuple[numpy.ndarray, numpy.ndarray | None]:
    """The weights [out, in] of several projections as one, and their bias (None without any)."""
    weight = numpy.concatenate([arrays[f"{name}_weight"] for name in names])
    if not any(f"{name}_bias" in arrays for name in names):
        return weight, None
    zeros = {name: numpy.zeros(arrays[f"{name}_weight"].shape[0], numpy.float32) for name in names}
    return weight, numpy.concatenate([arrays.get(f"{name}_bias", zeros[name]) for name in names])


def keep_mask(p: Problem) -> numpy.ndarray | None:
    """[B, 1, L, S] of bool, True where a query may see a key; None when nothing is masked. One row
    stands for all queries where they do not differ."""
    if not p.masks_anything():
        return None
    ends = numpy.array([[p.last_key(b, i) for i in range(p.seq_len)] for b in range(p.batch)])
    keep = numpy.arange(p.kv_len)[None, None, :] < ends[:, :, None]
    if (ends == ends[:, :1]).all():
        keep = keep[:, :1]
    return keep[:, None]
