"""Results in the form of `attngen bench --json` (docs/benchmarking.md), so that its report, its
table in the README and its charts take them as they are."""

from __future__ import annotations

import math
import re

from . import table, tensors
from .judge import largest
from .problem import Problem
from .samples import Machine
from .session import Entry

FORMAT = 1


def traffic_bytes(p: Problem) -> int:
    """What one call has to read: every weight, input and cached token once."""
    return 4 * sum(math.prod(shape) for shape in tensors.shapes(p).values())


def load_rate(rates: dict, size: int) -> float:
    """Bandwidth measured over the smallest buffer that is not smaller than `size`."""
    loads = sorted(rates["load"], key=lambda load: load["bytes"])
    return next((load["gbytes_per_s"] for load in loads if load["bytes"] >= size),
                loads[-1]["gbytes_per_s"])


def add_limit(result: dict, flops: float) -> None:
    """What bounds the shape, and the share of it that was reached."""
    compute = flops / result["peak_gflops"] * 1e-3
    load = result["traffic_bytes"] / result["load_gbytes_per_s"] * 1e-3
    bound = max(compute, load)
    result.update(limit="bandwidth" if load > compute else "peak", bound_us=bound)
    if "best_us" in result:
        result["percent_of_peak"] = 100.0 * compute / result["best_us"]
        result["percent_of_limit"] = 100.0 * bound / result["best_us"]
    if "slow_best_us" in result:
        result["slow_percent_of_limit"] = 100.0 * bound / result["slow_best_us"]


def version_of_blas(text: str) -> str:
    """Out of what OpenBLAS and MKL say of themselves."""
    found = re.search(r"(?:OpenBLAS|Version) (\d+(?:\.\d+){1,2})", text)
    return found.group(1) if found else ""


def identity(entry: Entry, kernel: dict | None) -> dict:
    """Who it is; `kernel` is what kernels.lua says of one of ours."""
    result: dict = {"subject": entry.contender.subject}
    if kernel:
        for key in ("isa", "compiler", "compiler_version", "code_bytes", "compile_seconds",
                    "packed_bytes", "workspace_bytes"):
            result[key] = kernel[key]
        return result
    version = entry.version or version_of_blas(entry.blas_library)
    result["label"] = f"{entry.contender.title} {version}".rstrip()
    for key, value in (("form", entry.variant), ("blas_library", entry.blas_library),
                       ("core", entry.core),
                       ("notes", entry.notes), ("settings", entry.settings)):
        if value:
            result[key] = value
    return result


def result_of(entry: Entry, kernel: dict | None, p: Problem, machine: Machine, rates: dict) -> dict:
    """One entry of `results`."""
    result = identity(entry, kernel)
    if entry.error:
        result["failure"] = {"kind": entry.failure, "message": entry.error}
        return result
    result.update(
        right=True, rounds=len(entry.samples.taken), first_call_us=1e6 * entry.first_seconds,
        build_seconds=entry.build_seconds, max_output=largest(entry.output),
        peak_gflops=machine.peak * 1e-9, product_gflops=machine.product * 1e-9,
        traffic_bytes=traffic_bytes(p), **entry.samples.report(machine))
    result["load_gbytes_per_s"] = load_rate(rates, result["traffic_bytes"])
    for key, value in (("max_error", entry.max_error), ("difference", entry.difference),
                       ("empty_call_us", entry.empty_call_us)):
        if value is not None:
            result[key] = value
    add_limit(result, p.flops)
    return result


def settle_fastest(results: list[dict]) -> None:
    """Short trials chose the fastest core and may have erred: the full measurement decides."""
    own = {result["settings"][0]: result for result in results
           if result["subject"] == "openblas" and "failure" not in result}
    packaged, fastest = own.get("packaged"), own.get("fastest")
    if packaged and fastest:
        times, _ = table.ratio(packaged, [fastest])
        if times is not None and times < 1.0:
            packaged["settings"], fastest["settings"] = ["packaged", "fastest"], ["tried"]


def shape_of(shape: dict, p: Problem, entries: list[Entry], machine: Machine,
             rates: dict) -> dict:
    """One entry of `shapes`. A kernel that could not be built is a failed result."""
    kernels = {kernel["id"]: kernel for kernel in shape["kernels"]}
    results = [result_of(entry, kernels.get(entry.contender.id), p, machine, rates)
               for entry in entries]
    settle_fastest(results)
    results += [{"subject": "attngen", "isa": kernel["isa"], "compiler": kernel["compiler"],
                 "failure": {"kind": kernel["failure"], "message": kernel["message"]}}
                for kernel in shape["kernels"] if not kernel["ok"]]
    return {"id": shape["id"], "name": p.name, "flops": shape["flops"], "results": results,
            "lengths": list(p.lengths)}


def refused(shape: dict, why: str) -> dict:
    return {"id": shape["id"], "refused": why, "results": []}


def document(built: dict, shapes: list[dict], settings: dict) -> dict:
    return {"format": FORMAT, "generator": built["generator"], "isas": [built["isa"]],
            "compilers": built["compilers"], "machine": built["machine"], "settings": settings,
            "shapes": shapes}
