"""A generated kernel, or the shared baseline on a BLAS (bench/blas_layer.c), through runner.c.
Needs nothing beside the standard library."""

from __future__ import annotations

import ctypes
import math
import os
from array import array
from pathlib import Path

from .. import tensors
from ..problem import Problem, Unsupported


def open_runner(path: str) -> ctypes.CDLL:
    runner = ctypes.CDLL(path)
    runner.runner_open.restype = ctypes.c_char_p
    runner.runner_open.argtypes = [ctypes.c_char_p] * 5
    runner.runner_set.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    runner.runner_run.restype = ctypes.c_double
    runner.runner_run.argtypes = [ctypes.c_long]
    runner.runner_detail.restype = runner.runner_core.restype = ctypes.c_char_p
    return runner


def text(value: str | None) -> bytes | None:
    return None if value is None else os.fsencode(value)


class CLayer:
    """The process's one layer in C; the loop over calls is in C as well."""

    def __init__(self, p: Problem, directory, options: dict) -> None:
        self._runner = open_runner(options["gauge"])
        case = Path(options["case"]).read_bytes()
        message = self._runner.runner_open(case, *(text(options.get(key)) for key in (
            "library", "prefix", "blas", "blas_prefix")))
        if message is not None:
            raise Unsupported(message.decode())
        self._arrays = {name: tensors.load(tensors.path(directory, name))
                        for name in tensors.shapes(p)}
        self._arrays["y"] = array("f", [math.nan]) * math.prod(p.y_shape)
        if p.takes_lengths:
            self._arrays["kv_lengths"] = array("i", p.lengths)
        for name, values in self._arrays.items():
            if self._runner.runner_set(name.encode(), values.buffer_info()[0]) != 0:
                raise Unsupported(f"the kernel interface has no tensor {name}")
        status = self._runner.runner_pack()
        if status != 0:
            raise RuntimeError(f"packing returned {status}")

    def run(self, calls: int) -> float:
        seconds = self._runner.runner_run(calls)
        if seconds < 0:
            raise RuntimeError(f"forward returned {-seconds:.0f}")
        return seconds

    def output(self) -> array:
        self.run(1)
        return self._arrays["y"]

    def facts(self) -> dict[str, str]:
        """What a BLAS says about itself once it is loaded; nothing for a kernel."""
        said = {"library": self._runner.runner_detail(), "core": self._runner.runner_core()}
        return {key: value.decode() for key, value in said.items() if value}


def describe(_options: dict) -> str:
    return ""  # a kernel has its generator's, a BLAS says it once it is loaded


def variants(p: Problem, directory, options: dict) -> dict:
    return {options["variant"]: lambda: CLayer(p, directory, options)}
