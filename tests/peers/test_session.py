"""The driver's conversation with its workers, and what it makes of their answers; the workers are
fake_worker.py."""

import time
import unittest
from array import array

from support import WithDirectory, fake, fake_command, layer

from bench.peers import document, session, table
from bench.peers.protocol import WorkerFailed
from bench.peers.session import Effort, Entry, Session, Workers

Y = [float(i) for i in range(16)]
RIGHT = {"only": {"y": Y, "us": 10}}
QUICK = Effort(seconds=0.0, min_rounds=6, max_rounds=6)


class WithSession(WithDirectory):
    def setUp(self):
        super().setUp()
        self.workers = Workers(self.dir, fake_command)
        self.addCleanup(self.workers.close)
        self.said = []
        self.session = Session(self.workers, self.dir, QUICK, self.said.append)

    def measure(self, *contenders, truth=True):
        forms = {"double": {"y": Y, "us": 1}} if truth else {}
        double = fake("double", forms=forms) if truth else fake("double", missing="numpy")
        entries = self.session.measure(layer(), list(contenders), double, self.dir / "t")
        return {entry.contender.id: entry for entry in entries}


class Protocol(WithSession):
    def worker(self, **options):
        return self.workers.get(fake("one", **{"forms": RIGHT, **options}))[0]

    def test_answers_and_errors(self):
        worker = self.worker()
        self.assertEqual(worker.ask({"do": "list"}, 10)["variants"], ["only"])
        with self.assertRaisesRegex(WorkerFailed, "KeyError"):
            worker.ask({"do": "dance"}, 10)
        self.assertTrue(worker.alive)  # an error is an answer

    def test_what_a_library_prints_is_no_answer(self):
        worker = self.worker(chatter=True)
        worker.ask({"do": "build", "variant": "only", "output": str(self.dir / "y")}, 10)
        self.assertIn("seconds", worker.ask({"do": "sample", "calls": 1}, 10))
        self.assertIn("hello", (self.dir / "one.log").read_text())

    def test_crash(self):
        worker = self.worker(forms={"only": {"y": Y, "us": 1, "crash": "build"}})
        with self.assertRaisesRegex(WorkerFailed, "signal 6") as caught:
            worker.ask({"do": "build", "variant": "only", "output": "unused"}, 10)
        self.assertEqual(caught.exception.kind, "crash")

    def test_hang(self):
        worker = self.worker(forms={"only": {"y": Y, "us": 1, "hang": "build"}})
        start = time.monotonic()
        with self.assertRaisesRegex(WorkerFailed, "within 0.3 s") as caught:
            worker.ask({"do": "build", "variant": "only", "output": "unused"}, 0.3)
        self.assertEqual(caught.exception.kind, "hang")
        self.assertLess(time.monotonic() - start, 10)
        self.assertFalse(worker.alive)

    def test_missing_library(self):
        reason = self.session.is_missing(fake("one", missing="No module named 'x'"))
        self.assertIn("No module named 'x'", reason)
        self.assertEqual(self.session.is_missing(fake("two", forms=RIGHT)), "")


