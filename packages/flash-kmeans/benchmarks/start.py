"""What a start costs, in CPU seconds of fresh processes: the import of this package after torch (at most 0.3 s), and
`neurips26 list` (under a second).

    python packages/flash-kmeans/benchmarks/start.py
"""

import statistics
import subprocess
import sys

ROUNDS = 5
CLOCK = "import sys, time; print(time.process_time(), file=sys.stderr)"
MEASURED = {
    "import torch": f"import torch; {CLOCK}",
    "import neurips26.flash_kmeans after torch": (
        "import sys, time, torch; start = time.process_time(); import neurips26.flash_kmeans; "
        "print(time.process_time() - start, file=sys.stderr)"
    ),
    "neurips26 list": (
        f"import sys; sys.argv = ['neurips26', 'list']; from neurips26.shared.cli import main; main(); {CLOCK}"
    ),
}


def cpu_seconds(code: str) -> float:
    """What a fresh interpreter says that it took."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stderr.split()[-1])


for name, code in MEASURED.items():
    cpu_seconds(code)  # byte code and page cache
    print(f"{name}: {statistics.median(cpu_seconds(code) for _ in range(ROUNDS)):.2f} s")
