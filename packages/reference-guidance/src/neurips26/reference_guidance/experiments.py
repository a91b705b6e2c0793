"""The measurements behind the claims, one function an experiment; each is a pure function of its seed."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.bridge import LinearBridge
from neurips26.reference_guidance.guidance import ReferenceMeanGuidance
from neurips26.reference_guidance.metrics import AttributeClassifier, copy_distance, frechet_distance, kernel_distance
from neurips26.reference_guidance.posterior import reference_mean, squared_norms
from neurips26.reference_guidance.spg import SPG, DiTMean, SPGConfig, euler_sample
from neurips26.reference_guidance.spg_train import SPGTrainer, TrainConfig
from neurips26.reference_guidance.steering import SparseLabelSteering
from neurips26.reference_guidance.toys import (
    Split,
    VectorFlow,
    digits,
    faces,
    moons,
    photographs,
    sample_flow,
    split,
    train_flow,
)
from neurips26.shared import seeding

__all__ = ["digit_composition", "digit_control", "exactness", "face_control", "identity_control", "moons_composition"]
__all__ += ["reference_mean", "released_and_true_time", "sparse_labels", "spg_quality", "squared_norms", "tuning_score"]

#: References in a bank and references kept at each step (the authors' M and k).
BANK, TOPK = 20, 4
#: Strength curves reported for every control claim: schedule, strength, metric.
CURVE = [
    ("quadratic", 0.5, "mean"), ("quadratic", 1.0, "mean"), ("quadratic", 2.0, "mean"), ("bell", 0.5, "mean"),
    ("bell", 1.0, "mean"), ("constant", 0.5, "mean"), ("quadratic", 2.0, "sum"),
]  # fmt: skip


def _noise(n: int, shape: tuple[int, ...], seed: int, *names: object) -> Tensor:
    return torch.from_numpy(seeding.rng(seed, "noise", *names).standard_normal((n, *shape)).astype(np.float32))


def _pick(index: Tensor, n: int, seed: int, *names: object) -> Tensor:
    return index[torch.from_numpy(seeding.rng(seed, "bank", *names).permutation(len(index))[:n])]


def setting(schedule: str, strength: float, metric: str) -> str:
    """Name of a point of the curve."""
    return f"{schedule} {strength:g}" + (" (sum)" if metric == "sum" else "")


def control(
    flow: VectorFlow, bank: ReferenceBank, judge: AttributeClassifier, target: int, noise: Tensor, seed: int,
    prompt: int | None = None, curve: list[tuple[str, float, str]] | None = None,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Rate of the attribute and copy distance: unguided, over the strength curve, and for the rivals."""

    def plain(x: Tensor, t: Tensor) -> Tensor:
        return flow(x, t)

    def guided(**how: Any) -> Tensor:
        return sample_flow(plain, noise, ReferenceMeanGuidance(bank, **{"topk": TOPK, "window": (0.0, 1.0)} | how))

    found = {"unguided": sample_flow(plain, noise)}
    for schedule, strength, metric in curve or CURVE:
        found[setting(schedule, strength, metric)] = guided(strength=strength, schedule=schedule, metric=metric)
    # averaging latents: the plain mean of the bank in place of the posterior mean
    found["latent average"] = guided(strength=2.0, schedule="quadratic", temperature=1e12, topk=None)
    rng = seeding.rng(seed, "rivals")
    copies = bank.latents[torch.from_numpy(rng.integers(len(bank), size=len(noise)))]
    found["copy of a reference"] = copies
    sigma = 0.7  # SDEdit: a reference noised to this level, then denoised (steps 6 to 20 of 20)
    found["SDEdit"] = sample_flow(plain, (1 - sigma) * copies + sigma * noise, start=6)

    def classified(x: Tensor, t: Tensor) -> Tensor:
        # guidance by the gradient of a linear probe at the endpoint mean, scaled to the size of the noise level
        v, s = flow(x, t), (1 - t).reshape(-1, *[1] * (x.ndim - 1))
        grad = judge.gradient(x - s * v, target)
        return v - s * grad * (4.0 / judge_scale)

    judge_scale = float(np.abs(judge.model.coef_).mean() * np.sqrt(judge.model.coef_.shape[1]))
    found["classifier guidance"] = sample_flow(classified, noise)
    if prompt is not None:
        said = torch.full((len(noise),), prompt)
        found["prompt"] = sample_flow(lambda x, t: flow(x, t, said), noise)
    return {k: {"rate": judge.rate(x, target), "copy": copy_distance(x, bank)} for k, x in found.items()}


