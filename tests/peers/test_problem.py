import math
import unittest

from support import WithDirectory, layer

from bench.peers import judge, problem, tensors


class FromConfig(unittest.TestCase):
    def test_defaults(self):
        p = layer()
        self.assertEqual((p.kv_len, p.kv_heads, p.head_dim, p.v_head_dim), (2, 2, 2, 2))
        self.assertAlmostEqual(p.scale, 1 / math.sqrt(2))
        self.assertTrue(p.self_attention and p.full and p.output_projection)
        self.assertFalse(p.causal or p.masks_anything())

    def test_refuses_what_it_does_not_model_by_name(self):
        for key, value in (("rope", {"theta": 10000}), ("softcap", 30.0), ("queries", "first"),
                           ("some_new_key", True)):
            with self.assertRaisesRegex(problem.Unsupported, key):
                layer(**{key: value})
        with self.assertRaisesRegex(problem.Unsupported, "additive"):
            layer(mask=["additive"])
        layer(rope=False, queries="all")  # switched off is fine

    def test_plain_causal(self):
        p = layer(seq_len=3, mask=["causal"])
        self.assertTrue(p.plainly_causal)
        self.assertEqual([p.last_key(0, i) for i in range(3)], [1, 2, 3])

    def test_causal_alignments(self):
        p = layer(seq_len=2, kv_len=5, mask=["causal"], causal_align="bottom_right")
        self.assertEqual([p.last_key(0, i) for i in range(2)], [4, 5])
        p = layer(seq_len=2, kv_len=5, mask=["causal"], causal_align=-1)
        self.assertEqual([p.last_key(0, i) for i in range(2)], [0, 1])
        p = layer(0.6, seq_len=2, kv_len=5, mask=["causal", "lengths"], causal_align="lengths")
        self.assertEqual([p.last_key(0, i) for i in range(2)], [2, 3])

    def test_fill_shortens_only_what_takes_lengths(self):
        self.assertEqual(layer(0.5, seq_len=8).lengths, (8, 8))
        self.assertEqual(layer(0.5, seq_len=8, mask=["lengths"]).lengths, (4, 4))

    def test_cache(self):
        p = layer(seq_len=1, kv_len=6, kv_cache="append", mask=["lengths"])
        self.assertTrue(p.self_attention)
        self.assertEqual((p.total, p.last_key(0, 0)), (6, 6))
        p = layer(seq_len=1, kv_len=6, kv_cache="static", cross=True)
        self.assertFalse(p.self_attention or p.projects_kv)

    def test_padded_rows_are_not_compared(self):
        p = layer(0.5, seq_len=4, mask=["lengths"], padded_queries="zero")
        self.assertEqual(p.rows_compared(), [(0, 2), (4, 6)])
        p = layer(0.5, seq_len=4, mask=["lengths"])
        self.assertEqual(p.rows_compared(), [(0, 4), (4, 8)])


class Tensors(WithDirectory):
    def test_shapes(self):
        p = layer(kv_heads=1, bias={"q": True, "k": False, "v": False, "o": False})
        self.assertEqual(tensors.shapes(p), {
            "x": (2, 2, 4), "q_weight": (4, 4), "q_bias": (4,), "k_weight": (2, 4),
            "v_weight": (2, 4), "o_weight": (4, 4)})
        p = layer(seq_len=1, kv_len=6, kv_cache="static", cross=True, bias=False)
        self.assertEqual(set(tensors.shapes(p)), {"x", "k", "v", "q_weight", "o_weight"})

    def test_equal_seeds_give_equal_files(self):
        p = layer()
        for name in ("a", "b"):
            tensors.create(p, self.dir / name)
        tensors.create(p, self.dir / "c", seed=2)
        texts = [tensors.path(self.dir / name, "q_weight").read_bytes() for name in "abc"]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])
        values = tensors.load(tensors.path(self.dir / "a", "q_weight"))
        self.assertEqual(len(values), 16)
        self.assertLess(judge.largest(values), math.sqrt(3.0) / 2 + 1e-6)
        self.assertGreater(len(set(values)), 10)


if __name__ == "__main__":
    unittest.main()
