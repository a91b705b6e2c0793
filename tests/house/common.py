"""What the house's own scripts share. Standard library only: they run before anything is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: A uv of our own where none is installed.
PRIVATE_UV = ROOT / ".uv"
OLDEST_UV = (0, 8)


def slugs() -> list[str]:
    """The papers: every folder of packages/ with a pyproject."""
    return sorted(p.parent.name for p in (ROOT / "packages").glob("*/pyproject.toml"))


class NoUvError(RuntimeError):
    """No usable uv is installed and pip could not bring one."""


def find_uv() -> str:
    """Path of a usable uv: the installed one, else one brought by pip into ``.uv``.

    Raises:
        NoUvError: the message is pip's last line.
    """
    # A uv inside .venv/bin came with a dependency (flwr) and is not the user's.
    path = os.pathsep.join(p for p in os.environ.get("PATH", "").split(os.pathsep) if ".venv" not in p)
    installed = shutil.which("uv", path=path)
    if installed and _version(installed) >= OLDEST_UV:
        return installed
    private = PRIVATE_UV / "bin" / "uv"
    if not private.exists():
        print("setup: no uv here; fetching it with pip into .uv/", flush=True)
        python = str(PRIVATE_UV / "bin" / "python")
        for command in (
            [sys.executable, "-m", "venv", str(PRIVATE_UV)],
            [python, "-m", "pip", "install", "-q", "uv>=0.8"],
        ):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode:
                raise NoUvError(f"no uv here, and pip could not bring it: {last_lines(done.stdout)}")
    return str(private)


def _version(uv: str) -> tuple[int, ...]:
    text = subprocess.run([uv, "--version"], capture_output=True, text=True, check=False).stdout.split()
    try:
        return tuple(int(x) for x in text[1].split(".")[:2])
    except (IndexError, ValueError):
        return (0, 0)


def environment() -> dict[str, str]:
    """The environment of every child: the data folder beside the checkout where there is one, no foreign venv."""
    env = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
    beside = ROOT.parent / "shared" / "data"
    if "NEURIPS26_DATA" not in env:
        env["NEURIPS26_DATA"] = str(beside) if beside.is_dir() else ""
    env.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    env.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    env.setdefault("HF_HUB_OFFLINE", "1")
    return env


def last_lines(text: str, n: int = 2) -> str:
    """The last lines of what a command said, as one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(" ".join(lines[-n:]).split())[:300] if lines else "no message"


def minutes(seconds: float) -> str:
    """``75`` as ``1 min 15 s``."""
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