# Two moons ----------------------------------------------------------------------------------------------------------
def moons_composition(seed: int, n: int = 256) -> dict[str, float]:
    """Share of samples on moon 1 of the closed-form flow, by the share of moon 1 in the bank."""
    data = moons(1000, seed)
    judge = _nearest(data)
    noise, out = _noise(n, (2,), seed), {}
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        ones = round(40 * share)
        index = torch.cat([_pick(data.where(moon=1), ones, seed), _pick(data.where(moon=0), 40 - ones, seed)])
        refs = data.images[index]
        x = euler_sample(lambda x, t, refs=refs: reference_mean(x, refs, float(t[0]))[0], noise, 30)
        out[f"{share:g}"] = float((judge(x) == 1).double().mean())
    return out


def _nearest(data: Split) -> Any:
    label = data.labels["moon"]
    return lambda x: label[torch.cdist(x, data.images).argmin(1)]


def sparse_labels(seed: int, source: str = "moons", trials: int = 1, n: int = 64) -> dict[str, dict[str, float]]:
    """Accuracy of class-conditional samples from M labelled points a class; no network.

    Args:
        seed: of points, labels and noise.
        source: ``"moons"`` (1,000 points) or ``"digits"`` (the zeros and ones of scikit-learn's digits).
        trials: draws of the labelled points.
        n: samples a class.

    Returns:
        by M: accuracy unconditionally ("none"), with soft labels, and with the true labels of all ("hard").
    """
    out: dict[str, dict[str, float]] = {}
    for m in (1, 2, 5, 10, 20, 50):
        rates: dict[str, list[float]] = {"none": [], "soft": [], "hard": []}
        for trial in range(trials):
            points, label = _two_classes(source, seed * 10 + trial)
            chosen = torch.cat([_pick((label == c).nonzero().flatten(), m, seed, trial, c) for c in (0, 1)])
            rest = torch.ones(len(points), dtype=torch.bool)
            rest[chosen] = False
            for rule in rates:
                known = torch.ones_like(rest).nonzero().flatten() if rule == "hard" else chosen
                steering = SparseLabelSteering(points[rest], points[known], label[known], rule)
                for c in (0, 1):
                    x = steering.sample(_noise(n, tuple(points.shape[1:]), seed, trial, c), c)
                    seen = label[torch.cdist(x, points).argmin(1)]
                    rates[rule].append(float((seen == c).double().mean()))
        out[str(m)] = {k: float(np.mean(v)) for k, v in rates.items()}
    return out


def _two_classes(source: str, seed: int) -> tuple[Tensor, Tensor]:
    if source == "moons":
        data = moons(1000, seed)
        return data.images, data.labels["moon"]
    data = digits()
    both = data.take((data.labels["digit"] < 2).nonzero().flatten())
    return both.images.flatten(1), both.labels["digit"]


# Exactness ----------------------------------------------------------------------------------------------------------
def exactness(seed: int) -> dict[str, float]:
    """Guiding the empirical flow of A towards B with beta 1 is the flow of B; guiding it towards A changes nothing."""
    data = digits().images.double()
    a, b = data[_pick(torch.arange(len(data)), 60, seed, "a")], data[_pick(torch.arange(len(data)), 60, seed, "b")]
    x = own = _noise(16, (1, 8, 8), seed).double()
    bridge, drift, idle, grid = LinearBridge(), 0.0, 0.0, np.linspace(0.0, 0.999, 31)
    for t, after in itertools.pairwise(grid):
        mu_a, mu_b = (reference_mean(x, refs, float(t))[0] for refs in (a, b))
        u = bridge.velocity_from_mean(mu_a, x, float(t))
        guided = u + 1.0 * (mu_b - bridge.mean_from_velocity(u, x, float(t))) / (1 - t)
        own = own + (after - t) * bridge.velocity_from_mean(reference_mean(own, b, float(t))[0], own, float(t))
        idle = max(idle, float((mu_a - bridge.mean_from_velocity(u, x, float(t))).abs().max()))
        x = x + (after - t) * guided
        drift = max(drift, float((x - own).abs().max()))
    return {"drift": drift, "idle": idle}


