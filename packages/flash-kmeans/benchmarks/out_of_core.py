"""A file larger than the memory budget, a fit that is killed, and its continuation: must equal, bit for bit, the fit that
never stopped.

    python packages/flash-kmeans/benchmarks/out_of_core.py                 # 4 GB in a temporary folder, removed at the end
    python packages/flash-kmeans/benchmarks/out_of_core.py --gb 0.2 --limit 25 --folder build
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

D, K, ITERATIONS = 128, 64, 5


def write_points(path: Path, gigabytes: float) -> int:
    """Points around 200 centres, in pieces; returns N."""
    n = int(gigabytes * 1e9 / (4 * D))
    x = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, D))
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((200, D), dtype=np.float32) * 2
    for start in range(0, n, 100_000):
        size = min(100_000, n - start)
        x[start : start + size] = centres[rng.integers(0, 200, size)] + rng.standard_normal((size, D), dtype=np.float32)
    x.flush()
    return n


def fit(path: Path, out: Path, limit: int, *options: str) -> None:
    """In a process of its own: cluster the memory map, write the result and the memory that it took."""
    from neurips26.flash_kmeans import kmeans
    from neurips26.flash_kmeans.memory import _resident

    x = np.load(path, mmap_mode="r")
    kmeans(np.zeros((64, D), np.float32), 1, threads=1)  # compiled code is not what is measured
    before, start = _resident(restart=True), time.process_time()
    checkpoint = {"checkpoint": options[0], "resume": "resume" in options} if options else {}
    r = kmeans(x, K, seed=0, max_iter=ITERATIONS, tol=-1, threads=1, memory_limit=limit, **checkpoint)
    figures = {"extra_bytes": _resident() - before, "cpu_seconds": time.process_time() - start, "n_iter": r.n_iter}
    np.savez(out, centroids=r.centroids, labels=r.labels, history=r.history, inertia=r.inertia)
    out.with_suffix(".json").write_text(json.dumps(figures))


def iterations(checkpoint: Path) -> int:
    """Iterations that a checkpoint holds (0 where there is none yet)."""
    if not checkpoint.exists():
        return 0
    with open(checkpoint, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return json.loads(header["__metadata__"]["state"])["n_iter"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=4.0)
    parser.add_argument("--limit", type=int, default=512, help="memory limit in MB")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--fit", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    limit = arguments.limit * 1_000_000
    if arguments.fit:
        fit(Path(arguments.fit[0]), Path(arguments.fit[1]), limit, *arguments.fit[2:])
        return 0

    def run(*words: str | Path) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, __file__, "--limit", str(arguments.limit), "--fit", *map(str, words)])

    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        path, state = folder / "x.npy", folder / "state"
        n = write_points(path, arguments.gb)
        print(
            f"N={n}, D={D}, K={K}: a file of {path.stat().st_size / 1e9:.2f} GB, limit {arguments.limit} MB", flush=True
        )
        if run(path, folder / "whole.npz").wait():
            return 1
        killed = run(path, folder / "never.npz", state)
        while iterations(state) < 2:
            if killed.poll() is not None:
                print("the fit ended before it could be killed: choose a larger --gb", file=sys.stderr)
                return 1
            time.sleep(0.02)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        print(f"killed (SIGKILL) with a checkpoint of {iterations(state)} of {ITERATIONS} iterations", flush=True)
        if run(path, folder / "resumed.npz", state, "resume").wait():
            return 1
        whole, resumed = (np.load(folder / f"{name}.npz") for name in ("whole", "resumed"))
        for key in whole.files:
            if whole[key].tobytes() != resumed[key].tobytes():
                print(f"{key} differ between the resumed fit and the one that never stopped", file=sys.stderr)
                return 1
        for name in ("whole", "resumed"):
            figures = json.loads((folder / f"{name}.json").read_text())
            print(f"{name}: peak {figures['extra_bytes'] / 1e6:.0f} MB added, {figures['cpu_seconds']:.1f} CPU s")
            # Labels, distances and a checkpoint's copies of the labels have a number for each point.
            if figures["extra_bytes"] > limit + 24 * n + 2_000_000:
                print(f"{name}: more memory than the limit of {arguments.limit} MB allows", file=sys.stderr)
                return 1
        print(f"bitwise equal: {', '.join(whole.files)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
