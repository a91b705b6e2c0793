"""Playground's joystick tasks in NumPy, for a batch of robots: observation, reward terms, commands.

Every formula follows MuJoCo Playground 0.2.0 (`locomotion/go1/joystick.py`, `locomotion/g1/joystick.py`), including
the order in which a tick updates its memory; the tests compare term by term with Playground and with envpool. Arrays
have a leading robot axis n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import mujoco
import numpy as np

__all__ = ["HumanoidTask", "Physics", "QuadrupedTask", "Task", "task_of"]

DT = 0.02  # control step in seconds, 50 Hz
#: half-widths of the uniform observation noise at level 1
NOISE = {"linvel": 0.1, "gyro": 0.2, "gravity": 0.05, "joint_pos": 0.03, "joint_vel": 1.5}


@dataclass
class Physics:
    """What the tasks read from n simulators after a tick."""

    qpos: np.ndarray
    qvel: np.ndarray
    sensors: np.ndarray
    imu_z: np.ndarray  # third row of the IMU frame's rotation: -R^T e_z is the gravity direction seen by the body
    feet_z: np.ndarray
    force: np.ndarray


class Task:
    """Sizes, names and formulas of one robot's joystick task."""

    robot: str
    keyframe = "home"
    action_scale = 0.5
    sim_dt: float
    feet: tuple[str, ...]
    weights: ClassVar[dict[str, float]]
    command_scale: np.ndarray
    clip_reward: bool
    fields: tuple[str, ...]

    def __init__(self, model: mujoco.MjModel):
        self.model = model
        self.init_qpos = model.keyframe(self.keyframe).qpos.copy()
        self.default = self.init_qpos[7:].copy()
        self.nu = model.nu
        self.feet_site = np.array([model.site(f).id for f in self.feet])
        self.foot_velocity = np.array([self.sensor(f"{f}_global_linvel") for f in self.feet])
        widths = {"linvel": 3, "gyro": 3, "gravity": 3, "joint_pos": self.nu, "joint_vel": self.nu}
        widths |= {"last_act": self.nu, "command": 3, "phase": 4}
        self.slices, at = {}, 0
        for name in self.fields:
            self.slices[name] = slice(at, at + widths[name])
            at += widths[name]
        self.obs_size = at
        self.noise_scale = np.zeros(at)
        for name, half in NOISE.items():
            self.noise_scale[self.slices[name]] = half

    def sensor(self, name: str) -> np.ndarray:
        """Where a sensor's numbers stand in MuJoCo's sensor data."""
        s = self.model.sensor(name)
        return np.arange(s.adr[0], s.adr[0] + s.dim[0])

    def new_memory(self, n: int) -> dict[str, np.ndarray]:
        """What the task remembers between ticks, zeros."""
        feet = len(self.feet)
        return {
            "last_act": np.zeros((n, self.nu)),
            "air_time": np.zeros((n, feet)),
            "last_contact": np.zeros((n, feet), bool),
            "swing_peak": np.zeros((n, feet)),
            "command": np.zeros((n, 3)),
            "until": np.zeros(n, int),
        }

    # -- what a robot kind defines -------------------------------------------------------------------------------------
    imu: str

    def begin(self, rng: np.random.Generator) -> tuple[dict[str, Any], np.ndarray]:
        """First memory entries of one robot, and factors for its initial joint positions."""
        raise NotImplementedError

    def advance(self, memory: dict[str, np.ndarray], i: int, rng: np.random.Generator) -> None:
        """Command process of robot i after a tick."""
        raise NotImplementedError

    def sense(self, p: Physics, memory: dict[str, np.ndarray]) -> np.ndarray:
        """Clean observation (n, d)."""
        raise NotImplementedError

    def terms(
        self, p: Physics, action: np.ndarray, memory: dict[str, np.ndarray], contact: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Reward terms by name, unweighted, (n,) each."""
        raise NotImplementedError

    def fallen(self, p: Physics) -> np.ndarray:
        """Robots whose episode ends by a fall, (n,)."""
        raise NotImplementedError

    def contact(self, p: Physics) -> np.ndarray:
        """Feet that touch the ground, (n, feet)."""
        return p.sensors[:, self._found] > 0


class QuadrupedTask(Task):
    """Go1 and Go2."""

    sim_dt = 0.004
    imu = "imu"
    command_seconds = 5.0  # mean time between two commands
    fields = ("linvel", "gyro", "gravity", "joint_pos", "joint_vel", "last_act", "command")
    command_scale = np.array([1.5, 0.8, 1.2])
    command_keep = np.array([0.9, 0.25, 0.5])
    clip_reward = True
    sigma, foot_height = 0.25, 0.1
    weights: ClassVar[dict[str, float]] = {
        "tracking_lin_vel": 1.0, "tracking_ang_vel": 0.5, "lin_vel_z": -0.5, "ang_vel_xy": -0.05, "orientation": -5.0,
        "dof_pos_limits": -1.0, "pose": 0.5, "termination": -1.0, "stand_still": -1.0, "torques": -2e-4, "action_rate": -0.01,
        "energy": -1e-3, "feet_clearance": -2.0, "feet_height": -0.2, "feet_slip": -0.1, "feet_air_time": 0.1,
    }  # fmt: skip

    def __init__(self, model: mujoco.MjModel):
        super().__init__(model)
        self.low, self.high = (
            0.95 * model.jnt_range[1:].T
        )  # soft limits scale the limits themselves, as Playground does
        names = ("gyro", "local_linvel", "upvector", "global_linvel", "global_angvel")
        self._gyro, self._linvel, self._up, self._glinvel, self._gangvel = (self.sensor(n) for n in names)
        self._found = np.array([self.sensor(f"{f}_floor_found")[0] for f in self.feet])

    def begin(self, rng: np.random.Generator) -> tuple[dict[str, Any], np.ndarray]:
        """See `Task.begin`."""
        until = round(rng.exponential() * self.command_seconds / DT)
        return {"command": rng.uniform(-1, 1, 3) * self.command_scale, "until": until}, np.ones(self.nu)

    def advance(self, memory: dict[str, np.ndarray], i: int, rng: np.random.Generator) -> None:
        """See `Task.advance`."""
        memory["until"][i] -= 1
        if memory["until"][i] <= 0:
            new = rng.uniform(-1, 1, 3) * self.command_scale * (rng.random(3) < self.command_keep)
            change = rng.random(3) < 0.5
            memory["command"][i] = np.where(change, new, memory["command"][i])
            memory["until"][i] = round(rng.exponential() * self.command_seconds / DT)

    def sense(self, p: Physics, memory: dict[str, np.ndarray]) -> np.ndarray:
        """Clean observation (n, d)."""
        s = p.sensors
        parts = (s[:, self._linvel], s[:, self._gyro], -p.imu_z, p.qpos[:, 7:] - self.default, p.qvel[:, 6:])
        return np.concatenate([*parts, memory["last_act"], memory["command"]], axis=1)

    def fallen(self, p: Physics) -> np.ndarray:
        """Robots whose episode ends by a fall, (n,)."""
        return p.sensors[:, self._up[2]] < 0.0

    def terms(
        self, p: Physics, action: np.ndarray, memory: dict[str, np.ndarray], contact: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Reward terms by name, unweighted, (n,) each."""
        s, q, command = p.sensors, p.qpos[:, 7:], memory["command"]
        first = (memory["air_time"] > 0) & (contact | memory["last_contact"])
        air = memory["air_time"] + DT
        peak = np.maximum(memory["swing_peak"], p.feet_z)
        moving, still = np.sqrt((command**2).sum(1)), None
        still, moving = moving < 0.01, moving > 0.01
        feet_v2 = (s[:, self.foot_velocity[:, :2]] ** 2).sum(2)
        offset, force = q - self.default, p.force
        return {
            "tracking_lin_vel": np.exp(-((command[:, :2] - s[:, self._linvel[:2]]) ** 2).sum(1) / self.sigma),
            "tracking_ang_vel": np.exp(-((command[:, 2] - s[:, self._gyro[2]]) ** 2) / self.sigma),
            "lin_vel_z": s[:, self._glinvel[2]] ** 2,
            "ang_vel_xy": (s[:, self._gangvel[:2]] ** 2).sum(1),
            "orientation": (s[:, self._up[:2]] ** 2).sum(1),
            "dof_pos_limits": (np.maximum(self.low - q, 0) + np.maximum(q - self.high, 0)).sum(1),
            "pose": np.exp(-(offset**2 * np.tile([1.0, 1.0, 0.1], 4)).sum(1)),
            "termination": self.fallen(p).astype(float),
            "stand_still": np.abs(offset).sum(1) * still,
            "torques": np.sqrt((force**2).sum(1)) + np.abs(force).sum(1),
            "action_rate": ((action - memory["last_act"]) ** 2).sum(1),
            "energy": (np.abs(p.qvel[:, 6:]) * np.abs(force)).sum(1),
            "feet_clearance": (np.abs(p.feet_z - self.foot_height) * feet_v2**0.25).sum(1),
            "feet_height": ((peak / self.foot_height - 1) ** 2 * first).sum(1) * moving,
            "feet_slip": (feet_v2 * contact).sum(1) * moving,
            "feet_air_time": ((air - 0.1) * first).sum(1) * moving,
        }


class Go1Task(QuadrupedTask):
    """Playground's Go1 joystick."""

    robot, feet = "go1", ("FR", "FL", "RR", "RL")


class Go2Task(QuadrupedTask):
    """The Go1 task on the Go2, whose legs are listed FL, FR, RL, RR."""

    robot, feet = "go2", ("FL", "FR", "RL", "RR")


class HumanoidTask(Task):
    """G1."""

    robot, sim_dt, imu, keyframe = "g1", 0.002, "imu_in_pelvis", "knees_bent"
    feet = ("left_foot", "right_foot")
    fields = ("linvel", "gyro", "gravity", "command", "joint_pos", "joint_vel", "last_act", "phase")
    command_scale = np.array([1.0, 0.5, 1.0])
    clip_reward = False
    sigma, foot_height, max_force = 0.25, 0.15, 500.0
    #: the terms with a non-zero weight; Playground computes a dozen more and multiplies them by zero
    weights: ClassVar[dict[str, float]] = {
        "tracking_lin_vel": 1.0, "tracking_ang_vel": 0.75, "ang_vel_xy": -0.15, "orientation": -2.0, "feet_air_time": 2.0,
        "feet_slip": -0.25, "feet_phase": 1.0, "stand_still": -1.0, "termination": -100.0, "collision": -0.1,
        "contact_force": -0.01,
        "joint_deviation_knee": -0.1, "joint_deviation_hip": -0.25, "dof_pos_limits": -1.0, "pose": -0.1,
    }  # fmt: skip

    def __init__(self, model: mujoco.MjModel):
        super().__init__(model)
        low, high = model.jnt_range[1:].T
        centre, half = (low + high) / 2, 0.5 * (high - low) * 0.95
        self.low, self.high = centre - half, centre + half
        names = (
            "gyro_pelvis",
            "local_linvel_pelvis",
            "global_linvel_pelvis",
            "global_angvel_pelvis",
            "global_angvel_torso",
        )
        self._gyro, self._linvel, self._glinvel, self._gangvel, self._torso_angvel = (self.sensor(n) for n in names)
        self._up = self.sensor("upvector_torso")
        self._found = np.array([self.sensor(f"{f}_floor_found")[0] for f in self.feet])
        self._forces = np.array([self.sensor(f"{f}_force")[2] for f in self.feet])
        self._hands = np.array([self.sensor(f"{s}_hand_{s}_thigh_found")[0] for s in ("left", "right")])
        crossed = ("right_foot_left_foot", "left_foot_right_shin", "right_foot_left_shin")
        self._crossed = np.array([self.sensor(f"{c}_found")[0] for c in crossed])
        joint = lambda n: int(model.joint(f"{n}_joint").qposadr[0]) - 7  # noqa: E731
        self._hips = np.array([joint(f"{s}_hip_{a}") for s in ("left", "right") for a in ("roll", "yaw")])
        self._knees = np.array([joint(f"{s}_knee") for s in ("left", "right")])

    def new_memory(self, n: int) -> dict[str, np.ndarray]:
        """What the task remembers between ticks, zeros."""
        return super().new_memory(n) | {"phase": np.zeros((n, 2)), "phase_dt": np.zeros(n)}

    def _command(self, rng: np.random.Generator) -> np.ndarray:
        command = rng.uniform(-1, 1, 3) * self.command_scale
        return command * (rng.random() >= 0.1)

    def begin(self, rng: np.random.Generator) -> tuple[dict[str, Any], np.ndarray]:
        """See `Task.begin`."""
        first = {"phase": np.array([0.0, np.pi]), "phase_dt": 2 * np.pi * DT * rng.uniform(1.25, 1.5)}
        return first | {"command": self._command(rng), "until": 501}, rng.uniform(0.5, 1.5, self.nu)

    def advance(self, memory: dict[str, np.ndarray], i: int, rng: np.random.Generator) -> None:
        """See `Task.advance`."""
        phase = memory["phase"][i] + memory["phase_dt"][i]
        memory["phase"][i] = np.fmod(phase + np.pi, 2 * np.pi) - np.pi
        memory["until"][i] -= 1
        if memory["until"][i] <= 0:
            memory["command"][i], memory["until"][i] = self._command(rng), 501

    def sense(self, p: Physics, memory: dict[str, np.ndarray]) -> np.ndarray:
        """Clean observation (n, d)."""
        s, phase = p.sensors, memory["phase"]
        parts = (
            s[:, self._linvel],
            s[:, self._gyro],
            -p.imu_z,
            memory["command"],
            p.qpos[:, 7:] - self.default,
            p.qvel[:, 6:],
        )
        return np.concatenate([*parts, memory["last_act"], np.cos(phase), np.sin(phase)], axis=1)

    def fallen(self, p: Physics) -> np.ndarray:
        """Robots whose episode ends by a fall, (n,)."""
        return (p.sensors[:, self._up[2]] < 0.0) | (p.sensors[:, self._crossed] > 0).any(1)

    def terms(
        self, p: Physics, action: np.ndarray, memory: dict[str, np.ndarray], contact: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Reward terms by name, unweighted, (n,) each."""
        s, q, command = p.sensors, p.qpos[:, 7:], memory["command"]
        offset = q - self.default
        first = (memory["air_time"] > 0) & (contact | memory["last_contact"])
        air = np.minimum((memory["air_time"] + DT - 0.2) * first, 0.3)
        planar = np.sqrt((s[:, self._glinvel[:2]] ** 2).sum(1))
        moving = (planar > 0.1) | (np.abs(s[:, self._gangvel[2]]) > 0.1) | (np.sqrt((command**2).sum(1)) > 0.01)
        height = _swing_height((memory["phase"] + np.pi) / (2 * np.pi), self.foot_height)
        # Playground broadcasts the hip error (4, 1) against its weights (4,): the sum is counted once per non-zero weight.
        hips = np.abs(offset[:, self._hips]).sum(1) * np.where(command[:, 1] > 0.1, 2.0, 4.0)
        return {
            "tracking_lin_vel": np.exp(-((command[:, :2] - s[:, self._linvel[:2]]) ** 2).sum(1) / self.sigma),
            "tracking_ang_vel": np.exp(-((command[:, 2] - s[:, self._gyro[2]]) ** 2) / self.sigma),
            "ang_vel_xy": (s[:, self._torso_angvel[:2]] ** 2).sum(1),
            "orientation": ((s[:, self._up] - np.array([0.073, 0.0, 1.0])) ** 2).sum(1),
            "feet_air_time": air.sum(1),
            # Playground takes the norm of the planar velocity over its last axis: one speed, counted for every foot in contact
            "feet_slip": planar * contact.sum(1),
            "feet_phase": np.exp(-((p.feet_z - height) ** 2).sum(1) / 0.01) * moving,
            "stand_still": np.abs(offset).sum(1) * (np.sqrt((command**2).sum(1)) < 0.01),
            "termination": self.fallen(p).astype(float),
            "collision": (s[:, self._hands] > 0).any(1).astype(float),
            "contact_force": np.maximum(np.abs(s[:, self._forces]) - self.max_force, 0).sum(1),
            "joint_deviation_knee": np.abs(offset[:, self._knees]).sum(1),
            "joint_deviation_hip": hips,
            "dof_pos_limits": (np.maximum(self.low - q, 0) + np.maximum(q - self.high, 0)).sum(1),
            "pose": (offset**2).sum(1),
        }


def _swing_height(x: np.ndarray, top: float) -> np.ndarray:
    """Desired foot height over a gait cycle x in [0, 1]: up in the first half, down in the second, both as a cubic
    Bezier."""
    up, down = 2 * x, 2 * x - 1
    ease = lambda u: u**3 + 3 * u**2 * (1 - u)  # noqa: E731
    return np.where(x <= 0.5, top * ease(up), top - top * ease(down))


def task_of(robot: str, model: mujoco.MjModel) -> Task:
    """The joystick task of a robot."""
    return {"go1": Go1Task, "go2": Go2Task, "g1": HumanoidTask}[robot](model)
