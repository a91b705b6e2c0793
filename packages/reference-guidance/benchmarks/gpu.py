"""One check on one GPU (H200 class, at most 8 minutes, nothing downloaded): writes `results/reference-guidance/gpu.json`.

    python packages/reference-guidance/benchmarks/gpu.py
    python packages/reference-guidance/benchmarks/gpu.py --dry-run    # every step in small, on a CPU

Claims that need FLUX.2-klein-4B or AFHQv2 are left out of it: they need the hub, and hours.
"""

import sys
import time


def main(arguments: list[str]) -> int:
    if unknown := set(arguments) - {"--dry-run"}:
        print(f"gpu.py: expected --dry-run or nothing, got {' '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if "--dry-run" in arguments:
        from neurips26.reference_guidance import gpu_check
        from neurips26.shared import data

        path = data.find("reference-guidance", "cifar10_cat_dog.zip")
        print(f"photographs: {path or gpu_check.NO_PHOTOGRAPHS}")
        for name, step in gpu_check.STEPS.items():
            start = time.process_time()
            found = step(gpu_check.rehearsal(), path)
            print(f"{name}: {', '.join(found)} ({time.process_time() - start:.1f} CPU s)", flush=True)
        print("rehearsal done: every step ran; its figures mean nothing and are not kept")
        return 0
    import torch

    if not torch.cuda.is_available():
        print("gpu.py: expected a CUDA device, found none (--dry-run needs none)", file=sys.stderr)
        return 2
    from neurips26.shared.cli import main as command

    only = ["--only", "gpu-overhead", "gpu-spg-parity"]
    return command(["record", "reference-guidance", "--tier", "gpu", *only]) or 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
