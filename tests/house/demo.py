"""The main job: set up and run every paper's quick experiment, rewriting the page after each.

    python3 tests/house/demo.py [slug …]

A paper that cannot be set up (a dead network, say) or that fails does not stop the others: the page says so, also where
nothing at all could be set up.
"""

from __future__ import annotations

import html
import subprocess
import sys
import time

from common import ROOT, NoUvError, environment, find_uv, last_lines, minutes, slugs

PAGE = "build/report/index.html"


def main(chosen: list[str]) -> int:
    """Run the demo; 0 when every paper ran."""
    known = slugs()
    unknown = [s for s in chosen if s not in known]
    if unknown:
        print(f"demo: expected slugs among {', '.join(known)}, got {', '.join(unknown)}")
        return 2
    chosen, env = chosen or known, environment()
    try:
        uv = find_uv()
    except NoUvError as error:
        _plain_page(dict.fromkeys(chosen, str(error)))
        print(f"demo: {error}\npage: {ROOT / PAGE}")
        return 1
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
        return f"could not be set up: {last_lines(done.stderr)}"
    run = [uv, "run", "--no-sync", "neurips26", "run", slug, "--tier", "quick", "--out", "build"]
    if subprocess.run(run, cwd=ROOT, env=env, check=False).returncode:
        again = subprocess.run(run, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        return f"could not be run: {last_lines(again.stderr)}" if again.returncode else ""
    return ""


def _page(uv: str, env: dict[str, str], notes: dict[str, str]) -> None:
    command = [uv, "run", "--no-sync", "neurips26", "report", "--out", PAGE]
    if notes:
        command += ["--note", *(f"{slug}={text}" for slug, text in notes.items())]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, check=False, **quiet)
    if done.returncode:
        _plain_page(notes or {"report": last_lines(done.stderr)})


def _plain_page(notes: dict[str, str]) -> None:
    """The page where the report itself cannot run: what went wrong, in the standard library's means."""
    rows = "".join(f"<h2>{html.escape(slug)}</h2><pre>{html.escape(text)}</pre>" for slug, text in notes.items())
    page = ROOT / PAGE
    page.parent.mkdir(parents=True, exist_ok=True)
    head = (
        '<!doctype html><meta charset="utf-8"><title>neurips26</title><meta name="color-scheme" content="light dark">'
    )
    page.write_text(f"{head}<h1>neurips26: the demo did not run</h1>{rows}\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
