"""What CI runs, step by step with its times: tests, checks, wheels, the demo with and without data, the records."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from common import ROOT, environment, find_uv, minutes

#: A step here decides. The others are run and reported, and each moves up once it has passed on a clean clone of an idle
#: machine: until then a red one must be read, not believed to be green.
GATES = ("shared tests", "records", "check")

#: Seconds after which the remaining reported steps are left out, so that the whole ends in time.
TIME_LIMIT = 65 * 60.0


def main() -> int:
    """Run all steps even when one fails; 0 when the deciding ones pass."""
    uv, env = find_uv(), environment()
    no_data = {**env, "NEURIPS26_DATA": ""}
    no_sync = [uv, "run", "--no-sync"]
    runner = [sys.executable, "tests/house/run_tests.py"]
    every = [
        uv,
        "sync",
        "-q",
        "--frozen",
        "--all-packages",
        "--all-extras",
        "--group",
        "dev",
        "--group",
        "check",
        "--group",
        "house",
    ]
    steps = [
        ("shared tests", [*runner, "shared"], env),
        ("setup", every, env),
        ("records", [*no_sync, "neurips26", "verify", "results"], env),
        ("test", ["make", "test"], env),
        ("check", ["make", "check"], env),
        ("wheels", ["make", "wheels"], env),
        ("demo", ["make", "demo"], env),
        ("demo without data", ["make", "demo"], no_data),
        ("records made again", [*no_sync, "neurips26", "verify", "results", "--rerun"], env),
        ("slow tests", ["make", "test-slow"], env),
        ("clean tree", ["git", "diff", "--exit-code", "--stat"], env),
    ]
    rows, started = [], time.monotonic()
    for name, command, variables in steps:
        left = TIME_LIMIT - (time.monotonic() - started)
        if name not in GATES and left <= 0:
            rows.append((name, 0.0, None))
            continue
        print(f"\n#### {name}: {' '.join(os.path.basename(c) for c in command)}", flush=True)
        begin = time.monotonic()
        if name == "demo without data":
            subprocess.run(["rm", "-rf", "build"], cwd=ROOT, check=False)
        code = _run(command, variables, None if name in GATES else left)
        rows.append((name, time.monotonic() - begin, code))
    print("\ntime a step:")
    for name, seconds, code in rows:
        state = "left out for time" if code is None else "passed" if code == 0 else f"failed ({code})"
        print(f"  {name:<20} {minutes(seconds):>12}  {state}{'' if name in GATES else ' (reported)'}")
    deciding = [code for name, _, code in rows if name in GATES]
    failed = sum(code != 0 for code in deciding)
    print(f"{len(deciding) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _run(command: list[str], env: dict[str, str], limit: float | None) -> int:
    """Exit status of a command in a process group of its own; 124 when it outlasted ``limit`` and the group was ended."""
    child = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True)
    try:
        return child.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return 124


if __name__ == "__main__":
    sys.exit(main())
