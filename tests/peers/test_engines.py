"""Every form that every installed library has of a layer, against the double-precision answer. Run
it with build/peers/venv/bin/python; libraries that are not there are skipped, one skip each."""

import importlib
import importlib.util
import unittest
from array import array

from support import WithDirectory, layer

from bench.peers import judge, tensors
from bench.peers.engines import MODULES
from bench.peers.problem import Unsupported

HALF = {"seq_len": 33, "d_model": 48, "heads": 3, "mask": ["lengths"]}
CACHE = {"kv_len": 50, "d_model": 48, "heads": 6, "kv_heads": 2, "kv_cache": "append"}

LAYERS = {
    "plain": layer(seq_len=33, d_model=48, heads=3),
    "causal": layer(seq_len=33, d_model=48, heads=3, mask=["causal"], scale=0.3),
    "lengths": layer(0.5, **HALF),
    "zeroed padding": layer(0.5, **HALF, padded_queries="zero"),
    "causal and lengths": layer(0.5, **{**HALF, "mask": ["causal", "lengths"]}, bias=False),
    "groups": layer(seq_len=33, d_model=48, heads=6, kv_heads=2, mask=["causal"],
                    bias={"q": True, "k": False, "v": False, "o": False}),
    "cross": layer(seq_len=5, kv_len=19, d_model=48, heads=6, cross=True, kv_dim=32),
    "bottom right": layer(seq_len=5, kv_len=19, d_model=48, heads=6, cross=True, mask=["causal"],
                          causal_align="bottom_right"),
    "own widths": layer(seq_len=9, kv_len=20, d_model=48, heads=6, head_dim=10, v_head_dim=7,
                        cross=True),
    "no output": layer(seq_len=9, d_model=48, heads=6, output_projection=False),
    "static cache": layer(seq_len=1, kv_len=50, d_model=48, heads=6, kv_cache="static"),
    "full cache": layer(seq_len=1, **CACHE),
    "half a cache": layer(0.6, seq_len=2, **CACHE),
}

# Compiling takes its time: what differs from the eager engine is worth two layers.
ONLY = {"compiled": ("groups", "full cache")}


class Engines(WithDirectory):
    def setUp(self):
        super().setUp()
        if not importlib.util.find_spec("numpy"):
            self.skipTest("no numpy")

    def engine(self, name):
        try:
            return importlib.import_module(f"bench.peers.engines.{MODULES[name]}")
        except ImportError as missing:
            self.skipTest(str(missing))

    def answer(self, p):
        tensors.create(p, self.dir)
        build = self.engine("double").variants(p, self.dir, {})["double"]
        return self.values(build())

    @staticmethod
    def values(built):
        view = memoryview(built.output())
        values = array(view.format)
        values.frombytes(view.tobytes())
        return values

    def check(self, name):
        engine, options = self.engine(name), {"engine": name}
        self.assertTrue(engine.describe(options))
        self.assertGreater(engine.empty(options).run(3), 0.0)
        for title, p in LAYERS.items():
            if name not in ONLY or title in ONLY[name]:
                want, right = self.answer(p), 0
                for form, build in engine.variants(p, self.dir, options).items():
                    with self.subTest(layer=title, form=form):
                        try:
                            built = build()
                        except Unsupported:
                            continue
                        self.assertGreater(built.run(2), 0.0)
                        self.assertLessEqual(judge.difference(p, self.values(built), want),
                                             judge.bound(want))
                        right += 1
                self.assertGreater(right, 0, f"{name} has no form of {title}")

    def test_torch(self):
        self.check("torch")

    def test_compiled(self):
        self.check("compiled")

    def test_onnxruntime(self):
        self.check("onnxruntime")

    def test_openvino(self):
        self.check("openvino")


if __name__ == "__main__":
    unittest.main()
