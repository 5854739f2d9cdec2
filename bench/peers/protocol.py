"""Requests to a worker process and its answers: one JSON object a line, over its stdin and stdout.

A request has "do"; an answer has "ok" and either its fields or "error". Libraries that print must
not break the conversation: a worker keeps the real stdout for answers and lets everything else that
is printed go to stderr, which the driver collects in a file.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

GRACE = 5.0  # seconds a worker gets to leave by itself


class WorkerFailed(Exception):
    """The worker died ("crash"), gave no answer in time ("hang") or answered with an error
    ("failed")."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Worker:
    """The driver's end of one worker process."""

    def __init__(self, words: list[str], environment: dict[str, str], log: Path) -> None:
        self._log = log
        self._buffer = b""
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=stderr)

    def ask(self, request: dict, seconds: float) -> dict:
        """Sends one request and waits for its answer, `seconds` at most."""
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise WorkerFailed("crash", self._death()) from None
        line = self._read_line(time.monotonic() + seconds, seconds)
        try:
            answer = json.loads(line)
            ok = answer["ok"]
        except (ValueError, KeyError, TypeError):
            self.kill()
            raise WorkerFailed("failed", f"no answer but {line[:80]!r}") from None
        if not ok:
            raise WorkerFailed("failed", str(answer.get("error", "no reason given")))
        return answer

    def _read_line(self, deadline: float, seconds: float) -> bytes:
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                self.kill()
                raise WorkerFailed("hang", f"no answer within {seconds:g} s")
            chunk = os.read(pipe, 65536)
            if not chunk:
                raise WorkerFailed("crash", self._death())
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _death(self) -> str:
        """Why the process is gone, with the last line it printed."""
        try:
            code = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its output"
        how = f"died of signal {-code}" if code < 0 else f"exited with {code}"
        lines = self._log.read_text(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{how}: {said}" if said else how

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Lets the process end by itself, else ends it."""
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()


def serve(handlers: dict[str, Callable[[dict], dict]]) -> None:
    """The worker's end: answers requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            request = json.loads(line)
            answer = {"ok": True, **handlers[request["do"]](request)}
        except Exception as problem:  # whatever a library raises is an answer, not the end
            answer = {"ok": False, "error": one_line(problem)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def one_line(problem: BaseException) -> str:
    """An exception as one short line."""
    text = " ".join(str(problem).split()) or "no message"
    return f"{type(problem).__name__}: {text[:240]}"
