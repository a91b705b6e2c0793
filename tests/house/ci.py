"""What CI runs, step by step with its times: tests, the demo with and without data, records, checks, wheels, slow tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from common import ROOT, NoUvError, environment, find_uv, minutes

#: Seconds after which the remaining steps fail unrun, so that the summary is printed before a runner ends the job.
TIME_LIMIT = 80 * 60.0


class Step(NamedTuple):
    """A command, its environment, and whether its output is kept until it ends (it runs beside another step)."""

    name: str
    command: Sequence[str]
    env: dict[str, str]
    quiet: bool = False


def main() -> int:
    """Run all steps even when one fails; 0 when every one passes."""
    try:
        uv, env = find_uv(), environment()
    except NoUvError as error:
        print(f"ci: {error}")
        return 1
    no_data = {**env, "NEURIPS26_DATA": ""}
    groups = [f for name in ("dev", "check", "house") for f in ("--group", name)]
    everything = [uv, "sync", "-q", "--frozen", "--all-packages", "--all-extras", *groups]
    verify = [uv, "run", "--no-sync", "neurips26", "verify", "results", "--rerun"]
    started, before = time.monotonic(), _changes()
    rows = _lane([Step("test", ["make", "test"], env), Step("demo", ["make", "demo"], env)], started)
    # Once more where there is no data folder and no old page, and beside it what needs no core of its own.
    subprocess.run(["rm", "-rf", "build/report", "build/.work"], cwd=ROOT, check=False)
    rows += _lane([Step("setup", everything, env)], started)
    with ThreadPoolExecutor(2) as pool:
        lanes = [
            [Step("demo without data", ["make", "demo"], no_data)],
            [
                Step("records", verify, env, quiet=True),
                Step("check", ["make", "check"], env, quiet=True),
                Step("wheels", ["make", "wheels"], env, quiet=True),
            ],
        ]
        for lane in pool.map(lambda steps: _lane(steps, started), lanes):
            rows += lane
    rows += _lane([Step("slow tests", ["make", "test-slow"], env)], started)
    left = sorted(set(_changes()) - set(before))
    print("\n#### clean tree: " + ("; ".join(left) or "nothing changed, nothing left behind"))
    rows.append(("clean tree", 0.0, int(bool(left))))
    print("\ntime a step:")
    for name, seconds, code in rows:
        print(f"  {name:<20} {minutes(seconds):>12}  {'passed' if code == 0 else f'failed ({code})'}")
    failed = sum(code != 0 for *_, code in rows)
    print(f"{len(rows) - failed} passed, {failed} failed in {minutes(time.monotonic() - started)}")
    return 1 if failed else 0


def _changes() -> list[str]:
    """What ``git status`` has to say."""
    done = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def _lane(steps: list[Step], started: float) -> list[tuple[str, float, int]]:
    """Run steps one after the other: name, seconds and exit status of each."""
    rows = []
    for step in steps:
        begin = time.monotonic()
        print(f"\n#### {step.name}: {' '.join(os.path.basename(c) for c in step.command)}", flush=True)
        code = _run(step, TIME_LIMIT - (begin - started))
        rows.append((step.name, time.monotonic() - begin, code))
    return rows


def _run(step: Step, limit: float) -> int:
    """Exit status of a step in a process group of its own; 124 when it outlasted ``limit`` and the group was ended."""
    if limit <= 0:
        return 124
    sink = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if step.quiet else {}
    child = subprocess.Popen(step.command, cwd=ROOT, env=step.env, start_new_session=True, **sink)
    try:
        said, _ = child.communicate(timeout=limit)
        code = child.returncode
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        said, _ = child.communicate()
        code = 124
    if step.quiet:
        print(f"\n#### {step.name}, which ran beside another step:\n{said.decode(errors='replace')}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
