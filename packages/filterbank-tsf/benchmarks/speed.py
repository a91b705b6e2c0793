"""Speed as ratios to a peer in the same run, and as growth over sizes: ``python benchmarks/speed.py``."""

from __future__ import annotations

import numpy as np

from neurips26.filterbank_tsf.experiments import (
    closed_form_seconds,
    dlinear_pass_seconds,
    forward_pairs,
    memory,
)
from neurips26.filterbank_tsf.stats import WindowStats
from neurips26.shared import bench, data


def main() -> None:
    z = np.random.default_rng(0).normal(size=(8640, 7))
    ratio = bench.ratio(
        lambda: WindowStats.from_series(z, 512, 96), lambda: WindowStats.from_series(z, 512, 96, method="blocked"), 3
    )
    print(f"window statistics (ETTh1 size, L=512, H=96), displacement against blocked accumulation: {ratio}")
    grown = bench.growth(lambda h: lambda: WindowStats.from_series(z, 512, int(h)), [48, 96, 192, 384])
    print(f"time of the statistics grows with H as H^{grown.slope:.2f} [{grown.low:.2f}, {grown.high:.2f}]")
    for name, pairs in forward_pairs(5).items():
        print(f"forward pass of {name} against nn.Linear(720, 720), batch 8192: {np.median(pairs):.2f}x")
    print(
        "ETTh1 size, L=H=720, statistics and a rank-12 fit: {above:.0f} MiB above imports".format(
            **memory(8640, 7, 720, 720, True)
        )
    )
    print(
        "26,304 x 321, L=H=720: {peak:.0f} MiB in all, {seconds:.1f} CPU seconds".format(
            **memory(26304, 321, 720, 720, False)
        )
    )
    if data.find("filterbank-tsf", "ETTh1.csv"):
        ours, theirs = closed_form_seconds("ETTh1", (512,)), sum(dlinear_pass_seconds("ETTh1", 512, 0))
        print(f"closed-form table of ETTh1 against one pass of DLinear by Adam on it: {ours / theirs:.3f}x")


if __name__ == "__main__":
    main()
