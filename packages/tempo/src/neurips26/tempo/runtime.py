"""Single robots in MuJoCo's C engine, a batch of them in one loop, with Playground's observation and reward.

`Runtime` steps n robots (one `mj_step` call each) and computes observations and rewards for all of them in NumPy.
Every robot has its own random streams for commands, noise and disturbances, drawn by tick and never by what the robot
does: two runs with equal seeds see the same commands and the same noise whatever the controller, which is what paired
comparisons need.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import mujoco
import numpy as np

from neurips26.shared.arrays import check_array, check_choice, check_int, check_real

from . import assets, shifts, tasks

__all__ = ["Disturbance", "JoystickEnv", "Runtime", "make"]

NOISE_BLOCK = 128
BLOW_UPS = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)


@dataclass(frozen=True)
class Disturbance:
    """Pushes and random starts for collecting data in bad states (off in every evaluation)."""

    push_interval: tuple[float, float] = (1.0, 4.0)  # seconds between pushes
    push_speed: float = 1.5  # at most this velocity jump (m/s) on the base, and this/1.5 rad/s on its spin
    start_joint: float = 0.4  # rad, uniform around the default pose
    start_tilt: float = 0.5  # rad, roll and pitch
    start_speed: float = 1.0  # m/s and rad/s on the base


class Runtime:
    """n robots of one kind under one condition.

    Args:
        robot: "go1", "go2" or "g1".
        seeds: one seed a robot.
        shift: a `shifts.Shift` (or schedule), or None for the nominal condition.
        noise: level of Playground's uniform observation noise (1 as in its default configuration).
        episode_length: ticks until truncation.
        disturbance: pushes and random starts, for training data only.
        meshes: "strip", or a checkout of mujoco_menagerie, for pictures of Go1 and G1.
    """

    def __init__(
        self,
        robot: str,
        seeds: Sequence[int],
        *,
        shift: shifts.Shift | None = None,
        noise: float = 1.0,
        episode_length: int = 1000,
        disturbance: Disturbance | None = None,
        meshes: str = "strip",
    ):
        check_choice(robot, "robot", assets.ROBOTS)
        self.noise = check_real(noise, "noise", minimum=0.0)
        self.episode_length = check_int(episode_length, "episode_length", minimum=1)
        self.seeds = [check_int(int(s), "seeds", minimum=0) for s in seeds]
        if not self.seeds:
            raise ValueError("seeds: expected at least one seed, got none")
        self.robot, self.n, self.disturbance = robot, len(self.seeds), disturbance
        self.shift = shifts.Nominal() if shift is None else shifts.check_shift(shift, "shift")
        self.nominal = assets.compile_model(robot, self.shift.terrain, meshes=meshes)
        self.model = self.shift.apply(self.nominal, 0)
        self.task = tasks.task_of(robot, self.model)
        self.substeps = round(tasks.DT / self.model.opt.timestep)
        self.data = [mujoco.MjData(self.model) for _ in range(self.n)]
        self.imu = self.model.site(self.task.imu).id
        nq, nv, ns = self.model.nq, self.model.nv, self.model.nsensordata
        self.physics = tasks.Physics(
            np.zeros((self.n, nq)), np.zeros((self.n, nv)), np.zeros((self.n, ns)), np.zeros((self.n, 3)),
            np.zeros((self.n, len(self.task.feet))), np.zeros((self.n, self.task.nu)),
        )  # fmt: skip
        self.episode = [-1] * self.n
        self.tick = np.zeros(self.n, int)
        self.memory = self.task.new_memory(self.n)
        self.observer: Any = None
        self._rngs: list[dict[str, np.random.Generator]] = [{} for _ in range(self.n)]
        self._noise = np.zeros((self.n, NOISE_BLOCK, self.task.obs_size))
        self._next_push = np.zeros(self.n, int)
        self.alive = np.zeros(self.n, bool)
        self._last = np.zeros((self.n, self.task.obs_size), np.float32)
        self._fraction = -1.0  # of a scheduled shift in the model; none yet

    @property
    def obs_size(self) -> int:
        """Length d of the observation."""
        return self.task.obs_size

    @property
    def action_size(self) -> int:
        """Number of motors."""
        return self.task.nu

    def reset(self, mask: np.ndarray | None = None, episode: int | None = None) -> np.ndarray:
        """Starts a new episode for the robots of `mask` (all by default) and returns the observations of all, shape
        (n, d); the others' are those that they had.

        `episode` numbers the episode within a robot's streams; by default the next one.
        """
        mask = np.ones(self.n, bool) if mask is None else np.asarray(mask, bool)
        self._reschedule(np.where(mask, 0, self.tick)[mask | self.alive])
        for i in np.flatnonzero(mask).tolist():
            self.episode[i] = self.episode[i] + 1 if episode is None else episode
            names = ("start", "command", "noise", "push", "sensor")
            rngs = {k: np.random.default_rng([self.seeds[i], self.episode[i], j]) for j, k in enumerate(names)}
            self._rngs[i], self.tick[i], self.alive[i] = rngs, 0, True
            self._place(i, rngs["start"])
            self._read(i)
        if self.observer is None or mask.all():
            self.observer = self.shift.observer(self.task, self.n)
        for i in np.flatnonzero(mask).tolist():
            self.observer.reset(i, self._rngs[i]["sensor"])
        return self._observe(mask)

    def _place(self, i: int, rng: np.random.Generator) -> None:
        task, d = self.task, self.data[i]
        mujoco.mj_resetData(self.model, d)
        first, factor = task.begin(self._rngs[i]["command"])
        for name, value in self.memory.items():
            value[i] = first.get(name, 0)
        d.qpos[:] = task.init_qpos
        d.qpos[7:] *= factor
        d.qpos[:2] += rng.uniform(-0.5, 0.5, 2)
        yaw = rng.uniform(-3.14, 3.14)
        quat = np.array([np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)])
        d.qvel[:6] = rng.uniform(-0.5, 0.5, 6)
        extra = self.disturbance
        if extra is not None and rng.random() < 0.7:
            tilt, turned = rng.uniform(-1, 1, 3) * [1, 1, 0] * extra.start_tilt, np.zeros(4)
            angle = float(np.sqrt((tilt**2).sum())) + 1e-9
            mujoco.mju_mulQuat(turned, quat, np.concatenate([[np.cos(angle / 2)], np.sin(angle / 2) * tilt / angle]))
            quat = turned
            d.qpos[7:] += rng.uniform(-1, 1, task.nu) * extra.start_joint
            d.qpos[2] += 0.3 * angle * rng.random()
            d.qvel[:6] += rng.uniform(-1, 1, 6) * extra.start_speed
        if extra is not None:
            low, high = extra.push_interval
            self._next_push[i] = round(rng.uniform(0.2, high) / tasks.DT)
        d.qpos[3:7] = quat
        if self.shift.terrain == "rough":
            d.qpos[2] += self._ground(d.qpos[:2]) + 0.02
        # Playground starts with the motors commanded to the initial joint angles
        d.ctrl[:] = d.qpos[7:]
        mujoco.mj_forward(self.model, d)

    def _ground(self, xy: np.ndarray) -> float:
        """Highest point of the height field within 0.3 m of `xy`."""
        m = self.model
        n, half, top = int(m.hfield_nrow[0]), m.hfield_size[0, 0], m.hfield_size[0, 2]
        cells = m.hfield_data.reshape(n, n)
        c, r = ((xy + half) / (2 * half) * (n - 1)).astype(int)
        k = max(1, int(0.3 / (2 * half) * n))
        return float(cells[max(r - k, 0) : r + k + 1, max(c - k, 0) : c + k + 1].max() * top)

    def _read(self, i: int) -> None:
        d, p = self.data[i], self.physics
        p.qpos[i], p.qvel[i], p.sensors[i] = d.qpos, d.qvel, d.sensordata
        p.imu_z[i] = d.site_xmat[self.imu, 6:9]
        p.feet_z[i] = d.site_xpos[self.task.feet_site, 2]
        p.force[i] = d.actuator_force

    def _reschedule(self, ticks: np.ndarray) -> None:
        """The model of a scheduled shift at the latest of these ticks (all robots share one model)."""
        if isinstance(self.shift, shifts.Scheduled) and ticks.size:
            fraction = self.shift.fraction(int(ticks.max()))
            if fraction != self._fraction:
                self.model = self.shift.apply(self.nominal, int(ticks.max()), into=self.model)
                self._fraction = fraction

    def _observe(self, mask: np.ndarray) -> np.ndarray:
        """Clean observation, then noise, then the shift's sensors; robots outside `mask` keep their last one."""
        for i in np.flatnonzero(mask & (self.tick % NOISE_BLOCK == 0)).tolist():
            self._noise[i] = self._rngs[i]["noise"].uniform(-1, 1, self._noise.shape[1:])
        clean = self.task.sense(self.physics, self.memory)
        unit = self._noise[np.arange(self.n), self.tick % NOISE_BLOCK]
        seen = self.observer.observe(clean, unit * self.noise * self.task.noise_scale, self.tick, mask)
        self._last = np.where(mask[:, None], seen.astype(np.float32), self._last)
        return self._last

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One control tick of every robot that is alive; the others stay where they are, earn 0 and repeat their
        observation.

        Returns:
            observation (n, d), reward (n,), terminated (n,), truncated (n,), info with `terms` (weighted, per term
            (n,)), `fallen`,
            `diverged` and `active` (the robots that were stepped). The observation of a finished robot is its
            terminal one.
        """
        action = np.asarray(action, float)
        if action.shape != (self.n, self.task.nu):
            raise ValueError(f"action: expected shape {(self.n, self.task.nu)}, got {action.shape}")
        if not np.isfinite(action[self.alive]).all():
            raise ValueError("action: expected finite numbers, got NaN or infinity")
        action = np.clip(action, -1.0, 1.0)
        active = self.alive.copy()
        self._reschedule(self.tick[active])
        targets = self.task.default + self.task.action_scale * action
        diverged = np.zeros(self.n, bool)
        for i in np.flatnonzero(active).tolist():
            d = self.data[i]
            if self.disturbance is not None and self.tick[i] >= self._next_push[i]:
                self._push(i, d)
            d.ctrl[:] = targets[i]
            mujoco.mj_step(self.model, d, self.substeps)
            diverged[i] = any(d.warning[w].number > 0 for w in BLOW_UPS) or not np.isfinite(d.qpos).all()
            if not diverged[i]:
                self._read(i)
        p, memory, task = self.physics, self.memory, self.task
        contact = task.contact(p)
        terms = {k: task.weights[k] * v for k, v in task.terms(p, action, memory, contact).items()}
        fallen = task.fallen(p) & active & ~diverged
        reward = np.asarray(sum(terms.values())) * tasks.DT
        if task.clip_reward:
            reward = np.clip(reward, 0.0, 1e4)
        reward = np.where(active & ~diverged, reward, 0.0)
        # the order of Playground's tick: peaks and air time are updated before, actions and commands after the observation
        memory["swing_peak"] = np.maximum(memory["swing_peak"], p.feet_z)
        memory["air_time"] = memory["air_time"] + tasks.DT
        self.tick = self.tick + active
        obs = self._observe(active)
        rows = np.flatnonzero(active)
        memory["last_act"][rows] = action[rows]
        for i in rows.tolist():
            task.advance(memory, i, self._rngs[i]["command"])
        memory["air_time"] *= ~contact
        memory["swing_peak"] *= ~contact
        memory["last_contact"] = contact
        truncated = active & ~fallen & ((self.tick >= self.episode_length) | diverged)
        self.alive = active & ~fallen & ~truncated
        return (
            obs,
            reward,
            fallen,
            truncated,
            {"terms": terms, "fallen": fallen, "diverged": diverged, "active": active},
        )

    def _push(self, i: int, d: mujoco.MjData) -> None:
        assert self.disturbance is not None
        rng, extra = self._rngs[i]["push"], self.disturbance
        speed, angle = rng.uniform(0, extra.push_speed), rng.uniform(0, 2 * np.pi)
        d.qvel[:2] += speed * np.array([np.cos(angle), np.sin(angle)])
        d.qvel[3:6] += rng.uniform(-1, 1, 3) * speed / 1.5
        self._next_push[i] = self.tick[i] + round(rng.uniform(*extra.push_interval) / tasks.DT)


class JoystickEnv(gymnasium.Env):
    """One robot as a gymnasium environment: `observation` (d,), `action` (nu,) in [-1, 1]; see `Runtime`."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 50}

    def __init__(
        self,
        robot: str,
        shift: shifts.Shift | None = None,
        seed: int = 0,
        render_mode: str | None = None,
        **options: Any,
    ):
        if render_mode is not None:
            check_choice(render_mode, "render_mode", self.metadata["render_modes"])
            if options.get("meshes", "strip") == "strip" and robot != "go2":
                warnings.warn(
                    "render_mode: visual meshes are stripped, collision shapes are drawn; for meshes pass "
                    "meshes='path of a checkout of google-deepmind/mujoco_menagerie'",
                    stacklevel=2,
                )
        self.runtime = Runtime(robot, [seed], shift=shift, **options)
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.runtime.obs_size,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self.runtime.action_size,), np.float32)
        self._renderer: mujoco.Renderer | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """See the base class."""
        super().reset(seed=seed)
        if seed is not None:
            self.runtime.seeds, self.runtime.episode = [int(seed)], [-1]
        return self.runtime.reset()[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One tick; see `Runtime.step`."""
        if not self.runtime.alive[0]:
            raise RuntimeError("the episode is over: call reset() before step()")
        action = check_array(action, "action", shape=(self.runtime.action_size,), finite=True)
        obs, reward, terminated, truncated, info = self.runtime.step(action[None])
        flat = {"terms": {k: float(v[0]) for k, v in info["terms"].items()}, "fallen": bool(info["fallen"][0])}
        return (
            obs[0],
            float(reward[0]),
            bool(terminated[0]),
            bool(truncated[0]),
            flat | {"diverged": bool(info["diverged"][0])},
        )

    def render(self) -> np.ndarray:
        """An RGB picture; collision shapes where meshes are stripped.

        Raises:
            RuntimeError: there is no OpenGL context.
        """
        if self._renderer is None:
            try:
                self._renderer = mujoco.Renderer(self.runtime.model, 240, 320)
            except (mujoco.FatalError, ImportError) as error:
                raise RuntimeError(
                    "render: no OpenGL context; set the environment variable MUJOCO_GL to egl (GPU) or osmesa (CPU) "
                    f"before Python starts ({error})"
                ) from error
        camera = "track" if self.runtime.robot != "g1" else -1
        option = mujoco.MjvOption()
        option.geomgroup[3] = 1
        self._renderer.update_scene(self.runtime.data[0], camera, option)
        return self._renderer.render()

    def close(self) -> None:
        """Frees the renderer."""
        if self._renderer is not None:
            self._renderer.close()


def make(
    name: str,
    shift: shifts.Shift | None = None,
    backend: str = "mujoco",
    num_envs: int = 1,
    seed: int = 0,
    **options: Any,
) -> Any:
    """An environment by Playground's name, e.g. "Go1JoystickFlatTerrain".

    Args:
        name: Go1, Go2 or G1, then JoystickFlatTerrain or JoystickRoughTerrain: rough ground of 0.05 m beside `shift`,
            unless that has a rough ground of its own.
        shift: a condition from `shifts` (backend "mujoco" only).
        backend: "mujoco" (C, `JoystickEnv`, or `Runtime` for num_envs > 1), "envpool" (vectorised C++, Go1 and G1),
            or "mjx" (Playground's own environment, a functional one for a GPU; Go1 and G1).
    """
    check_choice(backend, "backend", ("mujoco", "envpool", "mjx"))
    names = {f"{r.capitalize()}Joystick{t}Terrain": (r, t.lower()) for r in assets.ROBOTS for t in ("Flat", "Rough")}
    robot, terrain = names[check_choice(name, "name", names)]
    if backend == "mujoco":
        if shift is not None:
            shifts.check_shift(shift, "shift")
        if terrain == "rough":
            shift = _on_rough_ground(shift)
        if check_int(num_envs, "num_envs", minimum=1) == 1:
            return JoystickEnv(robot, shift=shift, seed=seed, **options)
        return Runtime(robot, range(seed, seed + num_envs), shift=shift, **options)
    if shift is not None:
        raise ValueError(f"shift: only the backend 'mujoco' runs shifts, got backend {backend!r}")
    if robot == "go2":
        raise ValueError(f"backend: Go2 runs on 'mujoco' only, got {backend!r}")
    if backend == "envpool":
        from .ppo import envpool_envs

        return envpool_envs(name, num_envs, options.pop("num_threads", 1), seed, **options)
    return _make_mjx(name, **options)


def _on_rough_ground(shift: shifts.Shift | None) -> shifts.Shift:
    """`shift` on Playground's rough ground, unless it brings its own."""
    ground = shifts.RoughTerrain(0.05)
    if shift is None or isinstance(shift, shifts.Nominal):
        return ground
    if shift.terrain == "rough":
        return shift
    if isinstance(shift, shifts.Scheduled):
        raise ValueError(
            "shift: expected a schedule that has the rough ground in it, Scheduled(Combined((RoughTerrain(...), ...))); "
            "on flat ground any schedule runs"
        )
    return shifts.Combined((ground, *(shift.parts if isinstance(shift, shifts.Combined) else (shift,))))


def _make_mjx(name: str, impl: str = "auto", **overrides: Any) -> Any:
    """Playground's environment; `impl` "auto" is "warp" where CUDA is, else "jax"."""
    import warnings

    import jax
    from mujoco_playground import registry

    cuda = any(d.platform == "gpu" for d in jax.devices())
    if impl == "warp" and not cuda:
        warnings.warn("impl='warp' needs CUDA: using impl='jax'", RuntimeWarning, stacklevel=3)
        impl = "jax"
    if impl == "auto":
        impl = "warp" if cuda else "jax"
    with assets.offline_playground():
        return registry.load(name, config_overrides={"impl": impl, **overrides})
