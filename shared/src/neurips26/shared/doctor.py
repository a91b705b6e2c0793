"""What this machine has."""

from __future__ import annotations

import os
import platform
import shutil
from importlib import metadata
from pathlib import Path

import psutil

from neurips26.shared import data, registry
from neurips26.shared.record import gpu_name

__all__ = ["diagnose"]

_NAMED = ("torch", "triton", "jax", "flwr", "transformers", "diffusers", "mujoco", "numpy", "scikit-learn")


def diagnose() -> dict[str, str]:
    """Facts by name; nothing heavy is imported."""
    memory = psutil.virtual_memory()
    disk = shutil.disk_usage(Path.cwd())
    papers = registry.papers()
    declared = [d for p in papers for d in p.data]
    present, wrong = 0, []
    for item in declared:
        try:
            present += data.find_set(item) is not None
        except data.ChecksumError as error:
            wrong.append(str(error))
    versions = []
    for name in _NAMED:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    folder = os.environ.get("NEURIPS26_DATA")
    return {
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cores": f"{psutil.cpu_count()} ({os.cpu_count()} logical)",
        "memory": f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free",
        "disk": f"{disk.free / 2**30:.0f} GiB free here",
        "gpu": gpu_name() or "none: claims that need one read 'not testable here'",
        "papers": f"{len(papers)} installed, {sum(bool(p.error) for p in papers)} broken",
        "data": "; ".join(
            [f"{present} of {len(declared)} declared files present", f"NEURIPS26_DATA={folder or 'not set'}", *wrong]
        ),
        "versions": ", ".join(versions),
    }