# Digits -------------------------------------------------------------------------------------------------------------
@cache
def digit_judge() -> AttributeClassifier:
    """Which digit an image shows."""
    train, test = split(digits(), 0.3, 4)
    return AttributeClassifier((train.images, train.labels["digit"]), (test.images, test.labels["digit"]))


@cache
def digit_flow(seed: int, steps: int = 160) -> VectorFlow:
    """A flow over the training digits."""
    train, _ = split(digits(), 0.3, 4)
    return train_flow(train.images, steps, seed, 384, prompts=train.labels["digit"][:, None] + 1)


def digit_control(seed: int, flow_seed: int, per_class: int = 16, steps: int = 200) -> dict[str, Any]:
    """Control of the digit by banks of 20 test digits, averaged over the ten classes."""
    flow, judge, (_, test) = digit_flow(flow_seed, steps), digit_judge(), split(digits(), 0.3, 4)
    rows = []
    for c in range(10):
        pool = test.where(digit=c)
        bank = ReferenceBank.from_latents(test.images[_pick(pool, BANK, seed, c)])
        rows.append(control(flow, bank, judge, c, _noise(per_class, (1, 8, 8), seed, c), seed + c, c + 1))
    out: dict[str, Any] = {k: {m: float(np.mean([r[k][m] for r in rows])) for m in ("rate", "copy")} for k in rows[0]}
    out["held out"] = {"rate": judge.accuracy, "copy": _held_out(test, seed)}
    return out


def _held_out(test: Split, seed: int) -> float:
    """Distance of real test digits of a class, not in the bank, to the bank."""
    values = []
    for c in range(10):
        pool = test.where(digit=c)
        inside = _pick(pool, BANK, seed, c)
        outside = pool[~torch.isin(pool, inside)]
        values.append(copy_distance(test.images[outside], ReferenceBank.from_latents(test.images[inside])))
    return float(np.mean(values))


def digit_composition(seed: int, flow_seed: int, steps: int = 200, n: int = 120) -> dict[str, dict[str, float]]:
    """Share of ones among zeros and ones, by the share of ones in a bank of 20; both metrics."""
    flow, judge, (_, test) = digit_flow(flow_seed, steps), digit_judge(), split(digits(), 0.3, 4)
    zero, one = (ReferenceBank.from_latents(test.images[_pick(test.where(digit=c), BANK, seed, c)]) for c in (0, 1))
    noise = _noise(n, (1, 8, 8), seed, "composition")
    out: dict[str, dict[str, float]] = {}
    for metric, k in (("sum", TOPK), ("mean", BANK)):
        out[metric] = {}
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            g = ReferenceMeanGuidance(zero.mix(one, share), 2.0, "quadratic", (0.0, 1.0), k, metric)
            seen = judge.predict(sample_flow(flow, noise, g))
            ones, zeros = int((seen == 1).sum()), int((seen == 0).sum())
            out[metric][f"{share:g}"] = ones / max(1, ones + zeros)
    return out


def released_and_true_time(
    seed: int, flow_seed: int, steps: int = 200, n: int = 24, shift: float = 3.0
) -> dict[str, dict[str, float]]:
    """The authors' pink-elephant setting (strength 0.5 quadratic, window .15-.95) on digits under a shifted schedule."""
    flow, judge, (_, test) = digit_flow(flow_seed, steps), digit_judge(), split(digits(), 0.3, 4)
    modes = {"true time": ("in_step", "sigma"), "step fraction": ("in_step", "step_fraction")}
    modes |= {"released": ("released", "step_fraction"), "released first": ("released_first", "step_fraction")}
    found: dict[str, dict[str, list[float]]] = {k: {"rate": [], "copy": []} for k in ["unguided", *modes]}
    for c in range(10):
        bank = ReferenceBank.from_latents(test.images[_pick(test.where(digit=c), BANK, seed, c)])
        noise = _noise(n, (1, 8, 8), seed, "released", c)
        for name in found:
            g = None
            if name != "unguided":
                mode, time = modes[name]
                g = ReferenceMeanGuidance(bank, 0.5, "quadratic", (0.15, 0.95), TOPK, time=time, mode=mode)
            x = sample_flow(flow, noise, g, shift=shift)
            found[name]["rate"].append(judge.rate(x, c))
            found[name]["copy"].append(copy_distance(x, bank))
    return {k: {m: float(np.mean(v)) for m, v in row.items()} for k, row in found.items()}


