"""What CI runs, step by step with its times: tests, checks, wheels, the demo with and without data, the records."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from common import ROOT, environment, find_uv, minutes

#: Seconds after which the remaining steps fail unrun, so that the summary is printed before a runner ends the job.
TIME_LIMIT = 80 * 60.0


def main() -> int:
    """Run all steps even when one fails; 0 when every one passes."""
    uv, env = find_uv(), environment()
    no_data = {**env, "NEURIPS26_DATA": ""}
    no_sync = [uv, "run", "--no-sync"]
    whole = ["sync", "-q", "--frozen", "--all-packages", "--all-extras", "--group", "dev", "--group", "check", "--group", "house"]
    steps = [
        ("test", ["make", "test"], env),
        ("check", ["make", "check"], env),
        ("wheels", ["make", "wheels"], env),
        # The demo with its own set-up, as a stranger types it; the second one finds no data folder and no old page.
        ("demo", ["make", "demo"], env),
        ("demo without data", ["make", "demo"], no_data),
        ("setup", [uv, *whole], env),
        ("records", [*no_sync, "neurips26", "verify", "results", "--rerun"], env),
        ("slow tests", ["make", "test-slow"], env),
        ("clean tree", ["git", "diff", "--exit-code", "--stat"], env),
    ]
    rows, started = [], time.monotonic()
    for name, command, variables in steps:
        print(f"\n#### {name}: {' '.join(os.path.basename(c) for c in command)}", flush=True)
        begin = time.monotonic()
        if name == "demo without data":
            subprocess.run(["rm", "-rf", "build/report", "build/.work"], cwd=ROOT, check=False)
        code = _run(command, variables, TIME_LIMIT - (begin - started))
        rows.append((name, time.monotonic() - begin, code))
    print("\ntime a step:")
    for name, seconds, code in rows:
        print(f"  {name:<20} {minutes(seconds):>12}  {'passed' if code == 0 else f'failed ({code})'}")
    failed = sum(code != 0 for *_, code in rows)
    print(f"{len(rows) - failed} passed, {failed} failed in {minutes(time.monotonic() - started)}")
    return 1 if failed else 0


def _run(command: list[str], env: dict[str, str], limit: float) -> int:
    """Exit status of a command in a process group of its own; 124 when it outlasted ``limit`` and the group was ended."""
    if limit <= 0:
        return 124
    child = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True)
    try:
        return child.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return 124


if __name__ == "__main__":
    sys.exit(main())
