"""The four shifts of operating conditions, as pure functions on the model and on the observation.

The paper names them (rough terrain, slippery ground, payload, degraded sensing); the magnitudes are ours
(`SEVERITIES`). A shift is always applied to the *nominal* model, so applying it twice, or again after a reset, gives
the same model.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from typing import Any

import mujoco
import numpy as np

from neurips26.shared.arrays import check_array, check_choice, check_int, check_real

__all__ = [
    "SEVERITIES",
    "SHIFTS",
    "Combined",
    "Nominal",
    "Payload",
    "RoughTerrain",
    "Scheduled",
    "Sensing",
    "Shift",
    "Slippery",
    "of_severity",
]


class Observer:
    """Sensors of n robots: adds the noise. `reset(i, rng)` starts robot i's episode; `observe` must be called once a
    tick."""

    def __init__(self, task: Any, n: int):
        self.task, self.n = task, n

    def reset(self, i: int, rng: np.random.Generator) -> None:
        """Draws what stays constant over robot i's episode."""

    def observe(self, clean: np.ndarray, noise: np.ndarray, tick: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Observation (n, d) from the clean one and this tick's noise; robots outside `mask` did not move."""
        return clean + noise


class Shift:
    """A change of the operating conditions."""

    terrain = "flat"

    def apply(self, nominal: mujoco.MjModel, tick: int = 0, into: mujoco.MjModel | None = None) -> mujoco.MjModel:
        """The shifted model; `nominal` is left alone. With `into`, that model is rewritten in place and returned."""
        model = _fresh(nominal, into)
        self._change(model, 1.0)
        mujoco.mj_setConst(model, mujoco.MjData(model))
        return model

    def _change(self, model: mujoco.MjModel, fraction: float) -> None:
        """Writes the shift at `fraction` of its size into a model that holds nominal values."""

    def observer(self, task: Any, n: int) -> Observer:
        """The sensors of n robots under this shift."""
        return Observer(task, n)


def check_shift(value: Any, name: str) -> Shift:
    """`value` if it is a shift; its name or its class is not one."""
    if not isinstance(value, Shift):
        raise TypeError(f"{name}: expected a shift such as Payload(4.0), got {value!r}")
    return value


_TOUCHED = ("geom_friction", "pair_friction", "body_mass", "body_ipos", "body_iquat", "body_inertia", "hfield_size")


def _fresh(nominal: mujoco.MjModel, into: mujoco.MjModel | None) -> mujoco.MjModel:
    if into is None:
        return copy.copy(nominal)
    for name in _TOUCHED:
        getattr(into, name)[:] = getattr(nominal, name)
    return into


@dataclass(frozen=True)
class Nominal(Shift):
    """The conditions of training."""


@dataclass(frozen=True)
class RoughTerrain(Shift):
    """Playground's rocky height field, `height` metres from its lowest to its highest point."""

    height: float = 0.08
    terrain = "rough"

    def __post_init__(self) -> None:
        check_real(self.height, "height", minimum=0.0, maximum=1.0, inclusive=False)

    def _change(self, model: mujoco.MjModel, fraction: float) -> None:
        if model.nhfield == 0:
            raise ValueError("nominal: expected a model with a height field (terrain='rough'), got one without")
        model.hfield_size[0, 2] = max(self.height * fraction, 1e-4)


@dataclass(frozen=True)
class Slippery(Shift):
    """Sliding friction of the ground (nominal 0.6). The floor's own value counts: it has priority, and G1's contact
    pairs are rewritten."""

    friction: float = 0.2

    def __post_init__(self) -> None:
        check_real(self.friction, "friction", minimum=0.0, maximum=5.0, inclusive=False)

    def _change(self, model: mujoco.MjModel, fraction: float) -> None:
        floor = model.geom("floor").id
        before = float(model.geom_friction[floor, 0])
        for k in range(model.npair):
            if floor in (model.pair_geom1[k], model.pair_geom2[k]):
                before = float(model.pair_friction[k, 0])
                model.pair_friction[k, :2] = before + fraction * (self.friction - before)
        model.geom_friction[floor, 0] = before + fraction * (self.friction - before)


@dataclass(frozen=True)
class Payload(Shift):
    """A point mass of `kg` fixed to a body: `on` "trunk" (the torso of G1) or "calf" (front right), at `at` in that
    body's frame; by default above the trunk, off its middle, and halfway down the calf."""

    kg: float = 4.0
    on: str = "trunk"
    at: tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        check_real(self.kg, "kg", minimum=0.0, maximum=200.0)
        check_choice(self.on, "on", ("trunk", "calf"))
        if self.at is None:
            object.__setattr__(self, "at", (0.1, 0.05, 0.08) if self.on == "trunk" else (0.0, 0.0, -0.1))
        at = check_array(self.at, "at", shape=(3,), dtype=float)
        object.__setattr__(self, "at", tuple(at.tolist()))

    def _change(self, model: mujoco.MjModel, fraction: float) -> None:
        names = ("trunk", "base", "torso_link") if self.on == "trunk" else ("FR_calf", "right_knee_link")
        body = next(b for b in (mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, n) for n in names) if b >= 0)
        add_point_mass(model, body, self.kg * fraction, np.asarray(self.at, float))


