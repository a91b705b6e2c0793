"""Checkpoints: actor, distributional twin critic, normaliser and what is known about them, in one safetensors file
with a card."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from neurips26.shared.arrays import check_int

from . import networks, storage
from .adaptation import TTA, TTAConfig, TTAState, make_tta
from .distributions import Categorical, Gaussian, Scalar, support

__all__ = ["Checkpoint", "CheckpointError", "Meta", "available", "load", "untrained"]

#: observation and action sizes, and where the body's gravity z stands in the observation
SIZES = {"go1": (48, 12, 8), "go2": (48, 12, 8), "g1": (103, 29, 8)}
#: numbers that a critic of each kind gives; a categorical one gives one logit an atom
HEADS = {"categorical": None, "gaussian": 2, "scalar": 1}


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the field."""


class Programs(NamedTuple):
    """Compiled tick and update. Both write the memory in place: its buffers are donated and must not be used again.

    Attributes:
        tta: the functions they were compiled from.
        reads: fields of the state that `act` gets; handing over all of it would cost more than the networks do.
        act: (memory, {field: value}, obs, valid) -> (memory, {changed field: value}, vector); the vector is
            (action, q, entropy, fallen), so that a tick costs a single transfer.
        learn: (memory, state without it) -> (memory, state without it).
    """

    tta: TTA
    reads: tuple[str, ...]
    act: Any
    learn: Any


@dataclass(frozen=True)
class Meta:
    """What the arrays do not say."""

    robot: str
    arch: str  # of the actor
    critic_arch: str
    critic_kind: str = "categorical"
    critic_obs: str = "state"
    v_min: float = -0.1
    v_max: float = 1.7
    atoms: int = 101
    q_scale: float = 1.0
    discount: float = 0.97
    status: str = "untrained"
    card: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """Frozen parameters of one robot.

    Attributes:
        meta: robot, architectures, support and training card.
        actor: pytree; `networks.get(meta.arch).apply(actor, o)` is the pre-tanh action.
        critics: one pytree a twin, applied to the concatenation of normalised observation and action.
        mean, std: frozen observation normaliser, shape (d,).
    """

    meta: Meta
    actor: Any
    critics: list[Any]
    mean: np.ndarray
    std: np.ndarray
    _programs: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)

    # -- functions -----------------------------------------------------------------------------------------------------
    @property
    def obs_size(self) -> int:
        """Length d of the observation."""
        return SIZES[self.meta.robot][0]

    @property
    def action_size(self) -> int:
        """Number of motors."""
        return SIZES[self.meta.robot][1]

    def policy_apply(self) -> Callable[[Any, jax.Array], jax.Array]:
        """(theta, normalised observation) -> action in (-1, 1)."""
        apply = networks.get(self.meta.arch).apply
        return lambda theta, o: jnp.tanh(apply(theta, o))

    def critic_apply(self) -> Callable[[jax.Array, jax.Array], list[Any]]:
        """(normalised observation, action) -> the twins' value distributions. The parameters are constants of the
        function."""
        apply, meta = networks.get(self.meta.critic_arch).apply, self.meta
        atoms = jnp.asarray(support(meta.v_min, meta.v_max, meta.atoms))
        critics = jax.tree.map(jnp.asarray, self.critics)

        def evaluate(o: jax.Array, a: jax.Array) -> list[Any]:
            x = jnp.concatenate([o, a], axis=-1)
            heads = [apply(c, x) for c in critics]
            if meta.critic_kind == "gaussian":
                return [Gaussian(h[..., 0], h[..., 1]) for h in heads]
            if meta.critic_kind == "scalar":
                return [Scalar(h[..., 0]) for h in heads]
            return [Categorical(h, atoms) for h in heads]

        return evaluate

    def tta(self, cfg: TTAConfig) -> TTA:
        """`make_tta` with everything this checkpoint knows."""
        return make_tta(
            self.policy_apply(),
            self.critic_apply(),
            cfg,
            q_scale=self.meta.q_scale,
            normalizer=(self.mean, self.std),
            fallen_index=SIZES[self.meta.robot][2],
            project=networks.get(self.meta.arch).project,
        )

    def programs(self, cfg: TTAConfig) -> Programs:
        """`tta(cfg)` with one control tick and one update compiled; all adapters of this object share them."""
        if cfg not in self._programs:
            tta = self.tta(cfg)
            reads, writes = ("theta", "step", "was_fallen"), ("step", "was_fallen")
            if cfg.restore_on_fall:
                moved = ("m", "v", "moments", "rollbacks")
                reads, writes = (*reads, "snapshot", *moved), (*writes, "theta", *moved)
            nothing = TTAState(*(None,) * len(TTAState._fields))

            def act(memory: Any, read: dict[str, Any], obs: jax.Array, valid: jax.Array) -> tuple[Any, Any, jax.Array]:
                state, action, m = tta.act(nothing._replace(memory=memory, **read), obs, valid)
                said = jnp.stack([m["q"], m["entropy"], m["fallen"].astype(jnp.float32)])
                return state.memory, {name: getattr(state, name) for name in writes}, jnp.concatenate([action, said])

            def learn(memory: Any, rest: Any) -> tuple[Any, Any]:
                state, _ = tta.learn(rest._replace(memory=memory))
                return state.memory, state._replace(memory=None)

            donated = {"donate_argnums": 0}
            self._programs[cfg] = Programs(tta, reads, jax.jit(act, **donated), jax.jit(learn, **donated))
        return self._programs[cfg]

    def act(self, obs: np.ndarray) -> np.ndarray:
        """The frozen policy's actions for raw observations (..., d)."""
        if "forward" not in self._programs:
            self._programs["forward"] = jax.jit(self.policy_apply())
        o = np.clip((np.asarray(obs, np.float32) - self.mean) / self.std, -10, 10)
        return np.asarray(self._programs["forward"](self.actor, jnp.asarray(o)))

    # -- files ---------------------------------------------------------------------------------------------------------
    def tensors(self) -> dict[str, np.ndarray]:
        """All arrays under their names in the file."""
        out = {"normalizer.mean": self.mean, "normalizer.std": self.std}
        for name, tree in (("actor", self.actor), *((f"critic{i}", c) for i, c in enumerate(self.critics))):
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
                out[name + jax.tree_util.keystr(path)] = np.ascontiguousarray(leaf, np.float32)
        return {k: np.ascontiguousarray(v, np.float32) for k, v in out.items()}

    def digest(self) -> str:
        """SHA-256 over names, shapes and bytes of all arrays."""
        sha = hashlib.sha256()
        for name, value in sorted(self.tensors().items()):
            sha.update(f"{name}{value.shape}".encode() + value.tobytes())
        return sha.hexdigest()

    def save(self, path: str | Path, dtype: Any = np.float16) -> Path:
        """Writes the file atomically. Weights are rounded to `dtype`; the digest is that of the rounded weights."""
        path = Path(path)
        rounded = {k: v if k.startswith("normalizer") else v.astype(dtype) for k, v in self.tensors().items()}
        again = _build(self.meta, {k: v.astype(np.float32) for k, v in rounded.items()}, path.name)
        meta = {"meta": json.dumps(asdict(self.meta)), "sha256": again.digest(), "format": "neurips26-tempo 1"}
        storage.write_bytes(path, save_tensors(rounded, metadata=meta))
        return path


