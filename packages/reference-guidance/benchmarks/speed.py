"""Costs as ratios of CPU seconds within one process, each against its bar."""

from neurips26.reference_guidance.speed import CASES
from neurips26.shared import bench

for name, case in CASES.items():
    found = bench.ratio(*case.make(), repeats=case.repeats)
    print(
        f"{name:10} {found}; peer: {case.peer}; bar {case.bar:g} {'met' if found.cpu <= case.bar else 'MISSED'}",
        flush=True,
    )
