"""`tempo pretrain`: PPO, then the critic, then the gates, then the file; every stage resumes where it was killed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from . import critic, gates, ppo, storage
from .checkpoint import Checkpoint

__all__ = ["actor_of", "pretrain"]


def actor_of(run: str | Path) -> tuple[Any, np.ndarray, np.ndarray, dict[str, Any]]:
    """Actor, observation mean and standard deviation, and the card of a PPO run directory."""
    run = Path(run)
    config = json.loads((run / "config.json").read_text())
    changes = config.pop("changes", [])
    cfg = ppo.PPOConfig(
        **{
            k: tuple(v) if isinstance(v, list) else v
            for k, v in config.items()
            if k in ppo.PPOConfig.__dataclass_fields__
        }
    )
    sizes = {"Go1": (48, 123, 12), "G1J": (103, 216, 29)}[cfg.env[:3]]
    state, extra = storage.load_tree(run / "checkpoint.npz", ppo.init_learner(cfg, *sizes))
    stats = jax.tree.map(np.asarray, state.obs_stats)
    last = (run / "metrics.jsonl").read_text().splitlines()[-1:]
    card = {
        "algorithm": "PPO on envpool",
        "steps": extra["steps"],
        "seed": cfg.seed,
        "config": asdict(cfg),
        "changes": changes,
    }
    card["last_metrics"] = json.loads(last[0]) if last else {}
    return jax.tree.map(np.asarray, state.params["actor"]), stats["mean"], np.sqrt(stats["var"] + 1e-8), card


def pretrain(cfg: ppo.PPOConfig, critic_cfg: critic.CriticConfig, out: str | Path, name: str = "go1-joystick") -> Path:
    """Trains actor and critic in `out` and writes `out/<name>.safetensors` with its card; each stage goes on where it
    stopped.

    PPO runs one segment a process: envpool keeps the memory of simulators that were closed.
    """
    out = Path(out)
    first = out / "ppo"
    while _steps(first) < cfg.total_steps:
        code = "import sys; from neurips26.tempo import ppo; ppo.train(ppo.from_json(sys.argv[1]), sys.argv[2], max_segments=1)"
        subprocess.run([sys.executable, "-c", code, json.dumps(asdict(cfg)), str(first)], check=True)
    return finish(first, critic_cfg, out, name)


def _steps(run: Path) -> int:
    file = run / "checkpoint.npz"
    if not file.exists():
        return -1
    with np.load(file) as f:
        return int(json.loads(f["__extra__"].tobytes())["steps"])


def finish(run: str | Path, critic_cfg: critic.CriticConfig, out: str | Path, name: str, episodes: int = 160) -> Path:
    """Critic, gates and file for a PPO run that has ended (or was stopped)."""
    actor, mean, std, card = actor_of(run)
    ckpt = critic.fit(actor, "mlp", mean, std, critic_cfg, Path(out) / "critic", card)
    return seal(ckpt, Path(out) / f"{name}.safetensors", episodes)


def seal(ckpt: Checkpoint, path: Path, episodes: int = 160) -> Path:
    """Runs the gates on the weights as they will be stored, and writes file and card."""
    from .checkpoint import load

    ckpt.save(path)  # rounds the weights: what is checked is what is shipped
    ckpt = load(path)
    result = gates.check_gates(ckpt, episodes)
    meta = replace(
        ckpt.meta,
        q_scale=max(result["K2"]["q_std"], 1e-3),
        status=gates.status_of(result),
        card=ckpt.meta.card | {"gates": result},
    )
    sealed = replace(ckpt, meta=meta)
    sealed.save(path)
    storage.write_bytes(path.with_suffix(".json"), json.dumps(asdict(meta), indent=1).encode())
    return path
