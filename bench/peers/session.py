"""One shape: everybody gets the same tensors, shows its output, then they take turns."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

from . import judge, tensors
from .contenders import Contender, environment
from .problem import Problem
from .protocol import Worker, WorkerFailed
from .samples import Machine, Samples

START_SECONDS = 300.0   # for a worker to import its library and try it
BUILD_SECONDS = 900.0   # for one form of a layer: compilers are slow
SAMPLE_SECONDS = 1e-3   # a sample is at least this long
CALIBRATIONS = 3        # samples that choose between the forms of one library
SLACK_SECONDS = 60.0    # beyond what a sample should take


@dataclass(frozen=True)
class Effort:
    """How long to measure: about `seconds` a contender, within these numbers of rounds."""

    seconds: float = 1.0
    min_rounds: int = 7
    max_rounds: int = 200
    patience: float = 4.0  # times `seconds`, while good samples are missing


@dataclass
class Job:
    """One shape for everybody: the problem, where its tensors are, and the outputs to compare with:
    in double precision (None without numpy) and our first kernel's (None until there is one)."""

    problem: Problem
    directory: Path
    truth: array | None = None
    ours: array | None = None


@dataclass
class Entry:
    """A contender on one shape."""

    contender: Contender
    worker: Worker | None = None
    version: str = ""
    empty_call_us: float | None = None
    variant: str = ""
    blas_library: str = ""   # what a BLAS says of itself
    core: str = ""
    error: str = ""          # why it is not timed, and the kind of failure
    failure: str = ""
    notes: list[str] = field(default_factory=list)  # forms that do not fit, or are wrong
    output: array | None = None
    max_error: float | None = None
    difference: float | None = None
    build_seconds: float = 0.0
    first_seconds: float = 0.0
    calls: int = 1
    samples: Samples = field(default_factory=Samples)
    settings: list[str] = field(default_factory=list)

    @property
    def distance(self) -> float:
        """From the answer in double precision where there is one, else from ours."""
        return self.difference if self.max_error is None else self.max_error

    def fail(self, kind: str, text: str) -> None:
        self.failure, self.error = kind, text


class Workers:
    """Worker processes by contender; one that died is started again for the next shape."""

    def __init__(self, scratch: Path, command: Callable[[Contender], list[str]] | None = None):
        self._scratch = scratch
        self._command = command or python_worker
        self._running: dict[str, tuple[Worker, dict, dict]] = {}

    def get(self, contender: Contender) -> tuple[Worker, dict]:
        """(worker, what it says about its library); raises WorkerFailed when the library cannot
        even be loaded."""
        worker, options, said = self._running.get(contender.id, (None, None, {}))
        if worker and worker.alive and options == contender.options:
            return worker, said
        if worker:
            worker.close()
        log = self._scratch / f"{contender.id}.log"
        log.write_bytes(b"")
        worker = Worker(self._command(contender), environment(contender, self._scratch), log)
        try:
            said = worker.ask({"do": "describe"}, START_SECONDS)
        except WorkerFailed:
            worker.close()
            raise
        self._running[contender.id] = (worker, contender.options, said)
        return worker, said

    def close(self) -> None:
        for worker, _, _ in self._running.values():
            worker.close()
        self._running.clear()


def python_worker(contender: Contender) -> list[str]:
    return [sys.executable, "-m", "bench.peers.worker", json.dumps(contender.options)]