class Measuring(WithSession):
    def test_turns(self):
        entries = self.measure(fake("a", "attngen", forms=RIGHT), fake("b", forms=RIGHT))
        for entry in entries.values():
            self.assertEqual(entry.error, "")
            self.assertEqual(len(entry.samples.taken), QUICK.max_rounds)
            self.assertEqual((entry.max_error, entry.difference), (0.0, 0.0))
            self.assertIn(entry.calls, (100, 101))  # of 10 us, for a sample of 1 ms

    def test_wrong_output_is_reported_and_not_timed(self):
        wrong = {"only": {"y": [y + 0.5 for y in Y], "us": 1}}
        for truth in (True, False):
            with self.subTest(truth=truth):
                entry = self.measure(fake("a", "attngen", forms=RIGHT), fake("b", forms=wrong),
                                     truth=truth)["b"]
                self.assertEqual(entry.failure, "wrong")
                self.assertIn("wrong by 0.5", entry.error)
                self.assertEqual(entry.samples.taken, [])

    def test_a_wrong_kernel_is_no_reference(self):
        wrong = {"only": {"y": [0.0] * 16, "us": 1}}
        entries = self.measure(fake("a", "attngen", forms=wrong), fake("b", "attngen", forms=RIGHT),
                               fake("c", forms=RIGHT))
        self.assertEqual([entry.failure for entry in entries.values()], ["wrong", "", ""])
        self.assertEqual(entries["c"].difference, 0.0)

    def test_without_double_precision_ours_is_the_reference(self):
        entries = self.measure(fake("a", "attngen", forms=RIGHT), fake("b", forms=RIGHT),
                               truth=False)
        self.assertIsNone(entries["b"].max_error)
        self.assertEqual(entries["b"].difference, 0.0)
        self.assertTrue(any("No module" in text or "numpy" in text for text in self.said))

    def test_fastest_right_form_is_taken(self):
        forms = {"slow": {"y": Y, "us": 50}, "wrong": {"y": [1.0] * 16, "us": 1},
                 "fast": {"y": Y, "us": 20}, "dies": {"y": Y, "us": 1, "crash": "build"},
                 "fails": {"y": Y, "us": 1, "fail": "build"}, "middle": {"y": Y, "us": 30}}
        entry = self.measure(fake("a", "attngen", forms=RIGHT), fake("b", forms=forms))["b"]
        self.assertEqual((entry.variant, entry.error), ("fast", ""))
        self.assertAlmostEqual(min(entry.samples.of(self.session.machine, True)), 20.0)
        notes = " ".join(entry.notes)
        self.assertIn("wrong: wrong by", notes)
        self.assertIn("dies: died of signal 6", notes)
        self.assertIn("fails: RuntimeError: this form does not work", notes)

    def test_a_crash_between_samples_ends_one_contender(self):
        dies = {"only": {"y": Y, "us": 10, "crash": "sample"}}
        entries = self.measure(fake("a", "attngen", forms=RIGHT), fake("b", forms=dies))
        self.assertEqual(entries["b"].failure, "crash")
        self.assertEqual(len(entries["a"].samples.taken), QUICK.max_rounds)

    def test_fastest_core_and_cores_there_are_not(self):
        def core(name, takes, us):
            return fake(f"blas-{name}", core=name, forms={"only": {"y": Y, "us": us}},
                        **{"library": "BLAS"}, fakecore=takes)
        alternatives = tuple(core(*one) for one in (("Old", "Old", 30), ("New", "New", 10),
                                                    ("Next", "Old", 5)))
        for one in alternatives:
            one.options["core"] = one.options.pop("fakecore")
        blas = fake("blas", "openblas", settings=("fastest",), alternatives=alternatives)
        entry = self.measure(fake("a", "attngen", forms=RIGHT), blas)["blas"]
        self.assertEqual((entry.core, entry.error), ("New", ""))
        self.assertIn("core Next: not in this library, which takes Old", entry.notes)
        self.assertTrue(entry.samples.taken)

    def test_one_entry_where_the_fastest_core_is_the_packaged_one(self):
        options = {"forms": RIGHT, "library": "BLAS"}
        entries = []
        for name, core in (("packaged", "Zen"), ("fastest", "Zen"), ("other", "Old")):
            entry = Entry(fake(name, "openblas", **options), blas_library="BLAS", core=core)
            entry.settings = [name]
            entries.append(entry)
        kept = session.drop_twins(entries)
        self.assertEqual([entry.settings for entry in kept], [["packaged", "fastest"], ["other"]])

    def test_waits_for_good_samples(self):
        self.session._effort = Effort(seconds=0.05, min_rounds=2, max_rounds=40, patience=1e6)
        gates = [1e11] * 3 + [0.5e11, 0.5e11, 0.5e11, 1e11]
        entry = self.measure(fake("a", "attngen", forms=RIGHT, gates=gates))["a"]
        report = entry.samples.report(self.session.machine)
        self.assertGreaterEqual(report["good_samples"], 5)
        self.assertGreater(report["slow_samples"], 0)


