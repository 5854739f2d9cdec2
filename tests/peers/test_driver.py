"""The whole driver on a real kernel and the BLAS this machine has, two samples each. Nothing is
installed for it."""

import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from support import ROOT, WithDirectory

NEEDED = [name for name in ("lua5.4", "ninja", "gcc") if not shutil.which(name)]
CONFIG = """return { name = "layer", batch = 2, seq_len = 9, d_model = 24, heads = 3, mask = "%s" }
"""


def has_openblas():
    try:
        ctypes.CDLL("libopenblas.so.0")
    except OSError:
        return False
    return True


@unittest.skipIf(NEEDED, f"needs {', '.join(NEEDED)}")
class Driver(WithDirectory):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="attngen-peers-")
        cls.addClassCleanup(holder.cleanup)
        cls.build = holder.name  # one for all: the measuring library is compiled once

    def run_driver(self, *words):
        command = [sys.executable, "-m", "bench.peers", "--dir", self.build, "--short",
                   "--cc", "gcc", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    def config(self, mask, name="layer"):
        path = self.dir / f"{name}.lua"
        path.write_text(CONFIG % mask)
        return str(path)

    def document(self, *words):
        """(document, text) of a run that must succeed."""
        target = self.dir / "out.json"
        done = self.run_driver("--json", str(target), *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(target.read_text()), done.stdout

    def check_ours(self, result):
        self.assertNotIn("failure", result)
        self.assertEqual((result["subject"], result["compiler"]), ("attngen", "gcc"))
        self.assertEqual(sum(result[f"{state}_samples"] for state in ("good", "slow", "disturbed")),
                         2)
        self.assertGreater(result["code_bytes"], 0)

    def test_kernel_alone(self):
        made, text = self.document("--peers", "", self.config("causal"))
        self.check_ours(made["shapes"][0]["results"][0])
        self.assertTrue(made["settings"]["short"])
        self.assertIn("attngen", text)

    def test_cache(self):
        path = self.dir / "step.lua"
        path.write_text('return { name = "step", seq_len = 1, kv_len = 20, d_model = 24, heads = 3,'
                        ' kv_cache = "append" }\n')
        made, _ = self.document("--peers", "packaged" if has_openblas() else "", "--fill", "0.5",
                                str(path))
        self.assertEqual(made["shapes"][0]["lengths"], [10])
        for result in made["shapes"][0]["results"]:
            self.assertLess(result["difference"], 1e-5)

    @unittest.skipUnless(has_openblas(), "needs libopenblas.so.0")
    def test_beside_a_blas(self):
        page = self.dir / "out.html"
        made, text = self.document("--peers", "packaged", "--html", str(page), "--fill", "0.5",
                                   self.config("lengths"))
        self.assertEqual(made["shapes"][0]["lengths"], [5, 5])
        ours, theirs = made["shapes"][0]["results"]
        self.check_ours(ours)
        self.assertEqual((theirs["subject"], theirs["settings"]), ("openblas", ["packaged"]))
        self.assertLess(theirs["difference"], 1e-5)
        self.assertIn(theirs["core"], text)
        # no charts: a short run on a busy machine has no two samples of one state to compare
        self.assertIn(f"OpenBLAS {theirs['core']} (packaged)", page.read_text())

    def test_missing_library_is_said_and_not_fatal(self):
        blocked = self.dir / "openvino.py"
        blocked.write_text("raise ImportError('no OpenVINO here')\n")
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(self.dir)!r})\n"
             "import os; os.environ['PYTHONPATH'] = sys.path[0]\n"
             "from bench.peers.__main__ import main; sys.exit(main(sys.argv[1:]))", "--dir",
             self.build, "--short", "--cc", "gcc", "--peers", "openvino",
             self.config("none")], cwd=ROOT, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, "OpenVINO takes no part: .*(no OpenVINO here|numpy)")

    def test_interrupt(self):
        """Ctrl-C reaches the whole group: status 130, no worker left, nothing written."""
        target = self.dir / "out.json"
        command = [sys.executable, "-m", "bench.peers", "--dir", self.build, "--cc", "gcc",
                   "--seconds", "300", "--peers", "", "--json", str(target), self.config("none")]
        driver = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True,
                                  stdout=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(driver.stderr.close)
        self.assertTrue(any("taking turns" in line for line in driver.stderr))
        os.killpg(driver.pid, signal.SIGINT)
        self.assertEqual(driver.wait(30), 130)
        with self.assertRaises(ProcessLookupError):
            os.killpg(driver.pid, 0)
        self.assertFalse(target.exists())

    def test_a_directory_in_use_is_refused(self):
        work = self.dir / "work"
        work.mkdir()
        with (work / "lock").open("a", encoding="utf-8") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            done = self.run_driver(self.config("none"), "--dir", str(work))
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"{work}: another attngen is at work", done.stderr)
        self.assertEqual(os.listdir(work), ["lock"])

    def test_usage_errors(self):
        for words, message in ((["no-such-shape"], "no shape no-such-shape"),
                               (["--peers", "nobody", "seed-a"], "no peer nobody"),
                               (["--isa", "mmx", "seed-a"], "isa mmx"),
                               (["--cpu", "4095", "seed-a"], "no core 4095"),
                               (["--fill", "2", "seed-a"], "--fill")):
            done = self.run_driver(*words)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(message, done.stderr)


if __name__ == "__main__":
    unittest.main()
