"""Command line of `make bench-peers`; see --help."""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO

from . import contenders, document, problem, table
from .contenders import Contender
from .session import Effort, Session, Workers

ROOT = Path(__file__).resolve().parents[2]
SHORT = Effort(seconds=0.0, min_rounds=2, max_rounds=2)


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m bench.peers",
        description="Measures generated kernels beside other libraries: the same weights and "
        "inputs, one thread, one core, everybody in turn. Outputs are compared first.")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE",
                        help="ids of bench/shapes, or paths of configs; default: all of them")
    parser.add_argument("--peers", default=",".join(contenders.PEERS), metavar="LIST",
                        help="who takes part: %(default)s")
    parser.add_argument("--cc", default="gcc,clang", metavar="LIST",
                        help="compilers for our kernels: %(default)s")
    parser.add_argument("--isa", default="", help="of our kernels; default: the best one here")
    parser.add_argument("--fill", type=float, default=1.0, metavar="SHARE",
                        help="valid share of the keys where the mask is lengths (default 1)")
    parser.add_argument("--seconds", type=float, default=1.0,
                        help="of samples for each contender and shape (default 1)")
    parser.add_argument("--short", action="store_true",
                        help="two samples each: checks the harness, measures nothing")
    parser.add_argument("--cpu", type=int, default=-1, help="core to stay on (default: the last)")
    parser.add_argument("--json", type=Path, metavar="FILE",
                        help="write the results; in a directory, the CPU names the file")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report with charts")
    parser.add_argument("--dir", type=Path, default=ROOT / "build" / "peers", metavar="DIR",
                        help="for everything that is built (default build/peers)")
    options = parser.parse_args(words)
    options.peers = [name for name in options.peers.split(",") if name]
    for name in options.peers:
        if name not in contenders.PEERS:
            parser.error(f"no peer {name}; there are {', '.join(contenders.PEERS)}")
    if not 0.0 < options.fill <= 1.0:
        parser.error("--fill must be above 0 and at most 1")
    return options


def choose_core(cpu: int) -> int | None:
    """The core everything stays on; None where there is no such thing."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    allowed = sorted(os.sched_getaffinity(0))
    if cpu >= 0 and cpu not in allowed:
        print(f"bench-peers: no core {cpu}; allowed: {allowed}", file=sys.stderr)
        sys.exit(2)
    return cpu if cpu >= 0 else allowed[-1]


def take(directory: Path) -> IO:
    """Makes a directory and takes it for this run alone, while the file is open: the lock that
    gen/fs.lua takes. Two runs in one would measure each other's kernels."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "lock"
    file = path.open("a", encoding="utf-8")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as reason:
        print(f"bench-peers: {directory}: another attngen is at work in this directory ({path}: "
              f"{reason.strerror}); wait until it has ended, or take another with --dir",
              file=sys.stderr)
        sys.exit(2)
    return file


def build(options: argparse.Namespace, cpu: int | None) -> dict:
    """Our kernels, and the library that runs C layers: what kernels.lua prints."""
    words = ["lua5.4", "bench/peers/kernels.lua", str(options.dir), options.isa or "best",
             options.cc, "any" if cpu is None else str(cpu), *options.shapes]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def say(text: str) -> None:
    """Progress: one line that is written over on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def with_case(contender: Contender, case: str) -> Contender:
    """Layers in C read the case from a file, so its path is part of their options."""
    if contender.options["engine"] not in ("attngen", "blas"):
        return contender
    return dataclasses.replace(
        contender, options={**contender.options, "case": case},
        alternatives=tuple(with_case(one, case) for one in contender.alternatives))


def measure_shape(session: Session, shape: dict, peers: list[Contender], built: dict,
                  options: argparse.Namespace) -> dict:
    """One shape's entry of the document."""
    if "refused" in shape:
        return document.refused(shape, shape["refused"])
    flops = shape["flops"]["projections"] + shape["flops"]["core"]
    try:
        p = problem.from_config(shape["config"], options.fill, flops)
    except problem.Unsupported as reason:
        return document.refused(shape, f"other libraries have no form of it here: {reason}")
    ours = [contenders.kernel(kernel, built["gauge"]) for kernel in shape["kernels"]
            if kernel["ok"]]
    double = Contender("double", "double precision", "double", {"engine": "double"})
    everyone = [with_case(one, shape["case"]) for one in (*ours, *peers)]
    tensors = options.dir / "tensors"
    shutil.rmtree(tensors, ignore_errors=True)
    entries = session.measure(p, everyone, double, tensors)
    return document.shape_of(shape, p, entries, session.machine, built["machine"]["rates"][0])


def ready(session: Session, options: argparse.Namespace, built: dict) -> list[Contender]:
    """The peers whose library is here; says once who is missing."""
    found, missing = contenders.peers(options.peers, built)
    for contender in found:
        if contender.options["engine"] != "blas":
            missing[contender.id] = session.is_missing(contender)
    for name, reason in missing.items():
        if reason:
            print(f"{contenders.PEERS[name][0]} takes no part: {reason}")
    return [one for one in found if not missing.get(one.id)]


def our_failures(shapes: list[dict]) -> int:
    """Kernels that were built or run and gave no right answer; a peer's trouble is a result."""
    return sum(result["subject"] == "attngen" and result.get("failure", {}).get("kind")
               not in (None, "refused") for shape in shapes for result in shape["results"])


def file_name(cpu: str) -> str:
    """As `attngen bench --json DIRECTORY` names its file, and what this one is."""
    plain = re.sub(r"\((r|tm)\)", "", cpu.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") + "-peers.json"


def write_files(options: argparse.Namespace, made: dict) -> None:
    """The document, and its page by the generator's own report."""
    text = json.dumps(made, indent=1, sort_keys=True) + "\n"
    target = options.json
    if target and target.is_dir():
        target = target / file_name(made["machine"]["cpu"])
    if target:
        target.write_text(text)
    if options.html:
        source = options.dir / "document.json"
        source.write_text(text)
        subprocess.run(["lua5.4", "bench/peers/page.lua", str(source),
                        str(options.html.resolve())], cwd=ROOT, check=True)


def main(words: list[str]) -> int:
    options = parse(words)
    options.dir = options.dir.resolve()
    lock = take(options.dir)
    scratch = options.dir / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    cpu = choose_core(options.cpu)
    built = build(options, cpu)
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})  # for the workers, which inherit it
    effort = SHORT if options.short else Effort(seconds=options.seconds)
    workers = Workers(scratch)
    session = Session(workers, scratch, effort, say)
    where = "no fixed core" if cpu is None else f"core {cpu}"
    print(f"{built['machine']['cpu']}, {where}, one thread")
    shapes: list[dict] = []
    try:
        peers = ready(session, options, built)
        for shape in built["shapes"]:
            shapes.append(measure_shape(session, shape, peers, built, options))
            say("")
            print(table.shape_text(shapes[-1]), flush=True)
    finally:
        workers.close()
    timed = [shape for shape in shapes if "refused" not in shape]
    if timed:
        print(table.summary_text(timed))
        print(table.libraries_text(timed))
    settings = {"rounds": effort.max_rounds, "seconds": effort.seconds, "short": options.short,
                "fill": options.fill}
    write_files(options, document.document(built, shapes, settings))
    lock.close()
    return 1 if our_failures(shapes) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