# Faces --------------------------------------------------------------------------------------------------------------
@cache
def _mixed(path: Path) -> tuple[Split, Split, dict[str, AttributeClassifier]]:
    """Faces with attributes: training people, the last ten people for banks, and the judges."""
    grey = photographs(path)
    every = faces(grey)
    known = every.labels["person"] < 30
    train, bank = every.take(known.nonzero().flatten()), every.take((~known).nonzero().flatten())
    some, other = (_pick(torch.arange(len(train)), 1500, s, "judge") for s in (1, 2))
    judges = {}
    for name in ("tint", "style", "layout"):
        y = train.labels[name]
        judges[name] = AttributeClassifier((train.images[some], y[some]), (train.images[other], y[other]))
    # identity among ten people of the banks, judged across tints, styles and layouts
    half = torch.arange(len(bank)) % 2 == 0
    y = bank.labels["person"]
    judges["person"] = AttributeClassifier((bank.images[half], y[half]), (bank.images[~half], y[~half]))
    return train, bank, judges


@cache
def mixed_flow(path: Path, seed: int, steps: int = 160) -> VectorFlow:
    """A flow over coloured, styled, placed faces of 30 people."""
    train, _, _ = _mixed(path)
    prompts = torch.stack([train.labels["tint"] + 1, train.labels["style"] + 4, train.labels["layout"] + 7], 1)
    return train_flow(train.images, steps, seed, 512, prompts=prompts)


def face_control(path: Path, seed: int, n: int = 80) -> dict[str, Any]:
    """Colour (red), style (sketch), structure (left half) and identity by banks of 20 that mix all other attributes."""
    train, pool, judges = _mixed(path)
    flow, shape = mixed_flow(path, seed), tuple(train.images.shape[1:])
    out: dict[str, Any] = {}
    for name, target, prompt in (("tint", 0, 1), ("style", 1, 5), ("layout", 1, 8), ("person", 35, None)):
        inside = _pick(pool.where(**{name: target}), BANK, seed, name)
        bank = ReferenceBank.from_latents(pool.images[inside])
        out[name] = control(flow, bank, judges[name], target, _noise(n, shape, seed, name), seed, prompt)
        rest = pool.where(**{name: target})
        rest = _pick(rest[~torch.isin(rest, inside)], 80, seed, name, "rest")
        real = pool.images[rest]
        out[name]["held out"] = {"rate": judges[name].accuracy, "copy": copy_distance(real, bank)}
    return out


@cache
def _people(path: Path) -> tuple[Split, Split, AttributeClassifier]:
    """Plain grey faces: seven photographs a person to train on, three unseen ones."""
    grey = photographs(path)
    order = torch.arange(len(grey)) % 10
    train, unseen = grey.take((order < 7).nonzero().flatten()), grey.take((order >= 7).nonzero().flatten())
    judge = AttributeClassifier(
        (train.images, train.labels["person"]), (unseen.images, unseen.labels["person"]), strength=1.0
    )
    return train, unseen, judge


def identity_control(path: Path, seed: int, people: int = 6, n: int = 16) -> dict[str, Any]:
    """Identity on plain faces by the three photographs of a person that the flow never saw."""
    train, unseen, judge = _people(path)
    flow, shape = train_flow(train.images, 130, seed, 512), tuple(train.images.shape[1:])
    rows, real = [], []
    for p in seeding.rng(seed, "people").permutation(40)[:people].tolist():
        bank = ReferenceBank.from_latents(unseen.images[unseen.where(person=p)])
        rows.append(control(flow, bank, judge, p, _noise(n, shape, seed, p), seed + p))
        real.append(copy_distance(train.images[train.where(person=p)], bank))
    out: dict[str, Any] = {k: {m: float(np.mean([r[k][m] for r in rows])) for m in ("rate", "copy")} for k in rows[0]}
    out["held out"] = {"rate": judge.accuracy, "copy": float(np.mean(real))}
    return out


