"""What the tests of bench/peers share."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers import problem  # noqa: E402
from bench.peers.contenders import Contender  # noqa: E402

FAKE = str(Path(__file__).with_name("fake_worker.py"))


def layer(fill=1.0, **changes):
    """A small problem."""
    config = {"name": "layer", "batch": 2, "seq_len": 2, "d_model": 4, "heads": 2, **changes}
    return problem.from_config(config, fill, flops=1e6)


def fake(name, subject="peer", core="", settings=(), alternatives=(), **options):
    """A contender whose worker is fake_worker.py."""
    return Contender(name, name, subject, {"engine": "fake", **options}, core=core,
                     settings=settings, alternatives=alternatives)


def fake_command(contender):
    return [sys.executable, FAKE, json.dumps(contender.options)]


class WithDirectory(unittest.TestCase):
    """self.dir is a directory of the test's own."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="attngen-peers-")
        self.addCleanup(holder.cleanup)
        self.dir = Path(holder.name)