def add_point_mass(model: mujoco.MjModel, body: int, kg: float, at: np.ndarray) -> None:
    """Adds a point mass at `at` (body frame): total mass, centre of mass and the rotated, re-diagonalised inertia."""
    if kg == 0:
        return
    mass, centre = float(model.body_mass[body]), model.body_ipos[body].copy()
    rotation = np.zeros(9)
    mujoco.mju_quat2Mat(rotation, model.body_iquat[body])
    rotation = rotation.reshape(3, 3)
    total = mass + kg
    new = (mass * centre + kg * at) / total

    def steiner(m: float, r: np.ndarray) -> np.ndarray:
        return m * (r @ r * np.eye(3) - np.outer(r, r))

    inertia = (
        rotation @ np.diag(model.body_inertia[body]) @ rotation.T + steiner(mass, centre - new) + steiner(kg, at - new)
    )
    values, axes = np.linalg.eigh(inertia)
    if np.linalg.det(axes) < 0:
        axes[:, 0] *= -1
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, axes.ravel())
    model.body_mass[body], model.body_ipos[body], model.body_iquat[body], model.body_inertia[body] = (
        total,
        new,
        quat,
        values,
    )


@dataclass(frozen=True)
class Sensing(Shift):
    """Worse sensors: noise times `noise`, constant biases, held samples, delay.

    Biases keep their size and take a random sign per axis and robot. With probability `dropout` a tick repeats the
    previous sensor reading; `delay` ticks old readings are given. Command and last action are known on board: neither
    is degraded.
    """

    noise: float = 3.0
    gyro_bias: float = 0.2
    joint_bias: float = 0.05
    dropout: float = 0.1
    delay: int = 1

    def __post_init__(self) -> None:
        check_real(self.noise, "noise", minimum=0.0)
        check_real(self.gyro_bias, "gyro_bias", minimum=0.0)
        check_real(self.joint_bias, "joint_bias", minimum=0.0)
        check_real(self.dropout, "dropout", minimum=0.0, maximum=1.0)
        check_int(self.delay, "delay", minimum=0, maximum=50)

    def observer(self, task: Any, n: int) -> Observer:
        """The sensors of n robots under this shift."""
        return _WorseSensors(task, n, self)


class _WorseSensors(Observer):
    def __init__(self, task: Any, n: int, shift: Sensing):
        super().__init__(task, n)
        self.shift = shift
        self.bias = np.zeros((n, task.obs_size))
        measured = ("linvel", "gyro", "gravity", "joint_pos", "joint_vel")
        self.measured = np.concatenate([np.arange(task.slices[k].start, task.slices[k].stop) for k in measured])
        self.buffer = np.zeros((n, shift.delay + 1, len(self.measured)))  # newest first
        self.held = np.zeros((n, len(self.measured)))
        self.rngs: list[np.random.Generator | None] = [None] * n

    def reset(self, i: int, rng: np.random.Generator) -> None:
        slices, s = self.task.slices, self.shift
        self.bias[i, slices["gyro"]] = s.gyro_bias * rng.choice([-1.0, 1.0], 3)
        self.bias[i, slices["joint_pos"]] = s.joint_bias * rng.choice([-1.0, 1.0], self.task.nu)
        self.rngs[i] = rng

    def observe(self, clean: np.ndarray, noise: np.ndarray, tick: np.ndarray, mask: np.ndarray) -> np.ndarray:
        out = clean.copy()
        fresh = (clean + self.shift.noise * noise + self.bias)[:, self.measured]
        for i in np.flatnonzero(mask).tolist():
            rng = self.rngs[i]
            assert rng is not None
            dropped = rng.random() < self.shift.dropout
            if tick[i] == 0:
                self.buffer[i], self.held[i] = fresh[i], fresh[i]
                continue
            self.buffer[i, 1:] = self.buffer[i, :-1].copy()
            self.buffer[i, 0] = fresh[i]
            if not dropped:
                self.held[i] = self.buffer[i, -1]
        out[:, self.measured] = self.held
        return out


@dataclass(frozen=True)
class Combined(Shift):
    """Several shifts at once, e.g. rough ground and worse sensors, at most one of each kind (payloads: one a body); to
    schedule them, schedule the combination."""

    parts: tuple[Shift, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple | list) or not self.parts:
            raise ValueError(f"parts: expected a tuple of shifts, got {self.parts!r}")
        for part in self.parts:
            check_shift(part, "parts")
        object.__setattr__(self, "parts", tuple(self.parts))
        kinds = [f"{type(p).__name__} on {p.on}" if isinstance(p, Payload) else type(p).__name__ for p in self.parts]
        if len(set(kinds)) < len(kinds) or any(isinstance(p, Combined | Scheduled) for p in self.parts):
            raise ValueError(
                "parts: expected one plain shift of each kind at most (a schedule goes around the combination), got "
                + ", ".join(kinds)
            )

    @property
    def terrain(self) -> str:  # type: ignore[override]
        """The ground that the parts need."""
        return "rough" if any(p.terrain == "rough" for p in self.parts) else "flat"

    def _change(self, model: mujoco.MjModel, fraction: float) -> None:
        for part in self.parts:
            part._change(model, fraction)

    def observer(self, task: Any, n: int) -> Observer:
        """The sensors of n robots under this shift."""
        return next((p.observer(task, n) for p in self.parts if isinstance(p, Sensing)), Observer(task, n))


