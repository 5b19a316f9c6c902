"""What `sgoif info` tells: everything that a result can depend on, and what is installed.

Extras come from the metadata of the installed package. No names of hosts, people or folders are told, so that the
answer can be pasted into a bug report.
"""

import os
import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

import torch

from sgoif.core.provenance import machine, versions
from sgoif.device.selection import choose_device

VARIABLES = (
    "PYTHONHASHSEED",
    "CUBLAS_WORKSPACE_CONFIG",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE",
)
"""Environment variables that change results or their order, or how many cores compute them."""
FOR_DEVELOPERS = ("dev", "docs")
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*(?:\[(?P<extras>[^\]]*)\])?")
EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


def facts() -> dict[str, Any]:
    """Versions, machine, what decides whether a run can be repeated, and extras."""
    return {
        "versions": versions(),
        "machine": machine(choose_device("auto")),
        "cuda_devices": torch.cuda.device_count(),
        "torch": build(),
        "reproducibility": reproducibility(),
        "extras": extras(),
    }


def build() -> dict[str, Any]:
    """How torch was built."""
    return {
        "version": torch.__version__,
        "revision": torch.version.git_version,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "hip": torch.version.hip,
        "openmp": torch.backends.openmp.is_available(),
        "mkl": torch.backends.mkl.is_available(),
    }


def reproducibility() -> dict[str, Any]:
    """What decides whether the same seed gives the same bits; as this process has it, before any code of yours."""
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "environment": {name: os.environ.get(name) for name in VARIABLES},
    }


def extras() -> dict[str, dict[str, Any]]:
    """For every extra, its packages with installed versions, those missing, and how to get them."""
    wanted = requirements()
    found = {}
    for extra in wanted:
        if extra in FOR_DEVELOPERS:
            continue
        packages = {name: _installed(name) for name in sorted(_flattened(extra, wanted))}
        missing = [name for name, version in packages.items() if version is None]
        entry: dict[str, Any] = {"installed": not missing, "packages": packages}
        if missing:
            entry |= {"missing": missing, "install": f"pip install 'sgoif[{extra}]'"}
        found[extra] = entry
    return found


def requirements() -> dict[str, list[str]]:
    """The requirements of every extra, as they were declared; none where the package is not installed."""
    try:
        described = metadata.distribution("sgoif")
    except metadata.PackageNotFoundError:
        return {}
    known: dict[str, list[str]] = {extra: [] for extra in described.metadata.get_all("Provides-Extra") or []}
    for line in described.requires or []:
        for extra in EXTRA.findall(line):
            known[extra].append(line.partition(";")[0].strip())
    return known


def shown(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The facts line by line, for a person."""
    for name, value in {**found["versions"], **found["machine"], "cuda_devices": found["cuda_devices"]}.items():
        yield name.replace("_", " "), _said(value)
    for name in ("cudnn", "hip"):
        yield name, _said(found["torch"][name])
    for name, value in found["reproducibility"].items():
        if name == "environment":
            yield from ((variable, _said(given)) for variable, given in value.items())
        else:
            yield name.replace("_", " "), _said(value)
    for extra, entry in found["extras"].items():
        if entry["installed"]:
            present = ", ".join(f"{name} {version}" for name, version in entry["packages"].items())
            yield f"extra {extra}", present
        else:
            yield f"extra {extra}", f"missing {', '.join(entry['missing'])}; {entry['install']}"


def _said(value: Any) -> str:
    if value is None:
        return "–"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _flattened(extra: str, wanted: Mapping[str, list[str]], seen: frozenset[str] = frozenset()) -> set[str]:
    """Packages of an extra, those of the extras it names included."""
    found: set[str] = set()
    for match in filter(None, map(REQUIREMENT.match, wanted.get(extra, []))):
        if match["name"].lower() != "sgoif":
            found.add(match["name"])
            continue
        for name in {name.strip() for name in (match["extras"] or "").split(",")} - seen - {extra}:
            found |= _flattened(name, wanted, seen | {extra})
    return found


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
