"""Speed on the CPU against every peer installed: the grid of `neurips26.flash_kmeans.speed`, one seed, as ratios."""

import numpy as np

from neurips26.flash_kmeans.speed import GRID, bare_product, methods, time_cell

ratios = []
for cell in GRID:
    times = {name: time_cell(cell, name, 0) for name in methods()}
    ours = times.pop("ours")
    name, best = min(times.items(), key=lambda item: item[1])
    ratios.append(ours / best)
    product = f", {ours / bare_product(cell):.2f}x a bare product" if cell.d >= 64 else ""
    print(f"{cell.data:8} N={cell.n:<7} D={cell.d:<4} K={cell.k:<5} {ours / best:.2f}x {name}{product}", flush=True)
print(f"geometric mean {np.exp(np.mean(np.log(ratios))):.3f}x the fastest peer of each shape")