# Semi-parametric generator -------------------------------------------------------------------------------------------
#: 8x8 digits in 2x2 patches; the baseline has one block more and no set.
SMALL = SPGConfig(1, 8, 8, 2, 64, 2, 4, 4, 64)
SPG_STEPS, SPG_RATES = 200, (1e-3, 3e-3)
#: The better of the two for each model on the tuning seed (grid "spg-rate").
SPG_CHOSEN = (("SPG", 1e-3), ("DiT", 3e-3))


def train_small(kind: str, rate: float, seed: int, steps: int = SPG_STEPS) -> SPG | DiTMean:
    """One model of either kind on the training digits; sets of 96 random references."""
    train, _ = split(digits(), 0.3, 4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SPG.from_sizes(SMALL) if kind == "SPG" else DiTMean.of_equal_budget(SMALL)
    config = TrainConfig(steps, 64, 96, rate, ema=0.99, seed=seed)
    return SPGTrainer(model, train.images, config).train().averaged()  # type: ignore[return-value]


def spg_samples(model: SPG | DiTMean, noise: Tensor, references: Tensor | None, retrieved_only: bool = False) -> Tensor:
    """Samples of either model, 20 Euler steps; ``retrieved_only`` leaves gate and refiner out (kNN flow)."""
    if isinstance(model, DiTMean):
        return euler_sample(model, noise)
    assert references is not None
    with torch.no_grad():
        bank = model.anchor.cache(references)
    if retrieved_only:
        return euler_sample(lambda x, t: model(x, t, bank).retrieved, noise)
    return euler_sample(lambda x, t: model(x, t, bank).mean, noise)


def tuning_score(kind: str, rate: float, seed: int, n: int = 400) -> float:
    """Frechet distance of one model at one learning rate."""
    train, _ = split(digits(), 0.3, 4)
    refs = train.images[_pick(torch.arange(len(train)), 256, seed)]
    return frechet_distance(train.images, spg_samples(train_small(kind, rate, seed), _noise(n, (1, 8, 8), seed), refs))


def spg_quality(seed: int, rates: tuple[tuple[str, float], ...], n: int = 600) -> dict[str, Any]:
    """Distances of both models to the training digits, and what a one-class set does to an SPG."""
    train, test = split(digits(), 0.3, 4)
    noise, judge = _noise(n, (1, 8, 8), seed, "spg"), digit_judge()
    models = {kind: train_small(kind, rate, seed) for kind, rate in rates}
    refs = train.images[_pick(torch.arange(len(train)), 256, seed)]
    found = {kind: spg_samples(m, noise, refs) for kind, m in models.items()}
    found["retrieved mean only"] = spg_samples(models["SPG"], noise, refs, retrieved_only=True)
    found["real held out"] = test.images
    out: dict[str, Any] = {
        k: {"frechet": frechet_distance(train.images, x), "kernel": kernel_distance(train.images, x)}
        for k, x in found.items()
    }
    swap, mixed, copies = [], [], []
    for c in range(10):
        bank = ReferenceBank.from_latents(test.images[test.where(digit=c)])
        x = spg_samples(models["SPG"], noise[c * 40 : (c + 1) * 40], bank.latents)
        swap.append(judge.rate(x, c))
        mixed.append(judge.rate(found["SPG"], c))
        copies.append(copy_distance(x, bank))
    out["swap"] = {"rate": float(np.mean(swap)), "mixed": float(np.mean(mixed)), "copy": float(np.mean(copies))}
    out["swap"]["real copy"] = _held_out(test, seed)
    gate = models["SPG"].blend
    with torch.no_grad():
        out["gate"] = [] if gate is None else gate(torch.tensor([0.1, 0.5, 0.9])).flatten().tolist()
    return out
