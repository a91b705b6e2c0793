"""A run in words: a line a round, and what it came to."""

from __future__ import annotations

from pathlib import Path

from neurips26.shared.federated.strategy import FedResult

__all__ = ["round_line", "summary_lines"]


def round_line(result: FedResult, round: int) -> str:
    """What happened in a round: who answered, training loss, bytes, seconds, and the global model's metrics if evaluated."""
    row = next(r for r in result.rounds if r["round"] == round)
    asked = len(row["replies"]) + len(row["failures"])
    parts = [f"round {round} of {result.config.rounds}: {len(row['replies'])} of {asked} clients"]
    parts.append("no valid reply, the model stays as it is" if row["empty"] else f"training loss {row['loss']:.4f}")
    up, down = (result.meter.total(way, round=round, purpose="train") / 1e6 for way in ("up", "down"))
    parts.append(f"{up:.3f} MB up, {down:.3f} MB down, {row['seconds']:.1f} s")
    parts += [f"global {name} {value:.4f}" for name, value in _metrics(result, round)]
    return ", ".join(parts) + "".join(f"; client {pid} {kind}: {why}" for pid, kind, why in row["failures"])


def summary_lines(result: FedResult, out_dir: Path | None = None) -> list[str]:
    """The last metrics, the bytes of all rounds, and where the run's files are."""
    up, down = (result.meter.total(way) / 1e6 for way in ("up", "down"))
    lines = [
        f"{result.config.method.rpartition(':')[2]}, {result.config.rounds} rounds, {len(result.config.ranks)} clients"
    ]
    lines += [f"global {name} {value:.4f}" for name, value in _metrics(result, result.config.rounds)]
    for column in ("received", "tuned"):
        names = dict.fromkeys(r["metric"] for r in result.history if r["column"] == column)
        lines += [f"mean of the clients' {column} {name} {result.metric(name, column):.4f}" for name in names]
    lines.append(f"all messages {up:.3f} MB up, {down:.3f} MB down")
    kept = (
        f"history, bytes and final arrays are in {out_dir}"
        if out_dir
        else "nothing was kept: out-dir names a folder for that"
    )
    return [*lines, kept]


def _metrics(result: FedResult, round: int) -> list[tuple[str, float]]:
    rows = [r for r in result.history if r["column"] == "global" and r["round"] == round]
    return [(r["metric"], r["value"]) for r in rows]
