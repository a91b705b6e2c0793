"""One run on one GPU (H200 class, at most 8 minutes): writes `results/flash-kmeans/gpu.json`.

Needs: this package with torch >= 2.8 and triton 3.4 to 3.9, and, for the comparison with the authors' code,
`pip install flash-kmeans==0.3.1` (import name `flash_kmeans`; it does not collide with ours). Run it in a clean checkout:

    python packages/flash-kmeans/benchmarks/gpu.py
    python packages/flash-kmeans/benchmarks/gpu.py --dry-run    # every step on small shapes, on a CPU, in Triton's interpreter

After 8 minutes it stops with status 3; finished steps are kept, and the next run goes on from there.
"""

import os
import signal
import sys
import time

MINUTES = 8


def rehearse() -> int:
    """Every step in small, in the interpreter. Times mean nothing here; counts and ratios of memory do, and are printed."""
    os.environ["TRITON_INTERPRET"] = "1"
    from neurips26.flash_kmeans import gpu_bench

    for name, step in gpu_bench.STEPS.items():
        start = time.process_time()
        values = step(gpu_bench.rehearsal())
        seen = ", ".join(
            f"{key} {max(value):.4g}" if name in ("certified", "memory") else key for key, value in values.items()
        )
        print(f"{name}: {seen} ({time.process_time() - start:.1f} CPU s)", flush=True)
        if any(values.get("mismatches", [])):
            print("certified: labels are wrong in the interpreter", file=sys.stderr)
            return 1
    print("rehearsal done: every step ran; times need a GPU and are not kept")
    return 0


def out_of_time(*_: object) -> None:
    """End at once, whatever the device is doing."""
    print(
        f"gpu.py: {MINUTES} minutes are over; finished steps are kept, run it again to go on",
        file=sys.stderr,
        flush=True,
    )
    os._exit(3)


def main(arguments: list[str]) -> int:
    """Run or rehearse."""
    if unknown := set(arguments) - {"--dry-run"}:
        print(f"gpu.py: expected --dry-run or nothing, got {' '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if "--dry-run" in arguments:
        return rehearse()
    import torch

    if not torch.cuda.is_available():
        print("gpu.py: expected a CUDA device, found none (--dry-run needs none)", file=sys.stderr)
        return 2
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(60 * MINUTES)
    from neurips26.flash_kmeans import gpu_bench
    from neurips26.shared.cli import main as command

    start = time.perf_counter()
    if status := command(["record", "flash-kmeans", "--tier", "gpu"]):
        return status
    (seconds,) = gpu_bench.online(gpu_bench.full_scale([0]))["seconds"]
    print(
        f"one warm iteration on 64 heads of 37,440 tokens (K=293, bfloat16, read in place): {seconds * 1e3:.2f} ms, not recorded"
    )
    print(f"{time.perf_counter() - start:.0f} s in all")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