class Session:
    """Measures contenders on shapes; `machine` is the best state seen during the last of them."""

    def __init__(self, workers: Workers, scratch: Path, effort: Effort,
                 say: Callable[[str], None]) -> None:
        self._workers, self._scratch = workers, scratch
        self._effort, self._say = effort, say
        self.machine = Machine()

    # -- one request each -------------------------------------------------------------------------

    def _build(self, entry: Entry, variant: str) -> array:
        """Builds one form and returns its output."""
        file = self._scratch / f"{entry.contender.id}.y"
        answer = entry.worker.ask({"do": "build", "variant": variant, "output": str(file)},
                                  BUILD_SECONDS)
        entry.variant = variant
        entry.blas_library, entry.core = answer.get("library", ""), answer.get("core", "")
        entry.build_seconds, entry.first_seconds = answer["build_seconds"], answer["first_seconds"]
        return tensors.load(file, answer["kind"])

    def _sample(self, entry: Entry, calls: int) -> tuple[float, list[float], bool]:
        """(seconds of one call, products before and after, whether something else ran)."""
        answer = entry.worker.ask({"do": "sample", "calls": calls},
                                  SLACK_SECONDS + 20.0 * entry.first_seconds * calls)
        self.machine.see(answer["products"], answer["peak"])
        return answer["seconds"] / calls, answer["products"], answer["disturbed"]

    # -- steps ------------------------------------------------------------------------------------

    def _double(self, job: Job, contender: Contender) -> array | None:
        """The answer in double precision; None, said, when numpy is missing."""
        entry = Entry(contender)
        try:
            self._open(entry, job)
            return self._build(entry, "double")
        except WorkerFailed as problem:
            self._say(f"no double-precision answer ({problem}): outputs are compared with ours")
            return None

    def is_missing(self, contender: Contender) -> str:
        """Why the library cannot be loaded at all; empty when it can."""
        try:
            self._workers.get(contender)
        except WorkerFailed as problem:
            return str(problem)
        return ""

    def _open(self, entry: Entry, job: Job) -> list[str]:
        """Shows the job to the contender's worker; the names of the forms it has for it."""
        entry.worker, said = self._workers.get(entry.contender)
        entry.version, entry.empty_call_us = said["version"], said.get("empty_call_us")
        request = {"do": "list", "problem": dataclasses.asdict(job.problem),
                   "tensors": str(job.directory)}
        return entry.worker.ask(request, START_SECONDS)["variants"]

    def _prepare(self, entry: Entry, job: Job) -> None:
        """Gets a contender ready, or says in the entry why it cannot take part."""
        if entry.contender.alternatives:
            self._choose_alternative(entry, job)
        else:
            self._choose_form(entry, job)

    def _choose_alternative(self, entry: Entry, job: Job) -> None:
        """The fastest of the cores a BLAS may be forced to, each in a process of its own."""
        best: tuple[float, Entry] | None = None
        for contender in entry.contender.alternatives:
            trial, label = Entry(contender), contender.core or "its own choice"
            self._choose_form(trial, job)
            if not trial.error and contender.core.lower() not in ("", trial.core.lower()):
                trial.fail("failed", f"not in this library, which takes {trial.core}")
            if trial.error:
                entry.notes.append(f"core {label}: {trial.error}")
                continue
            try:
                seconds = self._quick_time(trial)
            except WorkerFailed as problem:
                entry.notes.append(f"core {label}: {problem}")
                continue
            if best is None or seconds < best[0]:
                best = (seconds, trial)
        if best is None:
            entry.fail("failed", "; ".join(entry.notes))
            return
        for item in dataclasses.fields(Entry):  # its worker, output, figures
            if item.name not in ("contender", "notes", "samples", "settings"):
                setattr(entry, item.name, getattr(best[1], item.name))

    def _quick_time(self, entry: Entry) -> float:
        return min(self._sample(entry, entry.calls)[0] for _ in range(CALIBRATIONS))

    def _choose_form(self, entry: Entry, job: Job) -> None:
        """Builds every form of the layer that this library has, checks each, keeps the fastest."""
        try:
            best = self._find_fastest(entry, job, self._open(entry, job))
            if best is None:
                wrong = any("wrong by" in note for note in entry.notes)
                entry.fail("wrong" if wrong else "failed",
                           "; ".join(entry.notes) or "nothing to build")
                return
            if entry.variant != best:
                self._check(entry, job, self._build(entry, best))
            entry.calls = self._calibrate(entry)
        except WorkerFailed as problem:
            entry.fail(problem.kind, str(problem))

    def _find_fastest(self, entry: Entry, job: Job, names: list[str]) -> str | None:
        """The name of the fastest right form; what happened to others is noted."""
        best: tuple[float, str] | None = None
        for name in names:
            try:
                seconds = self._try_form(entry, job, name, len(names) > 1)
            except WorkerFailed as problem:
                entry.notes.append(f"{name}: {problem}")
                if not entry.worker.alive:  # the other forms get a new process
                    self._open(entry, job)
                continue
            if seconds is not None and (best is None or seconds < best[0]):
                best = (seconds, name)
        return best[1] if best else None

    def _check(self, entry: Entry, job: Job, y: array) -> bool:
        """Keeps the output and its distances; whether it is right. Without an answer in double
        precision our first kernel has nothing to be compared with."""
        entry.output = y
        for key, reference in (("max_error", job.truth), ("difference", job.ours)):
            setattr(entry, key, None if reference is None
                    else judge.difference(job.problem, y, reference))
        reference = job.ours if job.truth is None else job.truth
        return reference is None or entry.distance <= judge.bound(reference)

    def _try_form(self, entry: Entry, job: Job, name: str, choose: bool) -> float | None:
        """Seconds a call of this form takes, None when its output is wrong."""
        if not self._check(entry, job, self._build(entry, name)):
            entry.notes.append(f"{name}: wrong by {entry.distance:.3g}, not timed")
            entry.variant = ""
            return None
        if not choose:
            return 0.0
        entry.calls = self._calibrate(entry)
        return self._quick_time(entry)

    def _calibrate(self, entry: Entry) -> int:
        """Calls that make a sample long enough."""
        calls = 1
        while True:
            seconds = self._sample(entry, calls)[0]
            if seconds * calls >= SAMPLE_SECONDS / 2 or calls >= 1 << 20:
                return max(1, math.ceil(SAMPLE_SECONDS / max(seconds, 1e-9)))
            calls *= 4

    def take_turns(self, entries: list[Entry]) -> None:
        """Rounds of one sample each, everybody first in turn, until time is up."""
        effort, start = self._effort, time.monotonic()
        budget = effort.seconds * len(entries)
        for turn in range(effort.max_rounds):
            running = [entry for entry in entries if not entry.error]
            if not running:
                return
            for step in range(len(running)):
                entry = running[(turn + step) % len(running)]
                try:
                    entry.samples.add(*self._sample(entry, entry.calls))
                except WorkerFailed as problem:
                    entry.fail(problem.kind, str(problem))
            spent = time.monotonic() - start
            waiting = not all(entry.samples.enough(self.machine)
                              for entry in running if not entry.error)
            if turn + 1 >= effort.min_rounds and spent >= budget and (
                    not waiting or spent >= effort.patience * budget):
                return

    def measure(self, p: Problem, contenders: list[Contender], double: Contender,
                directory: Path) -> list[Entry]:
        """All contenders on one problem, ours first."""
        self.machine = Machine()
        tensors.create(p, directory)
        job = Job(p, directory)
        job.truth = self._double(job, double)
        entries = []
        for contender in contenders:
            entry = Entry(contender, settings=list(contender.settings))
            entries.append(entry)
            self._say(f"{p.name}: {contender.title}")
            self._prepare(entry, job)
            if job.ours is None and contender.ours and not entry.error:
                job.ours, entry.difference = entry.output, 0.0
        entries = drop_twins(entries)
        self._say(f"{p.name}: taking turns")
        self.take_turns([entry for entry in entries if not entry.error])
        return entries


def drop_twins(entries: list[Entry]) -> list[Entry]:
    """One entry where a library's fastest core is the one it takes by itself."""
    kept: list[Entry] = []
    for entry in entries:
        twin = next((other for other in kept if other.core and other.core == entry.core
                     and other.blas_library == entry.blas_library and not other.error
                     and not entry.error), None)
        if twin:
            twin.settings += entry.settings
            twin.notes += entry.notes
        else:
            kept.append(entry)
    return kept
