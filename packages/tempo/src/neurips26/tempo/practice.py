"""Our own simulators as a training ground: `Runtime` behind the interface that PPO expects of envpool.

envpool's tasks are Playground's as they are. Here commands may change more often, robots may be pushed and may start
badly: the moments in which a policy falls are rare in the task itself, and what is rare is learned slowly. Any robot
that `Runtime` knows can be trained, Go2 too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neurips26.shared.arrays import check_choice, check_int, check_real

from . import runtime
from .tasks import QuadrupedTask

__all__ = ["PracticeEnvs", "privileged", "renamed"]

#: Go2's legs are FL FR RL RR, Go1's FR FL RR RL: entry k of one robot's joint vector is entry LEGS[k] of the other's.
LEGS = np.array([3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8])
FEET = np.array([1, 0, 3, 2])


def renamed(learner: Any) -> Any:
    """A Go1 learner as one of Go2, and back: the same networks, optimiser and statistics with the legs in the other
    order, so that training a robot can start from its sister's gait instead of from nothing."""
    order, at = [], 0
    blocks = [3, 3, 3, LEGS, LEGS, LEGS, 3, 3, 3, 3, 3, 3, LEGS, LEGS, LEGS, FEET, LEGS, FEET, 3, 1]
    for block in blocks:
        order.append(at + (np.arange(block) if isinstance(block, int) else block))
        at += len(order[-1])
    priv = np.concatenate(order)
    obs = priv[:48]

    def layers(net: list[dict[str, Any]], inputs: np.ndarray, outputs: Any) -> list[dict[str, Any]]:
        first = {**net[0], "w": net[0]["w"][inputs]}
        last = {"w": net[-1]["w"][:, outputs], "b": net[-1]["b"][outputs]}
        return [first, *net[1:-1], last]

    def params(p: dict[str, Any]) -> dict[str, Any]:
        actor, value = layers(p["actor"], obs, LEGS), layers(p["value"], priv, slice(None))
        return {"actor": actor, "value": value, "log_std": p["log_std"][LEGS]}

    def stats(s: dict[str, Any], order: np.ndarray) -> dict[str, Any]:
        return {"count": s["count"], "mean": s["mean"][order], "var": s["var"][order]}

    moments = {"mu": params(learner.opt.mu), "nu": params(learner.opt.nu)}
    return learner._replace(
        params=params(learner.params),
        opt=learner.opt._replace(**moments),
        obs_stats=stats(learner.obs_stats, obs),
        priv_stats=stats(learner.priv_stats, priv),
    )


def privileged(world: runtime.Runtime, obs: np.ndarray) -> np.ndarray:
    """Playground's `privileged_state` of a quadruped, shape (n, 123), from the noisy observation (n, 48).

    The last four entries (external force and its timer) are zero: pushes here are jumps of the velocity.
    """
    task, p, memory = world.task, world.physics, world.memory
    assert isinstance(task, QuadrupedTask)
    names = ("gyro", "accelerometer", "local_linvel", "global_angvel")
    gyro, acceleration, linvel, angvel = (p.sensors[:, task.sensor(name)] for name in names)
    feet = p.sensors[:, task.foot_velocity.ravel()]
    parts = (obs, gyro, acceleration, -p.imu_z, linvel, angvel, p.qpos[:, 7:] - task.default, p.qvel[:, 6:], p.force)
    state = (memory["last_contact"], feet, memory["air_time"], np.zeros((world.n, 4)))
    return np.concatenate([*parts, *state], axis=1).astype(np.float32)


class PracticeEnvs:
    """n robots that start again by themselves: the step after an episode's end ignores the action and delivers the
    first observation, as with envpool.

    Args:
        robot: "go1" or "go2".
        num_envs: n.
        seed: of all streams.
        command_seconds: mean time between two commands; the task itself has 5 s.
        push_speed: robots get a push of at most this many m/s every 2 to 6 s, and start tilted; 0 for neither.
    """

    def __init__(self, robot: str, num_envs: int, seed: int, command_seconds: float = 5.0, push_speed: float = 0.0):
        check_choice(robot, "robot", ("go1", "go2"))
        check_int(num_envs, "num_envs", minimum=1)
        check_real(command_seconds, "command_seconds", minimum=0.0, inclusive=False)
        check_real(push_speed, "push_speed", minimum=0.0)
        disturbance = None
        if push_speed > 0:
            disturbance = runtime.Disturbance((2.0, 6.0), push_speed, start_joint=0.2, start_tilt=0.3, start_speed=0.5)
        first = 300_000 + seed * 1000  # apart from the robots of every evaluation and of the critic's data
        self.world = runtime.Runtime(robot, range(first, first + num_envs), disturbance=disturbance)
        self.world.task.command_seconds = command_seconds
        self.over = np.ones(num_envs, bool)

    def _pack(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        return {"state": obs, "privileged_state": privileged(self.world, obs)}

    def reset(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """First observations of all robots."""
        self.over[:] = False
        return self._pack(self.world.reset()), {}

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """One tick: observations, reward, terminated, truncated, and `info` with every weighted reward term and the
        command that the reward was measured against."""
        again, command = self.over, self.world.memory["command"].copy()
        obs, reward, fallen, cut, info = self.world.step(action)
        if again.any():
            obs = self.world.reset(again)
        self.over = fallen | cut
        terms = {f"reward_{name}": value for name, value in info["terms"].items()}
        return self._pack(obs), reward, fallen, cut, terms | {"command": command}
