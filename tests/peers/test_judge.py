import math
import unittest
from array import array

from support import ROOT, layer

from bench.peers import judge, samples


class Difference(unittest.TestCase):
    def setUp(self):
        self.p = layer(0.5, mask=["lengths"], padded_queries="zero")  # rows 1 and 3 are padding
        self.want = array("d", range(16))

    def test_equal_and_not(self):
        got = array("f", range(16))
        self.assertEqual(judge.difference(self.p, got, self.want), 0.0)
        got[9] += 0.25
        self.assertEqual(judge.difference(self.p, got, self.want), 0.25)

    def test_padding_does_not_count(self):
        got = array("f", range(16))
        got[5] = math.nan
        self.assertEqual(judge.difference(self.p, got, self.want), 0.0)

    def test_nan_and_wrong_size_are_infinitely_wrong(self):
        got = array("f", range(16))
        got[2] = math.nan
        self.assertEqual(judge.difference(self.p, got, self.want), math.inf)
        self.assertEqual(judge.difference(self.p, array("f", range(12)), self.want), math.inf)

    def test_bound_is_of_the_largest_output(self):
        self.assertAlmostEqual(judge.bound(array("d", [-3.0, 2.0])), 3e-5)


class Gate(unittest.TestCase):
    def machine(self, peak=1.0):
        machine = samples.Machine()
        machine.see([0.95, 0.9], peak)
        return machine

    def test_rule_is_the_probe_s(self):
        header = (ROOT / "bench/samples.h").read_text(encoding="utf-8")
        self.assertIn(f"#define GATE_SHARE {samples.GATE_SHARE}\n", header)
        source = (ROOT / "bench/machine.c").read_text(encoding="utf-8")
        self.assertIn(f": {samples.GATE_FLOOR};", source)
        source = (ROOT / "bench/samples.c").read_text(encoding="utf-8")
        self.assertIn(f"SHARED_TIME = {samples.SHARED_TIME};", source)

    def test_states_are_kept_apart(self):
        taken = samples.Samples()
        for seconds, gate in ((2, 0.95), (1, 0.5), (3, 0.94), (4, 0.95), (6, 0.95), (5, 0.95)):
            taken.add(1e-6 * seconds, [0.95, gate])
        taken.add(0.5e-6, [0.95, 0.95], disturbed=True)
        report = taken.report(self.machine())
        self.assertEqual([report[f"{state}_samples"] for state in ("good", "slow", "disturbed")],
                         [5, 1, 1])
        self.assertAlmostEqual(report["best_us"], 2.0)
        self.assertAlmostEqual(report["median_us"], 4.0)
        self.assertAlmostEqual(report["slow_best_us"], 1.0)
        self.assertEqual(len(report["deciles_us"]), 11)

    def test_too_few_good_samples_are_no_figure(self):
        taken = samples.Samples()
        taken.add(1e-6, [0.1, 0.95])
        for _ in range(samples.ENOUGH - 1):
            taken.add(1e-6, [0.95, 0.95])
        report = taken.report(self.machine())
        self.assertEqual(report["good_samples"], samples.ENOUGH - 1)
        self.assertNotIn("best_us", report)
        self.assertIn("slow_best_us", report)

    def test_enough_is_the_probe_s(self):
        text = (ROOT / "gen/bench/statistics.lua").read_text(encoding="utf-8")
        self.assertIn(f"M.MIN_GOOD = {samples.ENOUGH}\n", text)

    def test_product_far_below_the_peak_is_never_good(self):
        self.assertFalse(self.machine(peak=2.0).is_good(0.95))

    def test_quantile(self):
        self.assertEqual(samples.quantile([1.0], 0.5), 1.0)
        self.assertEqual(samples.quantile([1.0, 2.0, 4.0], 0.5), 2.0)
        self.assertEqual(samples.quantile([1.0, 2.0], 0.25), 1.25)


if __name__ == "__main__":
    unittest.main()
