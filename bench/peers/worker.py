"""The process around one engine: python -m bench.peers.worker '{"engine": …}'.

Requests: "describe": its library's version, what an empty call costs; "list": the forms it has of a
problem; "build" one of them, run it once and write its output; "sample" it, between two products.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from pathlib import Path

from . import protocol, samples
from .engines import MODULES
from .gauge import Gauge
from .problem import Problem

WARM_SECONDS = 1e-3
EMPTY_CALLS, EMPTY_TURNS = 50, 20


class CoreUse:
    """Who has had the core since it was made. Libraries may work in a thread of their own, so time
    is that of the whole process."""

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float, int]:
        return (time.perf_counter(), time.process_time(),
                resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)

    def was_shared(self) -> bool:
        """Whether another program took it from this process for longer than does no harm."""
        wall, own, preemptions = (now - then for now, then in zip(self._now(), self._start))
        return preemptions > 0 and wall - own > samples.SHARED_TIME * wall


class Server:
    """State between requests: the problem's variants and the layer that was built last."""

    def __init__(self, options: dict) -> None:
        self._options = options
        self._gauge = Gauge(options["gauge"]) if options.get("gauge") else None
        self._engine = importlib.import_module(f".engines.{MODULES[options['engine']]}",
                                               __package__)
        self._variants: dict = {}
        self._layer = None

    def describe(self, _request: dict) -> dict:
        answer = {"version": self._engine.describe(self._options)}
        if hasattr(self._engine, "empty"):
            layer = self._engine.empty(self._options)
            layer.run(EMPTY_CALLS)
            seconds = min(layer.run(EMPTY_CALLS) for _ in range(EMPTY_TURNS))
            answer["empty_call_us"] = 1e6 * seconds / EMPTY_CALLS
        return answer

    def list(self, request: dict) -> dict:
        problem = Problem(**{**request["problem"], "lengths": tuple(request["problem"]["lengths"])})
        self._layer = None
        self._variants = self._engine.variants(problem, Path(request["tensors"]), self._options)
        return {"variants": list(self._variants)}

    def build(self, request: dict) -> dict:
        self._layer = None
        start = time.perf_counter()
        layer = self._variants[request["variant"]]()
        built = time.perf_counter()
        first = layer.run(1)
        y = memoryview(layer.output())
        Path(request["output"]).write_bytes(y.tobytes())
        self._layer = layer
        facts = layer.facts() if hasattr(layer, "facts") else {}
        return {"build_seconds": built - start, "first_seconds": first, "kind": y.format,
                **facts}

    def sample(self, request: dict) -> dict:
        """Warm calls first: another process had the core, and with it the caches."""
        layer, calls = self._layer, request["calls"]
        spent, turn = 0.0, 1
        while spent < WARM_SECONDS:
            spent += layer.run(turn)
            turn = min(2 * turn, calls)
        use = CoreUse()
        before = self._gauge.product()
        seconds = layer.run(calls)
        after = self._gauge.product()
        return {"seconds": seconds, "disturbed": use.was_shared(), "products": [before, after],
                "peak": self._gauge.peak()}


def main() -> None:
    server = Server(json.loads(sys.argv[1]))
    protocol.serve({"describe": server.describe, "list": server.list, "build": server.build,
                    "sample": server.sample})


if __name__ == "__main__":
    main()
