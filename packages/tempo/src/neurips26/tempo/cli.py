"""`neurips26 tempo eval | diagnose | adapt | pretrain | bench | shifts | assets | adopt`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro

from neurips26.shared.arrays import check_choice, check_int

from . import assets, checkpoint, shifts
from .evaluate import TABLE

__all__ = ["main"]

Robot = Literal["go1", "go2", "g1"]


def _policy(robot: str, name: str = "") -> checkpoint.Checkpoint:
    """The named checkpoint, else the one shipped for the robot, else random weights, which is said."""
    if name and name not in checkpoint.available() and not Path(name).is_file():
        known = ", ".join(checkpoint.available())
        raise ValueError(f"checkpoint: expected a file, or one of {known}, got {name!r}")
    if name or f"{robot}-joystick" in checkpoint.available():
        ckpt = checkpoint.load(name or f"{robot}-joystick")
        if ckpt.meta.robot != robot:
            raise ValueError(f"checkpoint: expected one of {robot}, got {name!r}, which is of {ckpt.meta.robot}")
        return ckpt
    print(f"no checkpoint of {robot} comes with the package: random weights, which stand or fall and show that it runs")
    return checkpoint.untrained(robot)


@dataclass
class Eval:
    """Compare the frozen policy with adapted ones, paired by seed, and print the table."""

    robot: Robot = "go1"
    shift: tuple[str, ...] = ("nominal", *shifts.SHIFTS)
    """nominal, terrain, friction, payload, sensing, calf"""
    severity: int = 3
    methods: tuple[str, ...] = TABLE
    robots: int = 16
    ticks: int = 250
    episodes: int = 3
    """an episode ends with a fall; what was learned is kept for the next"""
    checkpoint: str = ""
    """name or file; by default the one shipped for the robot"""

    def run(self) -> int:
        """Prints the table."""
        from .evaluate import HEAD, Table, evaluate, line

        check_int(self.robots, "robots", minimum=1)
        check_int(self.severity, "severity", minimum=1, maximum=3)
        ckpt = _policy(self.robot, self.checkpoint)
        names = tuple(dict.fromkeys(("nominal", *self.shift)))  # the nominal condition is always beside a shift
        for name in names:  # a bad one is named before the first is run
            shifts.of_severity(self.robot, name, self.severity)
        print(f"{self.robot}, severity {self.severity}, {self.robots} robots x {self.episodes} x {self.ticks} ticks")
        print(f"checkpoint: {ckpt.meta.status}")
        if ckpt.meta.status != "walks; gates passed":
            print(
                "This policy does not pass its gates: differences below are training continued, not evidence for adaptation."
            )
        print(HEAD, "-" * len(HEAD), sep="\n", flush=True)
        table = evaluate(
            ckpt,
            names,
            self.methods,
            range(self.robots),
            self.severity,
            ticks=self.ticks,
            episodes=self.episodes,
            on_row=lambda row: print(line(row), flush=True),
        )
        halves = {n: Table([r for r in table.rows if r["shift"] == n]).resolution() for n in names}
        if self.robots == 1:
            print("One robot cannot tell any gain from chance.")
        elif not any(map(np.isnan, halves.values())):
            unclear = ", ".join(f"{n} {half:.0f} %" for n, half in halves.items())
            print(f"Gains that {self.robots} robots cannot tell from chance, about: {unclear}")
        return 0


@dataclass
class Diagnose:
    """Say why following the critic helps under a shift or not: is it right there, and does it prefer better actors?"""

    robot: Robot = "go1"
    shift: tuple[str, ...] = ("nominal", *shifts.SHIFTS)
    severity: int = 3
    robots: int = 24
    ticks: int = 500
    checkpoint: str = ""
    """name or file; by default the one shipped for the robot"""
    actors: bool = False
    """print every changed actor's value and return, too"""

    def run(self) -> int:
        """Prints a line a condition."""
        from .diagnose import diagnose

        check_int(self.severity, "severity", minimum=1, maximum=3)
        check_int(self.robots, "robots", minimum=6)
        ckpt = _policy(self.robot, self.checkpoint)
        print(f"{self.robot}, severity {self.severity}, {self.robots} robots x {self.ticks} ticks; {ckpt.meta.status}")
        head = "condition     correlation  bias %  Q can rise %  rank  critic's choice %  best of others' choice %"
        print(head, flush=True)
        for name in self.shift:
            r = diagnose(ckpt, name, range(self.robots), self.severity, ticks=self.ticks)
            print(
                f"{name:12s} {r['pearson']:12.2f} {100 * r['bias']:7.0f} {100 * r['rise']:13.1f} "
                f"{np.mean(r['rank']):5.2f} {r['climb']:18.1f} {r['best']:25.1f}",
                flush=True,
            )
            if self.actors:
                for actor, value, earned in zip(r["actors"], r["value"].mean(0), r["returns"].mean(0), strict=True):
                    print(f"    {actor:16s} critic {value:6.3f}  return {earned:6.2f}")
        return 0


