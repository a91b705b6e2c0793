"""Speed of the adapter and of the simulators, as ratios to a peer in one process and against the control deadline.

``python packages/tempo/benchmarks/speed.py`` (``--full`` runs 10^5 ticks and watches the process's memory). Times are CPU
seconds on one thread, which other programs on the same cores change little. envpool's bar is one for two cores: the clock
counts where its two threads had them, and where others had a part, what the threads' own time would have given.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import sys
import time

import jax
import numpy as np

from neurips26 import tempo
from neurips26.shared import bench
from neurips26.tempo.latency import latency


def torch_tick(ckpt, cfg):
    """One tick with its update in eager PyTorch: the same networks, the same loss, the same memory, the same Adam."""
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(1)
    leaf = lambda x: torch.tensor(np.asarray(x))  # noqa: E731
    actor = [(leaf(p["w"]).requires_grad_(), leaf(p["b"]).requires_grad_()) for p in ckpt.actor]
    critics = [[{k: leaf(v) for k, v in p.items()} for p in c] for c in ckpt.critics]
    theta = [x for pair in actor for x in pair]
    m, v = [torch.zeros_like(x) for x in theta], [torch.zeros_like(x) for x in theta]
    mean, std = leaf(ckpt.mean), leaf(ckpt.std)
    atoms = torch.linspace(ckpt.meta.v_min, ckpt.meta.v_max, ckpt.meta.atoms)
    size = cfg.memory.capacity
    obs_ring, scores = torch.zeros(size, ckpt.obs_size), torch.zeros(size)
    count = 0

    def act(o):
        for w, b in actor[:-1]:
            o = F.silu(o @ w + b)
        return torch.tanh(o @ actor[-1][0] + actor[-1][1])

    def value(o, a):
        q, h = None, 0.0
        for layers in critics:
            x = torch.cat([o, a], -1)
            for p in layers[:-1]:
                x = F.layer_norm(x @ p["w"] + p["b"], (p["scale"].numel(),), p["scale"], p["shift"], 1e-6)
                x = F.silu(x)
            logp = torch.log_softmax(x @ layers[-1]["w"] + layers[-1]["b"], -1)
            one = (logp.exp() * atoms).sum(-1)
            q = one if q is None else torch.minimum(q, one)
            h = h - (logp.exp() * logp).sum(-1) / (len(critics) * np.log(len(atoms)))
        return q, h

    def tick(raw):
        nonlocal count
        o = ((torch.from_numpy(raw) - mean) / std).clamp(-10, 10)
        with torch.no_grad():
            action = act(o)
            score, _ = value(o, action)
        slot = count % size
        obs_ring[slot], scores[slot] = o, score
        count += 1
        n = min(count, size)
        s = scores[:n]
        p = (s.max() - s + 0.02 * (s.max() - s.min()) + 1e-12) ** cfg.memory.alpha
        p = p / p.sum()
        index = torch.multinomial(p, cfg.batch_size, replacement=True)
        w = (n * p[index]) ** -cfg.memory.beta
        w = w / w.max()
        batch = obs_ring[index]
        q, h = value(batch, act(batch))
        loss = -(w * (q / ckpt.meta.q_scale + cfg.entropy_coef * h)).mean()
        grads = torch.autograd.grad(loss, theta)
        norm = torch.sqrt(sum((g**2).sum() for g in grads))
        with torch.no_grad():
            for x, a, c, g in zip(theta, m, v, grads, strict=True):
                g = g * torch.clamp(cfg.max_grad_norm / (norm + 1e-12), max=1.0)
                a.mul_(0.9).add_(g, alpha=0.1)
                c.mul_(0.999).addcmul_(g, g, value=0.001)
                x -= cfg.lr * (a / (1 - 0.9**count)) / (torch.sqrt(c / (1 - 0.999**count)) + 1e-8)
            scores[index] = value(batch, act(batch))[0]
            finite = all(bool(torch.isfinite(x).all()) for x in theta)
        return action.numpy(), finite

    return tick


class Bars:
    """Prints each measurement beside its bar and counts the misses."""

    missed = 0

    def __call__(self, name: str, value: float, limit: float, unit: str = "", least: bool = False) -> None:
        ok = value >= limit if least else value <= limit
        self.missed += not ok
        verdict, sign = "ok  " if ok else "MISS", ">= " if least else ""
        print(f"{verdict} {name}: {value:.4g}{unit} (bar {sign}{limit:g}{unit})", flush=True)


def tick(bar: Bars, ckpt: tempo.Checkpoint) -> None:
    """One control tick with and without an update, against its deadline."""
    got = latency(ckpt, 2000, 0)
    for key, half, most in (("with", 2.0, 10.0), ("without", 0.5, 10.0)):
        ms = 1e3 * np.asarray(got[key])
        bar(f"tick {key} an update, median", float(np.median(ms)), half, " ms")
        bar(f"tick {key} an update, 99th percentile", float(np.percentile(ms, 99)), most, " ms")
    bar("recompilations after warm-up", got["recompiled"], 0)
    bar("compilation", got["compile"], 10.0, " s")
    bar("memory beyond the frozen policy", got["bytes"] / 1e6, 4.0, " MB")


def large_memory(bar: Bars, ckpt: tempo.Checkpoint, obs: np.ndarray) -> None:
    """What a memory of 65,536 entries costs beside one of 512."""
    sizes = {m: tempo.TestTimeAdapter(ckpt, update_every=1, memory=tempo.ScoreMemory(m)) for m in (512, 65_536)}

    def sampled(adapter: tempo.TestTimeAdapter, ticks: int = 40) -> float:
        start = time.process_time()
        for k in range(ticks):
            adapter.step(obs[k % 64])
        return 1e3 * (time.process_time() - start) / ticks

    for adapter in sizes.values():  # compiled, and filled beyond the first batch
        sampled(adapter, 64)
    # turn and turn about: in two blocks, one after the other, a neighbour's work falls into one of them
    extra = [sampled(sizes[65_536]) - sampled(sizes[512]) for _ in range(25)]
    low, half, high = np.percentile(extra, [10, 50, 90])
    print(f"     a memory of 65536 instead of 512, 25 pairs of 40 ticks: {low:.2f} to {high:.2f} ms for eight in ten")
    bar("a memory of 65536 instead of 512 costs, median", float(half), 1.0, " ms a tick")


def beside_torch(bar: Bars, ckpt: tempo.Checkpoint, obs: np.ndarray) -> None:
    """The jitted tick against the same mathematics in eager PyTorch."""
    adapter = tempo.TestTimeAdapter(ckpt, update_every=1, seed=0)
    at = iter(range(10**9))
    ours = lambda: adapter.step(obs[next(at) % 64])  # noqa: E731
    try:
        peer = torch_tick(ckpt, adapter.cfg)
    except ImportError:
        print("     eager PyTorch: not installed")
        return
    for k in range(64):
        ours()
        peer(obs[k])
    theirs = lambda: peer(obs[next(at) % 64])  # noqa: E731
    result = bench.ratio(ours, theirs, repeats=5, min_seconds=0.3, sync=lambda: jax.block_until_ready(adapter.state))
    print(f"     {result}")
    bar("jitted tick / eager PyTorch", result.cpu, 1.0)


def runtime(bar: Bars) -> None:
    """Our MuJoCo runtime, with one robot and with 32."""
    for robots, ticks, least, what in ((1, 4000, 2000, "one robot, ticks"), (32, 150, 4000, "32 robots, steps")):
        world = tempo.Runtime("go1", range(robots), episode_length=10**9)
        world.reset()
        zero, start = np.zeros((robots, 12)), time.process_time()
        for _ in range(ticks):
            world.step(zero)
        rate = robots * ticks / (time.process_time() - start)
        bar(f"MuJoCo runtime, {what} a CPU second", rate, least, least=True)


def envpool(bar: Bars) -> None:
    """envpool with 32 robots on two threads."""
    try:
        envs = tempo.make("Go1JoystickFlatTerrain", backend="envpool", num_envs=32, num_threads=2)
    except ImportError:
        print("     envpool: not installed")
        return
    envs.reset()
    actions = np.random.default_rng(0).uniform(-0.3, 0.3, (16, 32, 12))
    for a in actions:
        envs.step(a)
    wall, start = time.perf_counter(), time.process_time()
    for k in range(400):
        envs.step(actions[k % 16])
    busy, wall = time.process_time() - start, time.perf_counter() - wall
    steps = 32 * 400
    rates = f"{steps / busy:.0f} steps a CPU second, {steps / wall:.0f} a second of wall time"
    print(f"     envpool, 32 robots, two threads: {rates} with {busy / wall:.2f} cores")
    if busy / wall > 1.8:
        bar("envpool, 32 robots, steps a second of wall time", steps / wall, 10_000, least=True)
    else:  # others had part of the two cores: what the threads' own time would have given
        bar("envpool, 32 robots, steps a second of two cores (not measured)", 2 * steps / busy, 10_000, least=True)


def endurance(bar: Bars, ckpt: tempo.Checkpoint, obs: np.ndarray) -> None:
    """The process's memory over 10^5 ticks."""
    import psutil

    adapter = tempo.TestTimeAdapter(ckpt)
    for k in range(5000):
        adapter.step(obs[k % 64])
    before = psutil.Process().memory_info().rss
    for k in range(100_000):
        adapter.step(obs[k % 64])
    bar("growth of the process over 1e5 ticks", (psutil.Process().memory_info().rss - before) / 2**20, 1.0, " MiB")


def main() -> int:
    bar, ckpt = Bars(), tempo.load("go1-joystick")
    noise = np.random.default_rng(0).standard_normal((64, ckpt.obs_size))
    obs = (ckpt.mean + ckpt.std * noise).astype(np.float32)
    tick(bar, ckpt)
    large_memory(bar, ckpt, obs)
    beside_torch(bar, ckpt, obs)
    runtime(bar)
    envpool(bar)
    if "--full" in sys.argv:
        endurance(bar, ckpt, obs)
    return bar.missed > 0


if __name__ == "__main__":
    sys.exit(main())
