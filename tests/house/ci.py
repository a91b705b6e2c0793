"""What CI runs, step by step with its times: tests, checks, wheels, the demo with and without data, the records."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from common import ROOT, environment, find_uv, minutes


def main() -> int:
    """Run all steps even when one fails; 0 when all pass."""
    uv, env = find_uv(), environment()
    no_data = {**env, "NEURIPS26_DATA": ""}
    no_sync = [uv, "run", "--no-sync"]
    steps = [
        ("test", ["make", "test-slow"], env),
        ("check", ["make", "check"], env),
        ("wheels", ["make", "wheels"], env),
        ("demo", ["make", "demo"], env),
        ("records", [*no_sync, "neurips26", "verify", "results", "--rerun"], env),
        ("demo without data", ["make", "demo"], no_data),
        ("clean tree", ["git", "diff", "--exit-code", "--stat"], env),
    ]
    rows = []
    for name, command, variables in steps:
        print(f"\n#### {name}: {' '.join(os.path.basename(c) for c in command)}", flush=True)
        begin = time.monotonic()
        if name == "demo without data":
            subprocess.run(["rm", "-rf", "build"], cwd=ROOT, check=False)
        code = subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode
        rows.append((name, time.monotonic() - begin, code))
    print("\ntime a step:")
    for name, seconds, code in rows:
        print(f"  {name:<20} {minutes(seconds):>12}  {'passed' if code == 0 else f'failed ({code})'}")
    failed = sum(code != 0 for _, _, code in rows)
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