@dataclass
class Adapt:
    """Run one robot with the deployment adapter and print what happens; --save keeps the adapted state, --restore goes on
    from it."""

    robot: Robot = "go1"
    shift: str = "payload"
    severity: int = 3
    method: str = "tempo"
    ticks: int = 500
    seed: int = 0
    save: Path | None = None
    restore: Path | None = None
    """a file of --save, of the same robot and method"""
    gif: Path | None = None
    """frozen and adapted side by side, drawn from the kinematics (.gif, or .png for an animated PNG)"""

    def run(self) -> int:
        """Prints a line a second."""
        from .adapter import TestTimeAdapter
        from .runtime import JoystickEnv

        check_int(self.ticks, "ticks", minimum=1)
        if self.gif is not None and self.gif.suffix not in (".gif", ".png"):
            raise ValueError(f"gif: expected a name ending in .gif or .png, got {self.gif.name!r}")
        for name, file in (("save", self.save), ("gif", self.gif)):
            if file is not None and not file.absolute().parent.is_dir():
                raise ValueError(f"{name}: expected a file in an existing directory, got {str(file)!r}")
            if file is not None and file.is_dir():
                raise ValueError(f"{name}: expected a file, got the directory {str(file)!r}")
        if self.restore is not None and not self.restore.is_file():
            raise ValueError(f"restore: expected a file that --save wrote, got {str(self.restore)!r}")
        ckpt = _policy(self.robot)
        condition = shifts.of_severity(self.robot, self.shift, self.severity)
        adapter = TestTimeAdapter(ckpt, method=self.method, seed=self.seed)
        print("compiling ...", flush=True)
        print(f"compiled in {adapter.warmup():.1f} s; {adapter.memory_bytes() / 1e6:.2f} MB beyond the frozen policy")
        if self.restore is not None:
            adapter.restore(self.restore)
            print(f"goes on from {self.restore}: drift {adapter.drift:.3f}")
        env = JoystickEnv(self.robot, shift=condition, seed=self.seed)
        obs, _ = env.reset()
        total = 0.0
        for t in range(self.ticks):
            action, info = adapter.step(obs)
            obs, reward, down, over, _ = env.step(action)
            total += reward
            if t % 50 == 49 or down:
                now = f"{(t + 1) / 50:5.1f} s  reward {total:7.3f}  Q {info['q']:.3f}  drift {adapter.drift:.3f}"
                print(now + f"  tick {1e3 * info['seconds']:.2f} ms{'  fell' if down else ''}")
            if down or over:
                obs, _ = env.reset()
                adapter.reset()
        if self.save is not None:
            print(f"state in {adapter.save(self.save)}")
        if self.gif is not None:
            from .pictures import animation

            print(f"animation in {animation(ckpt, condition, self.gif, min(self.ticks, 300), seed=self.seed)}")
        return 0


