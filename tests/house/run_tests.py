"""Run every package's tests in an environment of its own, then shared/, then tests/.

    python3 tests/house/run_tests.py [--slow] [slug …]

Each package sees only what it declares and the test tools: an undeclared import fails here. A time budget a package is
printed and enforced (60 s; with ``--slow`` 180 s more for the slow group).
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

from common import ROOT, environment, find_uv, minutes, slugs

#: Seconds a package's tests may take on two idle cores. Exceptions carry their reason.
BUDGET, SLOW_BUDGET = 60.0, 180.0
LONGER = {"tempo": 90.0, "reference-guidance": 90.0}  # physics and pipelines compile once a process
LONGER["shared"] = 120.0  # harness, command line and page together; whole processes are started and killed


def main(arguments: list[str]) -> int:
    """Run the tests; 0 when all pass within their budgets."""
    slow = "--slow" in arguments
    chosen = [a for a in arguments if not a.startswith("-")]
    known = [*slugs(), "shared", "tests"]
    unknown = [s for s in chosen if s not in known]
    if unknown:
        print(f"test: expected names among {', '.join(known)}, got {', '.join(unknown)}")
        return 2
    uv, env = find_uv(), environment()
    rows, failed = [], 0
    for name in chosen or known:
        print(f"\n== tests of {name} ==", flush=True)
        begin = time.monotonic()
        code, seconds = _one(uv, env, name, slow)
        whole = time.monotonic() - begin
        budget = float("inf") if name == "tests" else LONGER.get(name, BUDGET) + SLOW_BUDGET * slow
        state = "passed" if code == 0 else f"failed (pytest exit {code})"
        if code == 0 and seconds > budget:
            # A slow or shared machine may take twice the budget; beyond that the tests themselves have grown.
            code, state = int(seconds > 2 * budget), f"passed, over its budget of {budget:.0f} s"
        failed += code != 0
        rows.append((name, seconds, whole, state))
    print("\ntime a package (tests, with set-up):")
    for name, seconds, whole, state in rows:
        print(f"  {name:<20} {minutes(seconds):>12} {minutes(whole):>12}  {state}")
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _one(uv: str, env: dict[str, str], name: str, slow: bool) -> tuple[int, float]:
    marks = [] if slow else ["-m", "not slow and not vllm"]
    if slow:
        marks = ["-m", "not vllm"]
    if name == "tests":
        command = [uv, "run", "--frozen", "--all-packages", "--all-extras", "--group", "dev", "--group", "house"]
        target = "tests"
    else:
        package = "neurips26-shared" if name == "shared" else f"neurips26-{name}"
        command = [uv, "run", "--frozen", "--isolated", "--package", package, "--all-extras", "--group", "dev"]
        target = "shared/tests" if name == "shared" else f"packages/{name}/tests"
    # The environment is made before the clock starts: the budget is for the tests.
    ready = subprocess.run([*command, "python", "-c", "pass"], cwd=ROOT, env=env, check=False)
    if ready.returncode:
        return ready.returncode, 0.0
    begin, used = time.monotonic(), _cpu_seconds()
    done = subprocess.run([*command, "python", "-m", "pytest", target, *marks], cwd=ROOT, env=env, check=False)
    # Where other work shares the cores, the wall clock says nothing about the tests: the smaller of both counts.
    return done.returncode, min(time.monotonic() - begin, _cpu_seconds() - used)


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
