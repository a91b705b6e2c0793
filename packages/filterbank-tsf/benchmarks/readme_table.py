"""Fill the results tables of the README from the committed record and from ``uncapped.json`` (made by ``uncapped.py``):
``python benchmarks/readme_table.py``.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
RECORD = HERE.parents[2] / "results" / "filterbank-tsf" / "cpu.json"
UNCAPPED = HERE / "uncapped.json"
LABELS = {
    "chosen": "**average over look-backs and ranks, chosen rule (ours)**",
    "rrr-val": "**reduced rank, smallest validation error (ours)**",
    "rrr-blocks": "reduced rank, blocked CV + 1 SE, average over look-backs",
    "rrr-r12": "reduced rank, rank 12",
    "dwrr-r12": "ridge truncated to rank 12 (DWRR)",
    "bank": "strided bank, closed form",
    "ridge": "full-rank ridge",
    "ridge-average": "full-rank ridge, average over look-backs",
    "dlinear-ols": "DLinear, closed-form optimum",
    "rlinear-ols": "RLinear, closed-form optimum",
    "nlinear-ols": "NLinear, closed-form optimum",
    "dlinear": "DLinear by Adam ¹",
    "fits": "FITS ¹",
    "sparsetsf": "SparseTSF ¹",
    "cyclenet": "CycleNet ¹",
    "timebase": "TimeBase ¹",
    "olinear": "OLinear ¹",
    "rootpurge": "Root Purge ¹",
    "kronecker": "one map of periods ⊗ one map of phases (SparseTSF's form), closed form",
    "seasonal-naive": "seasonal naive",
    "repeat-last": "repeat last",
}
PUBLISHED = ("0.375", "0.407", "0.430", "0.427", "0.271", "0.331", "0.354", "0.378")


def values(record: dict, *claims: str) -> dict[tuple[str, str], dict[str, float]]:
    """``(method, cell) -> {metric: value}`` of the cells of some claims."""
    out: dict[tuple[str, str], dict[str, float]] = {}
    for row in record["claims"]:
        if row["id"] in claims:
            for cell in row["cells"]:
                factors = cell["factors"]
                if "cell" in factors and "metric" in factors:
                    found = out.setdefault((cell["method"], factors["cell"]), {})
                    found |= {factors["metric"]: cell["value"], "macs": factors["macs"]}
    return out


def table(found: dict[tuple[str, str], dict[str, float]], cells: list[str], corner: str, heads: list[str]) -> list[str]:
    """One table, with rank and cost in its first and last column of the first data set; methods that a cell lacks are left
    out.
    """
    ends = [c for c in cells if c.partition(" ")[0] == cells[0].partition(" ")[0]]
    ends = [ends[0], ends[-1]]
    heads = [*heads, *(f"{what}, {heads[0]} / {heads[cells.index(ends[1])]}" for what in ("rank", "multiply-adds"))]
    lines = ["| " + " | ".join([corner, *heads]) + " |", "|" + "---|" * (len(heads) + 1)]
    for method, label in LABELS.items():
        if all((method, cell) in found for cell in cells):
            entries = [f"{found[method, c]['mse']:.4f} / {found[method, c]['mae']:.4f}" for c in cells]
            ranks = [f"{found[method, c]['rank']:.0f}" if "rank" in found[method, c] else "–" for c in ends]
            entries.append(" / ".join(ranks) if ranks != ["–", "–"] else "–")
            entries.append(" / ".join(f"{found[method, c]['macs']:,}" for c in ends))
            lines.append("| " + " | ".join([label, *entries]) + " |")
    return lines


def render(record: dict) -> str:
    """The text between the markers."""
    found = values(record, "table", "peers", "beyond-ett")
    cells = list(dict.fromkeys(c for _, c in found))
    rule = next(r for r in record["claims"] if r["id"] == "table")["ours"]["setting"]["rule"]
    ett = [c for c in cells if c.startswith("ETT")]
    lines = [
        "Test MSE / MAE, every test window (2,785 at H = 96 to 2,161 at H = 720). Every choice was made on training and "
        f"validation rows; the chosen rule is: {rule}.",
        "",
        *table(found, ett, "", [c.replace("ETT", "").replace(" H=", "-") for c in ett]),
        "| *FITS as published (not run here)* | " + " | ".join(f"*{v}*" for v in PUBLISHED) + " | – | – |",
    ]
    for name in dict.fromkeys(c.partition(" ")[0] for c in cells if not c.startswith("ETT")):
        own = [c for c in cells if c.startswith(name)]
        lines += ["", *table(found, own, name, [c.partition(" ")[2] for c in own])]
    lines += ["", "¹ trained here by the recipe in `experiments.py` (see Limits): every training window, one seed."]
    for method, words in (("rrr-val", "Reduced rank, one look-back"), ("chosen", "The average of the chosen rule")):
        lines += ["", f"{words} / peer, geometric mean over the eight cells: {one_by_one(found, ett, method)}."]
    return "\n".join([*lines, *longer(found, json.loads(UNCAPPED.read_text("utf-8")))])


def one_by_one(found: dict[tuple[str, str], dict[str, float]], cells: list[str], method: str) -> str:
    """One of ours against each trained peer and averaged ridge, strongest last."""
    means = {}
    for rival, label in LABELS.items():
        if label.endswith("¹") or rival == "ridge-average":
            logs = [math.log(found[method, c]["mse"] / found[rival, c]["mse"]) for c in cells]
            means[label.removesuffix(" ¹")] = math.exp(statistics.fmean(logs))
    return ", ".join(f"{name} {mean:.3f}" for name, mean in sorted(means.items(), key=lambda m: m[1]))


def longer(found: dict[tuple[str, str], dict[str, float]], rows: list[dict]) -> list[str]:
    """Peers by the record's recipe and with the passes of their papers, in the cells where both are known."""
    runs = {(r["factors"]["peer"], f"{r['factors']['data']} H={r['factors']['horizon']}"): r for r in rows}
    cells = sorted({c for _, c in runs}, key=lambda c: (c.partition("=")[0], int(c.partition("=")[2])))
    lines = ["", "Test MSE by the record's recipe → by the paper's rate, schedule and passes (passes made / allowed), from "
             "`benchmarks/uncapped.py`:", ""]  # fmt: skip
    lines += ["| | " + " | ".join(c.replace("ETT", "").replace(" H=", "-") for c in cells) + " |"]
    lines += ["|" + "---|" * (len(cells) + 1)]
    for peer in dict.fromkeys(p for p, _ in runs):
        entries = []
        for c in cells:
            run = runs.get((peer, c))
            entries.append("–" if run is None else f"{found[peer, c]['mse']:.4f} → {run['value']['mse']:.4f} "
                           f"({run['value']['passes']} / {run['factors']['passes']})")  # fmt: skip
        lines.append("| " + " | ".join([LABELS[peer].removesuffix(" ¹"), *entries]) + " |")
    return lines


def fill(readme: str, record: dict) -> str:
    """The README with its tables made anew."""
    return re.sub(
        r"(<!-- table:begin -->\n).*?(\n<!-- table:end -->)", lambda m: m[1] + render(record) + m[2], readme, flags=re.S
    )


if __name__ == "__main__":
    README.write_text(fill(README.read_text("utf-8"), json.loads(RECORD.read_text("utf-8"))), "utf-8")