class Reports(unittest.TestCase):
    RATES = {"isa": "avx2", "load": [{"bytes": 1 << 10, "gbytes_per_s": 100.0},
                                     {"bytes": 1 << 20, "gbytes_per_s": 10.0}]}

    def entry(self, contender, times, gate=1e11):
        entry = Entry(contender, version="1.0", variant="only", output=array("f", Y),
                      max_error=1e-7, difference=2e-7, first_seconds=1e-3)
        for us in times:
            entry.samples.add(us * 1e-6, [gate, gate])
        return entry

    def shape(self, peer_gate=1e11):
        machine = session.Machine()
        machine.see([1e11], 1.05e11)
        failed = Entry(fake("c"))
        failed.fail("crash", "died of signal 11")
        entries = [self.entry(fake("attngen-gcc", "attngen"), [10.0, 12.0, 11.0, 11.0, 11.0]),
                   self.entry(fake("b"), [30.0, 31.0, 30.5, 30.5, 30.5], peer_gate), failed]
        kernel = {"id": "attngen-gcc", "isa": "avx2", "compiler": "gcc", "code_bytes": 100,
                  "compiler_version": "gcc 12", "compile_seconds": 1.0, "packed_bytes": 64,
                  "workspace_bytes": 64, "ok": True}
        broken = {"id": "attngen-clang", "isa": "avx2", "compiler": "clang", "ok": False,
                  "message": "no", "failure": "compile"}
        shape = {"id": "layer", "kernels": [kernel, broken],
                 "flops": {"projections": 5e5, "core": 5e5}}
        return document.shape_of(shape, layer(), entries, machine, self.RATES)

    def test_document(self):
        results = self.shape()["results"]
        ours, peer, crashed, broken = results
        self.assertEqual([ours[key] for key in ("subject", "isa", "compiler")],
                         ["attngen", "avx2", "gcc"])
        self.assertEqual(peer["label"], "b 1.0")
        self.assertAlmostEqual(peer["best_us"], 30.0)
        self.assertAlmostEqual(ours["percent_of_peak"], 100.0 * 1e6 / (10.0 * 1e3) / 105.0)
        self.assertEqual(ours["limit"], "peak")
        self.assertEqual(crashed["failure"], {"kind": "crash", "message": "died of signal 11"})
        self.assertEqual(broken["failure"]["kind"], "compile")

    def test_versions_out_of_what_libraries_say(self):
        for text, version in (("OpenBLAS 0.3.34.481.3 DYNAMIC_ARCH Zen MAX_THREADS=64", "0.3.34"),
                              ("Intel(R) Math Kernel Library Version 2026.2-Product", "2026.2"),
                              ("something else", "")):
            self.assertEqual(document.version_of_blas(text), version)

    def test_bandwidth_of_the_right_size(self):
        self.assertEqual(document.load_rate(self.RATES, 1000), 100.0)
        self.assertEqual(document.load_rate(self.RATES, 5000), 10.0)
        self.assertEqual(document.load_rate(self.RATES, 1 << 30), 10.0)

    def test_table(self):
        shape = self.shape()
        text = table.shape_text(shape)
        self.assertRegex(text, r"attngen avx2 gcc +10\.00 +11\.00 +95\.2 peak +1\.00")
        self.assertRegex(text, r"b 1\.0 +30\.00 +30\.50 +31\.7 peak +3\.00 +1\.0e-07 +2\.0e-07")
        self.assertIn("c: crash: died of signal 11", text)
        self.assertIn("attngen avx2 clang: compile: no", text)
        self.assertRegex(table.summary_text([shape]), r"layer +10\.00 +3\.00 +b 3\.00")
        shape["results"][1]["empty_call_us"] = 1.5
        self.assertIn("with nothing to do: b 1.500", table.libraries_text([shape]))

    def test_the_full_measurement_settles_the_fastest_core(self):
        def blas(setting, us):
            return {"subject": "openblas", "settings": [setting], "label": "OpenBLAS",
                    "best_us": us}
        for times, settings in (((2.0, 1.0), (["packaged"], ["fastest"])),
                                ((1.0, 2.0), (["packaged", "fastest"], ["tried"]))):
            results = [blas("packaged", times[0]), blas("fastest", times[1])]
            document.settle_fastest(results)
            self.assertEqual(tuple(result["settings"] for result in results), settings)
        self.assertEqual(table.columns_of(results[0]),
                         ["OpenBLAS as packaged", "OpenBLAS, fastest core"])
        self.assertEqual(table.columns_of(results[1]), [])

    def test_states_never_meet(self):
        shape = self.shape(peer_gate=0.5e11)
        text = table.shape_text(shape)
        self.assertRegex(text, r"b 1\.0 +\(30\.00\) +\(30\.50\) +\(31\.7\) peak +- ")
        self.assertRegex(table.summary_text([shape]), r"layer +10\.00 +- +-")

    def test_refused(self):
        shape = document.refused({"id": "x"}, "kv_cache: not yet")
        self.assertIn("x: refused: kv_cache: not yet", table.shape_text(shape))


if __name__ == "__main__":
    unittest.main()
