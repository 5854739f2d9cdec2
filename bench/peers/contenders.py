"""Who takes part: what each needs, and the environment that keeps it on one thread."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Contender:
    """`options` go to the worker as they are; `environment` is added to the driver's own. `subject`
    is its name in the JSON document. Of `alternatives` the fastest is taken; a `core` that an
    alternative forces must be the one the library then reports."""

    id: str
    title: str
    subject: str
    options: dict
    environment: dict[str, str] = field(default_factory=dict)
    core: str = ""
    settings: tuple[str, ...] = ()
    alternatives: tuple[Contender, ...] = ()

    @property
    def ours(self) -> bool:
        return self.subject == "attngen"


# Names for the command line: what people see, and what pip installs for it.
PEERS = {
    "torch": ("PyTorch", "torch"),
    "compiled": ("PyTorch, compiled", "torch"),
    "onnxruntime": ("ONNX Runtime", "onnxruntime and onnx"),
    "openvino": ("OpenVINO", "openvino"),
    "mkl": ("MKL", "mkl"),
    "openblas": ("OpenBLAS (PyPI)", "scipy-openblas32"),
    "packaged": ("OpenBLAS", "libopenblas0-pthread"),
    "fastest": ("OpenBLAS", "libopenblas0-pthread"),
}

SUBJECTS = {
    "compiled": "torch-compiled",
    "openblas": "openblas-pypi",
    "packaged": "openblas",
    "fastest": "openblas",
}

BLAS = ("mkl", "openblas", "packaged", "fastest")

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MKL_THREADING_LAYER": "SEQUENTIAL",
    "ORT_DISABLE_TELEMETRY": "1",
    "PYTHONWARNINGS": "ignore",
}

# What a user's shell may have set and a library would obey.
FOREIGN = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "MKL_ENABLE_INSTRUCTIONS",
           "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")


def mkl_library() -> str | None:
    found = sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"))
    return str(found[-1]) if found else None


def pypi_openblas() -> str | None:
    package = importlib.util.find_spec("scipy_openblas32")
    for place in (package.submodule_search_locations or []) if package else []:
        for library in sorted(Path(place, "lib").glob("libscipy_openblas.so*")):
            return str(library)
    return None


def blas(name: str, system: str) -> tuple[str | None, str]:
    """(shared object or None, what it puts before its symbols) of a BLAS by its peer name."""
    if name == "mkl":
        return mkl_library(), ""
    if name == "openblas":
        return pypi_openblas(), "scipy_"
    return system, ""


def blas_contender(name: str, options: dict, built: dict) -> Contender | None:
    """A BLAS under the common baseline; None when there is no such library."""
    title, _ = PEERS[name]
    library, prefix = blas(name, built["blas"]["library"])
    if library is None:
        return None
    options = {**options, "engine": "blas", "blas": library, "blas_prefix": prefix,
               "variant": "fused QKV"}
    subject = SUBJECTS.get(name, name)

    def forced(core: str) -> Contender:
        return Contender(f"{name}-{core}", f"{title} {core}", subject, options,
                         {"OPENBLAS_CORETYPE": core}, core)

    by_itself = Contender(f"{name}-default", title, subject, options)
    if name in ("mkl", "packaged"):
        settings = ("packaged",) if name == "packaged" else ()
        return Contender(name, title, subject, options, settings=settings)
    cores = tuple(forced(core) for core in built["blas"]["cores"])
    if name == "openblas":
        return Contender(name, title, subject, options, alternatives=(by_itself, *cores))
    return Contender(name, title, subject, options, settings=("fastest",),
                     alternatives=cores or (by_itself,))


def peers(names: list[str], built: dict) -> tuple[list[Contender], dict[str, str]]:
    """The contenders with these names, and {name: why not} for a BLAS that is missing. Missing
    Python packages are found out by their workers. `built` is what kernels.lua printed."""
    found, missing = [], {}
    for name in names:
        title, package = PEERS[name]
        options = {"engine": name, "gauge": built["gauge"]}
        contender = Contender(name, title, SUBJECTS.get(name, name), options)
        if name in BLAS:
            contender = blas_contender(name, options, built)
        if contender is None:
            missing[name] = f"not installed ({package})"
        else:
            found.append(contender)
    return found, missing


def kernel(item: dict, gauge: str) -> Contender:
    """A generated kernel as kernels.lua describes it."""
    title = f"attngen {item['isa']} {item['compiler']}"
    options = {"engine": "attngen", "gauge": gauge, "library": item["shared"],
               "prefix": item["prefix"], "variant": f"{item['isa']}, {item['compiler']}"}
    return Contender(f"attngen-{item['compiler']}", title, "attngen", options)


def environment(contender: Contender, scratch: Path) -> dict[str, str]:
    """The driver's environment with one thread everywhere and caches in the build directory."""
    inherited = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"), "TMPDIR": str(scratch)}
    return {**inherited, **ONE_THREAD, **caches, **contender.environment}
