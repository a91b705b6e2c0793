"""One run on one GPU (H200 class, at most 8 minutes): writes `results/flash-kmeans/gpu.json`.

Needs: this package with torch >= 2.8 and triton 3.4 to 3.9, and, for the comparison with the authors' code, `pip install
    flash-kmeans==0.3.1`
(import name `flash_kmeans`; it does not collide with ours). Run it in a clean checkout:

    python packages/flash-kmeans/benchmarks/gpu.py
    python packages/flash-kmeans/benchmarks/gpu.py --dry-run    # every step on small shapes, on a CPU, in Triton's interpreter
"""

import os
import sys
import time


def main(arguments: list[str]) -> int:
    if unknown := set(arguments) - {"--dry-run"}:
        print(f"gpu.py: expected --dry-run or nothing, got {' '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if "--dry-run" in arguments:
        os.environ["TRITON_INTERPRET"] = "1"
        from neurips26.flash_kmeans import gpu_bench

        for name, step in gpu_bench.STEPS.items():
            if name == "memory":
                print("memory: needs a GPU, left out", flush=True)
                continue
            start = time.process_time()
            values = step(gpu_bench.rehearsal())
            print(f"{name}: {', '.join(values)} ({time.process_time() - start:.1f} CPU s)", flush=True)
        print("rehearsal done: every step but memory ran; its figures mean nothing and are not kept")
        return 0
    import torch

    if not torch.cuda.is_available():
        print("gpu.py: expected a CUDA device, found none (--dry-run needs none)", file=sys.stderr)
        return 2
    from neurips26.shared.cli import main as command

    return command(["record", "flash-kmeans", "--tier", "gpu"]) or 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
