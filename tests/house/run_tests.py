"""Run every package's tests in an environment of its own, then shared/'s, then tests/: two at once where there are two cores.

    python3 tests/house/run_tests.py [--slow] [name …]

Each package sees only what it declares and the test tools: an undeclared import fails here. A time budget a package is
printed and enforced: 60 s for the fast tests, 180 s for the slow group, which ``--slow`` runs instead of them.

The budgets are for a package alone on two idle cores of the machine that `REFERENCE` was measured on. What is enforced
elsewhere: where the same work takes longer (a slower machine, caches that others fill), budgets grow by as much as a
reference does, at most by `MOST_STRETCH`; where others have the cores, or two packages run at once, CPU seconds count where
they are less than the clock's. Both are printed.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from common import ROOT, NoUvError, environment, find_uv, minutes, slugs

#: Seconds a package's fast tests and its slow group may take. Exceptions carry their reason.
BUDGET, SLOW_BUDGET = 60.0, 180.0
LONGER = {"tempo": 90.0, "reference-guidance": 90.0}  # physics and pipelines compile once a process
SLOW_LONGER = {"tempo": 300.0}  # MJX compiles the physics of two robots: two minutes before the first step
#: The tests of the whole house grow with the number of packages: theirs is a budget a package.
HOUSE_A_PACKAGE = 15.0
#: CPU seconds of `_reference` on an idle core of the machine that the budgets are for (a virtual AMD EPYC with two cores).
REFERENCE = 0.09
MOST_STRETCH = 2.0
#: Above this share of the cores other work counts as such.
SHARED_ABOVE = 0.1
#: pytest's exit status where no test carries the marker that was asked for.
NO_TESTS = 5
#: Seconds between two lines that say what is running.
HEARTBEAT = 30.0


class Outcome(NamedTuple):
    """One package's tests: pytest's exit status, wall and CPU seconds of the tests, seconds with set-up, where the output is."""

    name: str
    code: int
    wall: float
    cpu: float
    whole: float
    log: Path


class Conditions(NamedTuple):
    """What the machine was like meanwhile: packages at once, share of the cores that other work had, and how much longer
    `_reference` took."""

    at_once: int
    others: float
    stretch: float

    @property
    def shared(self) -> bool:
        return self.at_once > 1 or self.others > SHARED_ABOVE

    def __str__(self) -> str:
        clock = "the smaller of CPU seconds and the clock counts" if self.shared else "the clock counts"
        stretch = min(max(self.stretch, 1.0), MOST_STRETCH)
        return (
            f"{self.at_once} at once, other work had {self.others:.0%} of the cores: {clock}; a reference took "
            f"{self.stretch:.2f}x its time: budgets are stretched by {stretch:.2f}"
        )


def main(arguments: list[str]) -> int:
    """Run the tests; 0 when all pass within their budgets."""
    slow = "--slow" in arguments
    chosen = [a for a in arguments if a != "--slow"]
    known = [*sorted(slugs(), key=lambda s: -LONGER.get(s, BUDGET)), "shared", "tests"]
    unknown = [s for s in chosen if s not in known]
    if unknown:
        print(f"test: expected --slow and names among {', '.join(known)}, got {', '.join(unknown)}")
        return 2
    try:
        uv = find_uv()
    except NoUvError as error:
        print(f"test: {error}")
        return 1
    logs = ROOT / "build" / ("tests-slow" if slow else "tests")
    logs.mkdir(parents=True, exist_ok=True)
    outcomes, conditions = _all(uv, chosen or known, slow, logs)
    print(f"\n{conditions}\ntime a package (tests by the clock, in CPU seconds, with set-up; budget):")
    failed = 0
    for outcome in outcomes:
        budget = _budget(outcome.name, slow)
        good, state = _judge(outcome, budget, conditions)
        failed += not good
        times = " ".join(f"{minutes(t):>12}" for t in (outcome.wall, outcome.cpu, outcome.whole))
        print(f"  {outcome.name:<20} {times} {budget:>6.0f} s  {state}")
    print(f"{len(outcomes) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _budget(name: str, slow: bool) -> float:
    if name == "tests":
        return (SLOW_BUDGET if slow else HOUSE_A_PACKAGE) * len(slugs())
    return SLOW_LONGER.get(name, SLOW_BUDGET) if slow else LONGER.get(name, BUDGET)


def _judge(outcome: Outcome, budget: float, conditions: Conditions) -> tuple[bool, str]:
    if outcome.code:
        return False, f"failed (pytest exit {outcome.code})"
    seconds = min(outcome.wall, outcome.cpu) if conditions.shared else outcome.wall
    if seconds > budget * min(max(conditions.stretch, 1.0), MOST_STRETCH):
        return False, f"failed: over its budget of {budget:.0f} s"
    return (
        True,
        "passed" if seconds <= budget else f"passed: over {budget:.0f} s, not by more than this machine is slower",
    )


def _reference() -> float:
    """CPU seconds of a fixed piece of work, of the kind that most tests spend their time with."""
    begin = time.thread_time()
    for _ in range(8):
        words = {str(i * 7919 % 100_003): i for i in range(20_000)}
        sum(len(word) * value for word, value in sorted(words.items()))
    return time.thread_time() - begin


def _busy() -> float | None:
    """CPU seconds that all processes of this machine have had; ``None`` where the system does not tell."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _, _, irq, soft, stolen = map(int, fields)
    return (user + nice + system + irq + soft + stolen) / os.sysconf("SC_CLK_TCK")


def _ours() -> float:
    """CPU seconds of this process and of the children that have ended."""
    return sum(os.times()[:4])


def _all(uv: str, names: list[str], slow: bool, logs: Path) -> tuple[list[Outcome], Conditions]:
    """Run the packages, as many at once as there are cores (at most two); print each one's output when it has ended."""
    env = environment()
    cores = os.cpu_count() or 1
    at_once = min(2, cores, len(names))
    busy, ours, begin, references = _busy(), _ours(), time.monotonic(), [_reference()]
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
            references.append(_reference())
            if not ended:
                now = time.monotonic()
                running = ", ".join(f"{name} for {minutes(now - begin)}" for name, begin in sorted(started.items()))
                print(f"test: {len(done)} of {len(names)} done; running: {running}", flush=True)
    others = 0.0
    if busy is not None:
        others = (_busy() - busy - (_ours() - ours)) / ((time.monotonic() - begin) * cores)
    return done, Conditions(at_once, max(others, 0.0), statistics.median(references) / REFERENCE)


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
        ready, cpu = time.monotonic(), 0.0
        if code == 0:
            code, cpu = _spent(pytest, env, out)
    end = time.monotonic()
    # pytest's own clock: the one around it has seconds in which uv makes the environment once more.
    told = re.findall(
        r"(?:passed|failed|skipped|deselected|error|warning)s? in ([0-9.]+)s", log.read_text(errors="replace")
    )
    wall = float(told[-1]) if told else end - ready
    return Outcome(name, 0 if code == NO_TESTS and slow else code, wall, cpu, end - begin, log)


def _spent(command: list[str], env: dict[str, str], out) -> tuple[int, float]:
    """Exit status of a command and the CPU seconds of it and its children."""
    child = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
