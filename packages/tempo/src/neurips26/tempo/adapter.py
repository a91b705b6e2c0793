"""The deployment-time object: raw observation in, action out, within the control deadline.

`TestTimeAdapter` wraps the pure functions of `adaptation`. It sees observations and nothing else: no reward, no
privileged state, no simulator.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurips26.shared.arrays import check_int, check_real

from . import storage
from .adaptation import TTAConfig, TTAState, check_flag, method_config
from .checkpoint import Checkpoint

__all__ = ["NonFiniteObservationError", "ShapeError", "TestTimeAdapter"]


class ShapeError(ValueError):
    """An observation that is not one robot's `state` vector."""


class NonFiniteObservationError(ValueError):
    """An observation with NaN or infinity, in strict mode."""


class TestTimeAdapter:
    """Adapts one robot's policy while it runs.

    Args:
        ckpt: the checkpoint to adapt.
        method: one of `adaptation.METHODS`; ignored where `config` is given.
        config: full settings instead of a named method.
        seed: of the memory's sampling.
        strict: raise on non-finite observations instead of acting on the last good one.
        asynchronous: run updates in a thread; the control loop acts with the newest finished parameters and never
            waits.
        deadline: seconds a step may take (20 ms at 50 Hz); slower steps are counted in `info`.
        save_path, save_every: write the whole state atomically every so many ticks. A write that fails later on is counted
            in `info` and raised by `finish`: it does not stop the robot.
        settings: overrides of the method's settings, e.g. lr=1e-4, entropy_coef=0.1, memory=ScoreMemory(256).
    """

    __test__ = False  # not a test class, whatever its name says to pytest

    def __init__(
        self,
        ckpt: Checkpoint,
        *,
        method: str = "tempo",
        config: TTAConfig | None = None,
        seed: int = 0,
        strict: bool = False,
        asynchronous: bool = False,
        deadline: float = 0.02,
        save_path: str | Path | None = None,
        save_every: int = 0,
        **settings: Any,
    ):
        if not isinstance(ckpt, Checkpoint):
            raise TypeError(f"ckpt: expected a Checkpoint, which tempo.load gives, got {ckpt!r}")
        if config is not None and not isinstance(config, TTAConfig):
            raise TypeError(f"config: expected a TTAConfig, got {config!r}")
        if config is not None and settings:
            raise ValueError(f"config: expected either a config or settings, got both ({', '.join(settings)})")
        self.ckpt, self.deadline = ckpt, check_real(deadline, "deadline", minimum=0.0)
        self.strict, self.asynchronous = check_flag(strict, "strict"), check_flag(asynchronous, "asynchronous")
        self.cfg = config if config is not None else method_config(method, **settings)
        self.save_every = check_int(save_every, "save_every", minimum=0)
        self.save_path = None if save_path is None else Path(save_path)
        if self.save_every and self.save_path is None:
            raise ValueError("save_path: expected a file when save_every > 0, got None")
        if self.save_path is not None and (self.save_path.is_dir() or not self.save_path.parent.is_dir()):
            raise ValueError(f"save_path: expected a file in an existing directory, got {self.save_path}")
        tta, self._reads, self._act, self._learn = ckpt.programs(self.cfg)
        self._reset = tta.reset
        self._seed, self._digest = check_int(seed, "seed", minimum=0), ckpt.digest()
        self.state: TTAState = _copy(tta.init(ckpt.actor, jax.random.key(self._seed), ckpt.obs_size))
        self.counters = {"nonfinite": 0, "deadline_misses": 0, "skipped_updates": 0, "failed_saves": 0}
        self._last_good = np.asarray(ckpt.mean, np.float32).copy()
        self._tick = 0
        self._worker: threading.Thread | None = None
        self._result: TTAState | None = None
        self._launched = 0  # roll-backs that the running update has seen
        self._saver: threading.Thread | None = None
        self._save_due = False
        self._save_error: OSError | None = None

    def warmup(self) -> float:
        """Compiles everything outside the control loop and leaves the state alone; returns the seconds it took."""
        start = time.perf_counter()
        state = _copy(self.state)
        memory, _, _ = self._act(state.memory, self._read(state), self._last_good, np.bool_(True))
        jax.block_until_ready(self._learn(memory, state._replace(memory=None)))
        return time.perf_counter() - start

    def step(self, obs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """One control tick: the action for `obs` (d,), shape (nu,) float32 in [-1, 1], and what happened.

        Raises:
            ShapeError: not a vector of d numbers (or a dictionary with one under "state").
            NonFiniteObservationError: NaN or infinity, in strict mode only.
        """
        start = time.perf_counter()
        obs = self._vector(obs)
        valid = bool(np.isfinite(obs).all())
        if not valid:
            self.counters["nonfinite"] += 1
            if self.strict:
                raise NonFiniteObservationError(
                    f"obs: {int((~np.isfinite(obs)).sum())} of {obs.size} entries are not finite"
                )
            obs = self._last_good
        else:
            self._last_good = obs
        self._collect()
        memory, changed, answer = self._act(self.state.memory, self._read(self.state), obs, np.bool_(valid))
        self.state = self.state._replace(memory=memory, **changed)
        if valid and self._tick % self.cfg.update_every == 0 and self.cfg.lr > 0:
            self._update()
        *_, q, entropy, fallen = answer = np.array(answer)
        self._tick += valid
        self._save_due |= bool(self.save_every) and valid and self._tick % self.save_every == 0
        if self._save_due:
            self._save_now()
        seconds = time.perf_counter() - start
        self.counters["deadline_misses"] += seconds > self.deadline
        info = {
            "q": float(q),
            "entropy": float(entropy),
            "fallen": bool(fallen),
            "seconds": seconds,
        }
        return answer[:-3].copy(), info | self.counters | {"valid": valid, "rollbacks": int(self.state.rollbacks)}

    def _read(self, state: TTAState) -> dict[str, Any]:
        return {name: getattr(state, name) for name in self._reads}

    def _vector(self, obs: Any) -> np.ndarray:
        d = self.ckpt.obs_size
        if isinstance(obs, dict):
            if "state" not in obs:
                raise ShapeError(f"obs: expected the key 'state' in a dictionary of observations, got {sorted(obs)}")
            obs = obs["state"]
        if hasattr(obs, "detach"):
            obs = obs.detach().cpu().numpy()
        try:
            given = np.asarray(obs)
        except (TypeError, ValueError) as error:
            raise ShapeError(f"obs: expected {d} numbers, got {type(obs).__name__} ({error})") from error
        if given.dtype.kind not in "biuf":
            raise ShapeError(f"obs: expected shape {(d,)} of real numbers, got {type(obs).__name__} of {given.dtype}")
        with np.errstate(over="ignore"):  # beyond float32: infinite, hence a reading that is not finite
            vector = np.ascontiguousarray(given, dtype=np.float32)
        if vector.shape != (d,):
            hint = " (one adapter is one robot; vmap `make_tta` for a batch)" if vector.ndim == 2 else ""
            raise ShapeError(
                f"obs: expected shape {(d,)} for {self.ckpt.meta.robot}'s 'state', got {vector.shape}{hint}"
            )
        return vector.copy()

    # -- updates: in the loop, or in a thread --------------------------------------------------------------------------
    def _update(self) -> None:
        if not self.asynchronous:
            memory, rest = self._learn(*_parts(self.state))
            self.state = rest._replace(memory=memory)
        elif self._worker is None:
            # the control loop goes on writing its memory in place, so the thread gets a copy of it
            snapshot = self.state._replace(memory=_copy(self.state.memory))
            self._launched = int(self.state.rollbacks)

            def work() -> None:
                memory, rest = jax.block_until_ready(self._learn(*_parts(snapshot)))
                self._result = rest._replace(memory=memory)

            self._worker = threading.Thread(target=work, daemon=True)
            self._worker.start()
        else:
            self.counters["skipped_updates"] += 1

    def _collect(self) -> None:
        """Takes over a finished update: parameters, optimiser and key; the memory has moved on meanwhile and is
        kept. An update that began before a roll-back is dropped: it would bring back what was given up."""
        if self._worker is None or self._worker.is_alive():
            return
        self._worker.join()
        self._worker, result, self._result = None, self._result, None
        if result is not None and int(self.state.rollbacks) == self._launched:
            names = ("theta", "m", "v", "snapshot", "key", "updates", "moments", "rollbacks")
            self.state = self.state._replace(**{n: getattr(result, n) for n in names})

    def _save_now(self) -> None:
        """Writes the state; in asynchronous mode a thread does, and a write that is still going on puts this one off."""
        if self._saver is not None and self._saver.is_alive():
            return
        self._save_due = False
        path, saved = self.save_path, self._snapshot()
        assert path is not None

        def write() -> None:
            try:
                _write(path, saved)
            except OSError as error:
                self._save_error = error
                self.counters["failed_saves"] += 1

        if self.asynchronous:
            self._saver = threading.Thread(target=write)
            self._saver.start()
        else:
            write()

    def finish(self) -> None:
        """Waits for an update or a write that is still running (asynchronous mode).

        Raises:
            OSError: the state could not be written to `save_path` since the last call.
        """
        self._settle()
        error, self._save_error = self._save_error, None
        if error is not None:
            raise OSError(f"save_path: the state could not be written to {self.save_path} ({error})") from error

    def _settle(self) -> None:
        if self._worker is not None:
            self._worker.join()
            self._collect()
        if self._saver is not None:
            self._saver.join()
            self._saver = None

    # -- episodes and files --------------------------------------------------------------------------------------------
    def reset(self) -> None:
        """Starts an episode: forgets everything under the episodic protocol, nothing under the continual one."""
        self._settle()
        self.state = _copy(self._reset(self.state))
        if self.cfg.protocol == "episodic":
            self._tick = 0

    @property
    def drift(self) -> float:
        """|theta - theta_0|."""
        pairs = zip(jax.tree.leaves(self.state.theta), jax.tree.leaves(self.state.theta0), strict=True)
        return float(np.sqrt(sum(float(((np.asarray(a) - np.asarray(b)) ** 2).sum()) for a, b in pairs)))

    def memory_bytes(self) -> int:
        """Resident bytes that adaptation adds to the frozen policy, which needs no critic: theta and its moments,
        snapshots, the memory and the critics."""
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((self.state, self.ckpt.critics)))

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs to continue with the same actions."""
        self._settle()
        return self._snapshot()

    def _snapshot(self) -> dict[str, Any]:
        arrays = jax.tree.map(lambda x: np.array(x, copy=True), self.state)
        return {
            "state": arrays,
            "checkpoint": self._digest,
            "config": dataclasses.asdict(self.cfg),
            "tick": self._tick,
            "last_good": self._last_good.copy(),
            "counters": dict(self.counters),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continues from `state_dict()`. Raises ValueError where it is of another checkpoint or configuration, or not
        finite."""
        self._settle()
        needed = ("state", "checkpoint", "config", "tick", "last_good", "counters")
        missing = [k for k in needed if not isinstance(saved, dict) or k not in saved]
        if missing:
            raise ValueError(f"saved: expected what state_dict() gives, {', '.join(missing)} missing")
        if saved["checkpoint"] != self._digest:
            raise ValueError("saved: expected the state of an adapter with the same checkpoint, got one of another")
        mine, theirs = dataclasses.asdict(self.cfg), saved["config"]
        if mine != theirs:
            names = sorted(k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k))
            raise ValueError(f"saved: expected the state of an adapter with the same {', '.join(names)}")
        new, old = jax.tree.leaves(saved["state"]), jax.tree.leaves(self.state)
        if len(new) != len(old) or any(np.shape(a) != np.shape(b) for a, b in zip(new, old, strict=True)):
            raise ValueError("saved: expected arrays of this adapter's shapes, got others")
        last_good = np.asarray(saved["last_good"], np.float32)
        named = jax.tree_util.tree_flatten_with_path(saved["state"])[0]
        checked = [x for path, x in named if not jax.tree_util.keystr(path).endswith(".score")]  # NaN: never drawn
        if last_good.shape != self._last_good.shape or not all(np.isfinite(x).all() for x in (*checked, last_good)):
            raise ValueError("saved: expected finite numbers, got NaN or infinity")
        self.state = _copy(saved["state"])
        self._tick, self.counters = int(saved["tick"]), dict.fromkeys(self.counters, 0) | saved["counters"]
        self._last_good = last_good.copy()

    def save(self, path: str | Path) -> Path:
        """`state_dict()` in a file, atomically."""
        return _write(Path(path), self.state_dict())

    def restore(self, path: str | Path) -> None:
        """Continues from a file of `save`. Raises ValueError where it is no whole file of this adapter's."""
        try:
            state, extra = storage.load_tree(Path(path), self.state)
        except FileNotFoundError:
            raise
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"path: expected a whole file that `save` wrote, got {path} ({error})") from error
        self.load_state_dict({"state": state, **extra})


def _write(path: Path, saved: dict[str, Any]) -> Path:
    extra = {k: v for k, v in saved.items() if k != "state"} | {"last_good": saved["last_good"].tolist()}
    storage.save_tree(path, saved["state"], extra)
    return path


def _parts(state: TTAState) -> tuple[Any, TTAState]:
    """The memory, which a tick overwrites in place, and everything else."""
    return state.memory, state._replace(memory=None)


def _copy(tree: Any) -> Any:
    """The same numbers in buffers of their own."""
    return jax.tree.map(lambda x: jnp.array(x, copy=True), tree)
