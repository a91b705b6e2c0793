"""What the peers gain from the passes that their papers allow: ``python benchmarks/uncapped.py --minutes 10``.

The record trains most peers with fewer passes than their papers do, because two cores allow no more; a cosine schedule is
then shortened with them. Here the rate, the length of the schedule and the most passes are the papers' own. Everything else
is as in the record: look-back of the tuning grid, batch of the paper, every training window, the best pass on validation
kept, every test window. Training ends after five passes without a better validation error, for every peer alike.

Finished cells are kept in ``build/``, so the run can be stopped and continued; what is finished is written to
``uncapped.json``, from which ``readme_table.py`` fills the README.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from neurips26.filterbank_tsf import experiments as ex
from neurips26.shared.grid import Grid

HERE = Path(__file__).resolve().parent
OUT = HERE / "uncapped.json"
SEED = 20_000  # the one that the record uses
PATIENCE = 5
CAPPED = [name for name, recipe in ex.RECIPES.items() if recipe.epochs < recipe.published]


def cell(data: str, horizon: int, peer: str, lookback: int, lr: float, passes: int, patience: int) -> dict:
    """One peer with the passes that its paper allows."""
    ex.RECIPES[peer] = replace(ex.RECIPES[peer], patience=patience)
    return ex.peer_cell(data, horizon, peer, lookback, lr, SEED, passes)


def main() -> None:
    """Train what is not finished, until the CPU minutes are used up, and write the finished cells."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="CPU minutes after which no cell is begun")
    parser.add_argument("--peers", default=",".join(CAPPED), help=f"comma-separated, of {', '.join(CAPPED)}")
    parser.add_argument("--horizons", default="96,720,192,336", help="comma-separated, in this order")
    options = parser.parse_args()
    peers, chosen = options.peers.split(","), ex.tuned()
    if unknown := set(peers) - set(CAPPED):
        parser.error(f"peers: {', '.join(sorted(unknown))} not among {', '.join(CAPPED)}")
    grid = Grid(HERE.parents[2] / "build" / "filterbank-tsf" / "uncapped")
    rows = json.loads(OUT.read_text("utf-8")) if OUT.exists() else []
    known, started = [r["factors"] for r in rows], time.process_time()
    for horizon in map(int, options.horizons.split(",")):
        for data in ("ETTh1", "ETTh2"):
            for peer in peers:
                recipe = ex.RECIPES[peer]
                factors = {
                    "data": data, "horizon": horizon, "peer": peer, "lookback": chosen[f"{peer}/{data}"]["lookback"],
                    "lr": recipe.rates[0], "passes": recipe.published, "patience": PATIENCE,
                }  # fmt: skip
                if factors in known or time.process_time() - started > 60 * options.minutes:
                    continue
                rows += grid.run([factors], cell, f"{peer} {data} H={horizon}")
                value = rows[-1]["value"]
                print(f"{peer} {data} H={horizon}: {value['mse']:.4f} after {value['passes']} passes", flush=True)
                OUT.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
