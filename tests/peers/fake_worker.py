"""A worker without a library: python3 fake_worker.py '{"forms": {NAME: {...}}, ...}'.

A form has "y" (values), "us" (time of a call), and may "crash" in build or sample, "hang" or
"fail". Top level: "chatter" prints to stdout before every answer; "gates" are the products of the
samples.
"""

import json
import os
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.peers import protocol  # noqa: E402


class Fake:
    def __init__(self, options):
        self.options, self.form, self.taken = options, None, 0

    def describe(self, _request):
        if "missing" in self.options:
            raise ModuleNotFoundError(self.options["missing"])
        return {"version": self.options.get("version", "1.0")}

    def list(self, _request):
        return {"variants": list(self.options["forms"])}

    def trouble(self, when):
        if self.form.get("crash") == when:
            os.abort()
        if self.form.get("hang") == when:
            time.sleep(60)
        if self.form.get("fail") == when:
            raise RuntimeError("this form\ndoes not work")

    def build(self, request):
        self.form = self.options["forms"][request["variant"]]
        self.trouble("build")
        y = self.form["y"]
        Path(request["output"]).write_bytes(struct.pack(f"{len(y)}f", *y))
        return {"build_seconds": 0.5, "first_seconds": 1e-6, "kind": "f",
                "core": self.options.get("core", ""), "library": self.options.get("library", "")}

    def sample(self, request):
        self.trouble("sample")
        if self.options.get("chatter"):
            print("a library says hello")
        gates = self.options.get("gates", [1e11])
        gate = gates[self.taken % len(gates)]
        self.taken += 1
        return {"seconds": 1e-6 * self.form["us"] * request["calls"], "products": [gate, gate],
                "peak": 1.05e11, "disturbed": False}


def main():
    fake = Fake(json.loads(sys.argv[1]))
    protocol.serve({"describe": fake.describe, "list": fake.list, "build": fake.build,
                    "sample": fake.sample})


main()
