"""How fast the core is right now, by the probe's own L1-hot product and FMA loop."""

from __future__ import annotations

import ctypes


class Gauge:
    """Both rates in flops per second."""

    def __init__(self, library: str) -> None:
        loaded = ctypes.CDLL(library)
        self._product, self._peak = loaded.runner_product, loaded.runner_peak
        self._product.restype = self._peak.restype = ctypes.c_double

    def product(self) -> float:
        return self._product()

    def peak(self) -> float:
        return self._peak()