def _build(meta: Meta, arrays: dict[str, np.ndarray], where: str) -> Checkpoint:
    for name in ("normalizer.mean", "normalizer.std"):
        if name not in arrays:
            raise CheckpointError(f"{where}: {name} is missing")
    trees = {}
    for prefix in ("actor", "critic0", "critic1"):
        chosen = {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
        if not chosen and prefix != "critic1":
            raise CheckpointError(f"{where}: {prefix} is missing")
        if chosen:
            trees[prefix] = _nest(chosen)
    critics = [trees[k] for k in ("critic0", "critic1") if k in trees]
    return Checkpoint(meta, trees["actor"], critics, arrays["normalizer.mean"], arrays["normalizer.std"])


def _nest(flat: dict[str, np.ndarray]) -> Any:
    """Inverse of JAX key paths: "[0]['w']" -> [{"w": ...}]."""
    root: dict[Any, Any] = {}
    for path, value in flat.items():
        keys = [int(i) if i else k for i, k in re.findall(r"\[(?:(\d+)|'([^']+)')\]", path)]
        node = root
        for key in keys[:-1]:
            node = node.setdefault(key, {})
        node[keys[-1]] = value

    def close(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if all(isinstance(k, int) for k in node):
            return [close(node[i]) for i in sorted(node)]
        return {k: close(v) for k, v in node.items()}

    return close(root)


def check(ckpt: Checkpoint) -> None:
    """Raises CheckpointError naming the field that does not fit."""
    meta = ckpt.meta
    if meta.robot not in SIZES:
        raise CheckpointError(f"robot: expected one of {', '.join(SIZES)}, got {meta.robot!r}")
    for name, arch in (("arch", meta.arch), ("critic_arch", meta.critic_arch)):
        if arch not in networks.ARCHITECTURES:
            raise CheckpointError(f"{name}: expected one of {', '.join(networks.ARCHITECTURES)}, got {arch!r}")
    if meta.critic_obs != "state":
        raise CheckpointError(
            f"critic_obs: expected 'state' (privileged observations do not exist on the robot), got {meta.critic_obs!r}"
        )
    if meta.critic_kind not in HEADS:
        raise CheckpointError(f"critic_kind: expected one of {', '.join(HEADS)}, got {meta.critic_kind!r}")
    if not meta.v_min < meta.v_max or meta.atoms < 2:
        raise CheckpointError(f"atoms: expected increasing atoms, got {meta.atoms} on [{meta.v_min}, {meta.v_max}]")
    d, nu, _ = SIZES[meta.robot]
    for name, array in (("normalizer.mean", ckpt.mean), ("normalizer.std", ckpt.std)):
        if np.shape(array) != (d,):
            raise CheckpointError(f"{name}: expected shape {(d,)} for {meta.robot}, got {np.shape(array)}")
    if not (np.asarray(ckpt.std) > 0).all():
        raise CheckpointError("normalizer.std: expected positive entries")
    for label, tree in (("actor", ckpt.actor), *((f"critic{i}", c) for i, c in enumerate(ckpt.critics))):
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            if not np.isfinite(leaf).all():
                raise CheckpointError(f"{label}{jax.tree_util.keystr(path)}: expected finite weights")
    outputs = HEADS[meta.critic_kind] or meta.atoms
    jobs = [("actor", meta.arch, ckpt.actor, d, nu)]
    jobs += [(f"critic{i}", meta.critic_arch, c, d + nu, outputs) for i, c in enumerate(ckpt.critics)]
    for label, arch, tree, n, m in jobs:
        try:
            shape = jax.eval_shape(networks.get(arch).apply, tree, jax.ShapeDtypeStruct((1, n), jnp.float32)).shape
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise CheckpointError(
                f"{label}: expected a {arch} network of {meta.robot} with {n} inputs ({str(error)[:120]})"
            ) from error
        if shape != (1, m):
            raise CheckpointError(f"{label}: expected {m} outputs for {meta.robot}, got {shape[-1]}")


def available() -> dict[str, Path]:
    """Name -> file of the checkpoints that come with the package."""
    folder = Path(str(resources.files(__package__) / "checkpoints"))
    return {p.stem: p for p in sorted(folder.glob("*.safetensors"))}


def untrained(robot: str, arch: str = "mlp", seed: int = 0, width: int = 64) -> Checkpoint:
    """A checkpoint with random weights: to try a robot, a network or an installation before anything is trained."""
    if robot not in SIZES:
        raise CheckpointError(f"robot: expected one of {', '.join(SIZES)}, got {robot!r}")
    check_int(seed, "seed", minimum=0)
    check_int(width, "width", minimum=1)
    d, nu, _ = SIZES[robot]
    critic_arch = "mlp_ln" if arch.startswith("mlp") else arch
    meta = Meta(robot=robot, arch=arch, critic_arch=critic_arch, status="untrained", q_scale=0.1, card={"seed": seed})
    keys = jax.random.split(jax.random.key(seed), 3)
    actor = networks.get(arch).init(keys[0], d, width, 2, nu, 0.01)
    critics = [networks.get(critic_arch).init(k, d + nu, width, 2, meta.atoms, 0.1) for k in keys[1:]]
    plain = jax.tree.map(np.asarray, (actor, critics))
    return Checkpoint(meta, *plain, np.zeros(d, np.float32), np.ones(d, np.float32))


def load(name: str | Path) -> Checkpoint:
    """A checkpoint of the package by name ("go1-joystick"), or a file.

    Raises:
        CheckpointError: the file is truncated, its digest or a field is wrong; nothing half-loaded is returned.
    """
    if not isinstance(name, str | Path):
        raise TypeError(f"name: expected the name of a checkpoint or a file, got {name!r}")
    path = available().get(str(name), Path(name))
    if not path.is_file():
        raise FileNotFoundError(f"name: expected one of {', '.join(available()) or '(none)'} or a file, got {name!r}")
    try:
        data = path.read_bytes()
        arrays = load_tensors(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        meta = Meta(**json.loads(header["meta"]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path.name}: not a whole checkpoint of this package ({error})") from error
    ckpt = _build(meta, {k: np.asarray(v, np.float32) for k, v in arrays.items()}, path.name)
    if ckpt.digest() != header.get("sha256"):
        raise CheckpointError(f"{path.name}: sha256 does not match the stored digest")
    return ckpt
