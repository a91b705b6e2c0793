"""Run every package's tests in an environment of its own, then shared/'s, then tests/: two at once where there are two cores.

    python3 tests/house/run_tests.py [--slow] [slug …]

Each package sees only what it declares and the test tools: an undeclared import fails here. A time budget a package is
printed and enforced: 60 s for the fast tests, 180 s for the slow group, which ``--slow`` runs instead of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from common import ROOT, environment, find_uv, minutes, slugs

#: Seconds a package's tests may take on an idle core. Exceptions carry their reason.
BUDGET, SLOW_BUDGET = 60.0, 180.0
LONGER = {"tempo": 90.0, "reference-guidance": 90.0}  # physics and pipelines compile once a process
LONGER["shared"] = 120.0  # harness, command line and page together; whole processes are started and killed
SLOW_LONGER = {"tempo": 420.0}  # MJX compiles the physics of two robots
#: pytest's exit status where no test carries the marker that was asked for.
NO_TESTS = 5
#: Seconds between two lines that say what is running.
HEARTBEAT = 30.0


class Outcome(NamedTuple):
    """One package's tests: pytest's exit status, seconds of the tests, seconds with set-up, and where the output is."""

    name: str
    code: int
    seconds: float
    whole: float
    log: Path


def main(arguments: list[str]) -> int:
    """Run the tests; 0 when all pass within their budgets."""
    slow = "--slow" in arguments
    chosen = [a for a in arguments if not a.startswith("-")]
    known = [*sorted(slugs(), key=lambda s: -LONGER.get(s, BUDGET)), "shared", "tests"]
    unknown = [s for s in chosen if s not in known]
    if unknown:
        print(f"test: expected names among {', '.join(known)}, got {', '.join(unknown)}")
        return 2
    logs = ROOT / "build" / ("tests-slow" if slow else "tests")
    logs.mkdir(parents=True, exist_ok=True)
    rows = [_judge(outcome, slow) for outcome in _all(chosen or known, slow, logs)]
    print("\ntime a package (tests, with set-up):")
    for outcome, _, state in rows:
        print(f"  {outcome.name:<20} {minutes(outcome.seconds):>12} {minutes(outcome.whole):>12}  {state}")
    failed = sum(not good for _, good, _ in rows)
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _all(names: list[str], slow: bool, logs: Path) -> list[Outcome]:
    """Run the packages, as many at once as there are cores (at most two); print each one's output when it has ended."""
    uv, env = find_uv(), environment()
    at_once = min(2, os.cpu_count() or 1, len(names))
    # Test runs share the cores: more threads than cores would make them many times slower.
    env = {**env, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done: list[Outcome] = []
    with ThreadPoolExecutor(at_once) as pool:
        started: dict[str, float] = {}
        open_ = {pool.submit(_one, uv, env, name, slow, logs / f"{name}.log", started) for name in names}
        while open_:
            ended, open_ = wait(open_, timeout=HEARTBEAT, return_when="FIRST_COMPLETED")
            for future in ended:
                outcome = future.result()
                started.pop(outcome.name, None)
                done.append(outcome)
                print(f"\n== tests of {outcome.name} ({len(done)} of {len(names)}) ==", flush=True)
                print(outcome.log.read_text(errors="replace"), flush=True)
            if not ended:
                now = time.monotonic()
                running = ", ".join(f"{name} for {minutes(now - begin)}" for name, begin in sorted(started.items()))
                print(f"test: {len(done)} of {len(names)} done; running: {running}", flush=True)
    return done


def _one(uv: str, env: dict[str, str], name: str, slow: bool, log: Path, started: dict[str, float]) -> Outcome:
    started[name] = begin = time.monotonic()
    marks = "slow and not vllm" if slow else "not slow and not vllm"
    if name == "tests":
        command = [uv, "run", "-q", "--frozen", "--all-packages", "--all-extras", "--group", "dev", "--group", "house"]
        target = "tests"
    else:
        package = "neurips26-shared" if name == "shared" else f"neurips26-{name}"
        command = [uv, "run", "-q", "--frozen", "--isolated", "--package", package, "--all-extras", "--group", "dev"]
        target = "shared/tests" if name == "shared" else f"packages/{name}/tests"
    pytest = [*command, "python", "-m", "pytest", target, "-m", marks, "--durations=5"]
    with log.open("w") as out:
        # The environment is made before the clock starts: the budget is for the tests.
        code, _ = _spent([*command, "python", "-c", "pass"], env, out)
        ready = time.monotonic()
        used = 0.0
        if code == 0:
            code, used = _spent(pytest, env, out)
    # Where other work shares the cores, the wall clock says nothing about the tests: the smaller of both counts.
    seconds = min(time.monotonic() - ready, used)
    return Outcome(name, 0 if code == NO_TESTS and slow else code, seconds, time.monotonic() - begin, log)


def _spent(command: list[str], env: dict[str, str], out) -> tuple[int, float]:
    """Exit status of a command and the CPU seconds of it and its children."""
    child = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, usage.ru_utime + usage.ru_stime


def _judge(outcome: Outcome, slow: bool) -> tuple[Outcome, bool, str]:
    budget = SLOW_LONGER.get(outcome.name, SLOW_BUDGET) if slow else LONGER.get(outcome.name, BUDGET)
    if outcome.name == "tests":
        budget = float("inf")
    if outcome.code:
        return outcome, False, f"failed (pytest exit {outcome.code})"
    if outcome.seconds > budget:
        # A slow or shared machine may take twice the budget; beyond that the tests themselves have grown.
        return outcome, outcome.seconds <= 2 * budget, f"over its budget of {budget:.0f} s"
    return outcome, True, "passed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