@dataclass(frozen=True)
class Scheduled(Shift):
    """A shift that sets in after `onset` seconds and grows linearly over `ramp` seconds."""

    shift: Shift
    onset: float = 0.0
    ramp: float = 0.0

    def __post_init__(self) -> None:
        check_shift(self.shift, "shift")
        if isinstance(self.shift, Scheduled):
            raise ValueError("shift: expected a shift without a schedule of its own, got Scheduled")
        check_real(self.onset, "onset", minimum=0.0)
        check_real(self.ramp, "ramp", minimum=0.0)

    @property
    def terrain(self) -> str:  # type: ignore[override]
        """The ground that the parts need."""
        return self.shift.terrain

    def fraction(self, tick: int) -> float:
        """Share of the full shift at this tick (50 ticks a second)."""
        seconds = tick * 0.02 - self.onset
        if seconds < 0:
            return 0.0
        return 1.0 if self.ramp == 0 else min(1.0, seconds / self.ramp)

    def apply(self, nominal: mujoco.MjModel, tick: int = 0, into: mujoco.MjModel | None = None) -> mujoco.MjModel:
        """See `Shift.apply`."""
        model = _fresh(nominal, into)
        self.shift._change(model, self.fraction(tick))
        mujoco.mj_setConst(model, mujoco.MjData(model))
        return model

    def observer(self, task: Any, n: int) -> Observer:
        """The sensors of n robots under this shift."""
        return _ScheduledSensors(task, n, self)


class _ScheduledSensors(Observer):
    def __init__(self, task: Any, n: int, schedule: Scheduled):
        super().__init__(task, n)
        self.schedule, self.worse = schedule, schedule.shift.observer(task, n)

    def reset(self, i: int, rng: np.random.Generator) -> None:
        self.worse.reset(i, rng)

    def observe(self, clean: np.ndarray, noise: np.ndarray, tick: np.ndarray, mask: np.ndarray) -> np.ndarray:
        part = np.array([self.schedule.fraction(int(t)) for t in tick])[:, None]
        return (1 - part) * (clean + noise) + part * self.worse.observe(clean, noise, tick, mask)


#: the four shifts at severities 1 to 3, for quadrupeds and for the humanoid
SEVERITIES: dict[str, dict[str, tuple[Shift, Shift, Shift]]] = {
    "quadruped": {
        "terrain": (RoughTerrain(0.05), RoughTerrain(0.08), RoughTerrain(0.12)),
        "friction": (Slippery(0.3), Slippery(0.2), Slippery(0.1)),
        "payload": (Payload(2.0), Payload(4.0), Payload(6.0)),
        "sensing": (Sensing(2, 0.1, 0.02, 0.05, 0), Sensing(3, 0.2, 0.05, 0.1, 1), Sensing(4, 0.3, 0.08, 0.2, 2)),
        "calf": (Payload(0.3, "calf"), Payload(0.6, "calf"), Payload(1.0, "calf")),
    },
    "humanoid": {
        "terrain": (RoughTerrain(0.03), RoughTerrain(0.05), RoughTerrain(0.08)),
        "friction": (Slippery(0.3), Slippery(0.2), Slippery(0.15)),
        "payload": (Payload(5.0), Payload(10.0), Payload(15.0)),
        "sensing": (Sensing(2, 0.1, 0.02, 0.05, 0), Sensing(3, 0.2, 0.05, 0.1, 1), Sensing(4, 0.3, 0.08, 0.2, 2)),
    },
}
SHIFTS = ("terrain", "friction", "payload", "sensing")


def of_severity(robot: str, name: str, severity: int) -> Shift:
    """The shift `name` ("nominal", "terrain", "friction", "payload", "sensing", "calf") at severity 1, 2 or 3."""
    table = SEVERITIES["humanoid" if check_choice(robot, "robot", ("go1", "go2", "g1")) == "g1" else "quadruped"]
    check_choice(name, "shift", ("nominal", *table))
    check_int(severity, "severity", minimum=1, maximum=3)
    return Nominal() if name == "nominal" else table[name][severity - 1]


def describe(shift: Shift) -> str:
    """Name and parameters of a shift on one line."""
    inside = ", ".join(f"{f.name}={getattr(shift, f.name)!r}" for f in fields(shift))  # type: ignore[arg-type]
    return f"{type(shift).__name__}({inside})"
