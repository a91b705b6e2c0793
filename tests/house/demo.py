"""The main job: set up and run every paper's quick experiment, rewriting the page after each.

    python3 tests/house/demo.py [slug …]

A paper that cannot be set up (a dead network, say) or that fails does not stop the others: the page says so.
"""

from __future__ import annotations

import subprocess
import sys
import time

from common import ROOT, environment, find_uv, minutes, slugs

PAGE = "build/report/index.html"


def main(chosen: list[str]) -> int:
    """Run the demo; 0 when every paper ran."""
    known = slugs()
    unknown = [s for s in chosen if s not in known]
    if unknown:
        print(f"demo: expected slugs among {', '.join(known)}, got {', '.join(unknown)}")
        return 2
    uv, env = find_uv(), environment()
    chosen = chosen or known
    times: list[tuple[str, float, str]] = []
    notes: dict[str, str] = {}
    started = time.monotonic()
    for i, slug in enumerate(chosen, 1):
        print(f"\n== {slug} ({i} of {len(chosen)}) ==", flush=True)
        begin = time.monotonic()
        state = _one(uv, env, slug)
        if state:
            notes[slug] = state
        times.append((slug, time.monotonic() - begin, state or "ran"))
        _page(uv, env, notes)
    print("\ntime a paper:")
    for slug, seconds, state in times:
        print(f"  {slug:<20} {minutes(seconds):>12}  {state}")
    print(f"demo: {len(chosen) - len(notes)} of {len(chosen)} papers ran in {minutes(time.monotonic() - started)}")
    print(f"page: {ROOT / PAGE}")
    return 1 if notes else 0


def _one(uv: str, env: dict[str, str], slug: str) -> str:
    """Set up and run one paper; "" or what went wrong."""
    # --inexact keeps what earlier papers brought: one environment grows from paper to paper.
    sync = [uv, "sync", "--frozen", "--inexact", "--all-extras", "--no-dev", "--package", f"neurips26-{slug}"]
    done = subprocess.run(sync, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(done.stderr)
        return f"could not be set up: {_last(done.stderr)}"
    run = [uv, "run", "--no-sync", "neurips26", "run", slug, "--tier", "quick", "--out", "build"]
    if subprocess.run(run, cwd=ROOT, env=env, check=False).returncode:
        again = subprocess.run(run, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        return f"could not be run: {_last(again.stderr)}" if again.returncode else ""
    return ""


def _page(uv: str, env: dict[str, str], notes: dict[str, str]) -> None:
    command = [uv, "run", "--no-sync", "neurips26", "report", "--out", PAGE]
    if notes:
        command += ["--note", *(f"{slug}={text}" for slug, text in notes.items())]
    subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, check=False)


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(" ".join(lines[-2:]).split())[:300] if lines else "no message"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