@dataclass
class Pretrain:
    """Train the policy that is adapted: PPO, the distributional critic, the gates.

    A directory that holds a run goes on where it was stopped, under its own settings, up to --steps.
    """

    out: Path = Path("runs/go1")
    env: str = "Go1JoystickFlatTerrain"
    steps: int = 25_000_000
    seed: int = 0
    num_envs: int = 96
    """envpool needs about 55 MB each"""
    backend: Literal["envpool", "mujoco"] = "envpool"
    """mujoco: our own simulators, where commands can change faster and robots can be pushed; the only one for Go2"""
    command_seconds: float = 5.0
    """mean time between two commands (mujoco only)"""
    push_speed: float = 0.0
    """m/s: pushes every 2 to 6 s and tilted starts (mujoco only)"""
    start: Path | None = None
    """the ppo folder of another run to begin with: Go2 from Go1's gait, or a new stage of the same robot"""
    critic_rounds: int = 8
    arch: Literal["mlp", "simba", "simbav2"] = "mlp"
    """PPO trains an MLP; another network is distilled from it and gets a critic of its own kind"""

    def run(self) -> int:
        """Runs all stages and prints where the checkpoint is."""
        from dataclasses import replace

        from .critic import CriticConfig
        from .ppo import PPOConfig, from_json, start_from
        from .pretrain import pretrain

        known = {f"{r.capitalize()}Joystick{t}Terrain" for r in assets.ROBOTS for t in ("Flat", "Rough")}
        check_choice(self.env, "env", sorted(known))
        if self.env.startswith("Go2") and self.backend == "envpool":
            raise ValueError("backend: expected 'mujoco' for Go2, which envpool does not have, got 'envpool'")
        if self.backend == "mujoco" and (self.env.startswith("G1") or "Rough" in self.env):
            raise ValueError(f"backend: our simulators train Go1 and Go2 on flat ground, got 'mujoco' for {self.env}")
        check_int(self.num_envs, "num_envs", minimum=1, maximum=6144)
        check_int(self.steps, "steps", minimum=1)
        check_int(self.critic_rounds, "critic_rounds", minimum=1)
        if self.start is not None and not (self.start / "checkpoint.npz").is_file():
            raise ValueError(
                f"start: expected the ppo folder of a run, with checkpoint.npz in it, got {str(self.start)!r}"
            )
        unroll = max(1, 6144 // self.num_envs)
        robot = self.env.partition("Joystick")[0].lower()
        cfg = PPOConfig(
            env=self.env,
            seed=self.seed,
            total_steps=self.steps,
            num_envs=self.num_envs,
            unroll=unroll,
            mirror_coef=0.0 if robot == "g1" else 0.05,
            backend=self.backend,
            command_seconds=self.command_seconds,
            push_speed=self.push_speed,
        )
        begun = self.out / "ppo" / "config.json"
        if self.start is not None and not begun.exists():
            grown = {"penalty_start": 1.0, "wide_tracking": 0.0, "init_std": 0.15, "std_cap": (0.2, 0.05, 0.95)}
            cfg = replace(cfg, **grown)  # what helps a robot that cannot walk yet is behind it
            start_from(self.start, cfg, self.out / "ppo")
        if begun.exists():
            cfg = replace(from_json(begun.read_text()), total_steps=self.steps)
        print(
            pretrain(
                cfg,
                CriticConfig(robot=robot, seed=self.seed, rounds=self.critic_rounds),
                self.out,
                f"{robot}-joystick" + ("" if self.arch == "mlp" else f"-{self.arch}"),
                self.arch,
            )
        )
        return 0


@dataclass
class Bench:
    """Latency of the adapter and speed of the simulator on this machine."""

    robot: Robot = "go1"
    ticks: int = 1000

    def run(self) -> int:
        """Prints milliseconds, megabytes and ticks per CPU second."""
        import time

        from .latency import latency
        from .runtime import Runtime

        check_int(self.ticks, "ticks", minimum=8)

        world = Runtime(self.robot, [0], episode_length=10**9)
        world.reset()
        zero, start = np.zeros((1, world.action_size)), time.process_time()
        for _ in range(self.ticks):
            if not world.alive.all():
                world.reset()
            world.step(zero)
        print(f"MuJoCo runtime, one robot: {self.ticks / (time.process_time() - start):.0f} ticks per CPU second")
        r = latency(_policy(self.robot), self.ticks, 0)
        for key in ("without", "with"):
            half, most = 1e3 * np.percentile(r[key], [50, 99])
            print(f"tick {key} an update: median {half:.2f} ms, 99th percentile {most:.2f} ms")
        print(
            f"compiled in {r['compile']:.1f} s, {r['recompiled']} recompilations afterwards, {r['bytes'] / 1e6:.2f} MB"
        )
        return 0


@dataclass
class Shifts:
    """List the shifts, their severities and parameters."""

    robot: Robot = "go1"

    def run(self) -> int:
        """Prints one line a shift and severity."""
        for name in shifts.SEVERITIES["humanoid" if self.robot == "g1" else "quadruped"]:
            for severity in (1, 2, 3):
                print(f"{name:9s} {severity}  {shifts.describe(shifts.of_severity(self.robot, name, severity))}")
        return 0


@dataclass
class Assets:
    """Compile every robot on every ground, offline, and say what came out; list the shipped checkpoints."""

    robots: tuple[str, ...] = field(default=assets.ROBOTS)

    def run(self) -> int:
        """Prints a line a model and a line a checkpoint."""
        for robot in self.robots:
            for terrain in assets.TERRAINS:
                model = assets.compile_model(robot, terrain)
                print(f"{robot:4s} {terrain:6s} {model.nu:3d} motors, {model.body_mass.sum():6.2f} kg")
        for name in checkpoint.available():
            ckpt = checkpoint.load(name)
            print(f"{name}: {ckpt.meta.status}")
        return 0


@dataclass
class Adopt:
    """Write the settings that a tune record chose into the package, where the claims read them."""

    record: Path = Path("results/tempo/tune.json")

    def run(self) -> int:
        """Writes `chosen.json`."""
        import json

        from neurips26.shared.runs import atomic_write_text

        if not self.record.is_file():
            raise ValueError(f"record: expected a tune record, got {str(self.record)!r}")
        grids = json.loads(self.record.read_text("utf-8"))["grids"]
        target = Path(__file__).with_name("chosen.json")
        atomic_write_text(target, json.dumps({grid["id"]: grid["chosen"] for grid in grids}, indent=1) + "\n")
        print(f"written: {target}")
        return 0


def main(argv: list[str]) -> int:
    """Entry point of `neurips26 tempo`; a bad argument is one line on stderr and status 2."""
    verbs = (
        Annotated[Eval, tyro.conf.subcommand("eval")]
        | Annotated[Diagnose, tyro.conf.subcommand("diagnose")]
        | Annotated[Adapt, tyro.conf.subcommand("adapt")]
        | Annotated[Pretrain, tyro.conf.subcommand("pretrain")]
        | Annotated[Bench, tyro.conf.subcommand("bench")]
        | Annotated[Shifts, tyro.conf.subcommand("shifts")]
        | Annotated[Assets, tyro.conf.subcommand("assets")]
        | Annotated[Adopt, tyro.conf.subcommand("adopt")]
    )
    try:
        return tyro.cli(verbs, args=argv, prog="neurips26 tempo").run()  # type: ignore[arg-type]
    except (FileNotFoundError, ValueError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
