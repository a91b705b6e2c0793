"""The measurements behind the claims, one function an experiment; each is a pure function of its seeds."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.bridge import euler_sample
from neurips26.reference_guidance.guidance import ExtrapolationWarning, ReferenceMeanGuidance
from neurips26.reference_guidance.metrics import (
    AttributeClassifier,
    Judge,
    NearestClassifier,
    copy_distance,
    pixels_and_squares,
    spread,
)
from neurips26.reference_guidance.posterior import reference_mean
from neurips26.reference_guidance.steering import SparseLabelSteering, draw_by_label, label_posterior
from neurips26.reference_guidance.toys import (
    Split,
    VectorFlow,
    digits,
    faces,
    labelled_moons,
    moons,
    noise_levels,
    photographs,
    sample_flow,
    split,
    train_flow,
)
from neurips26.shared import seeding

__all__ = ["digit_composition", "digit_control", "exactness", "face_control", "identity_control", "moons_composition"]
__all__ += ["moons_labels", "released_and_true_time", "settings", "sparse_labels", "trusted"]

#: References in a bank and references kept at each step (the authors' M and k).
BANK, TOPK = 20, 4
#: What the tuning grid tries: the strength of ours, and the settings of the rivals, three each.
STRENGTH_GRID = (1.0, 2.0, 4.0)
#: Strength curves reported for every control claim: schedule, strength, metric.
CURVE: Curve = [
    ("quadratic", 0.5, "mean"), ("quadratic", 1.0, "mean"), ("quadratic", 2.0, "mean"), ("bell", 0.5, "mean"),
    ("bell", 1.0, "mean"), ("constant", 0.5, "mean"), ("quadratic", 2.0, "sum"),
]  # fmt: skip


#: Points of the strength curve: schedule, strength, metric.
Curve = list[tuple[str, float, str]]


@dataclass(frozen=True)
class Rivals:
    """Settings of the rivals, each the best of three on a tuning seed of the same data (grids "...-settings").

    Attributes:
        average: strength of latent averaging, on the quadratic schedule.
        sdedit: noise level a reference is brought to.
        classifier: strength of classifier guidance.
        prompt: weight of classifier-free guidance by the prompt.
    """

    average: float
    sdedit: float
    classifier: float = 1.0
    prompt: float = 1.0

    def of(self, method: str) -> dict[str, float]:
        """The setting of a method by its name in a row; empty where it has none."""
        return {
            "latent average": {"strength": self.average}, "SDEdit": {"level": self.sdedit},
            "classifier guidance": {"strength": self.classifier}, "prompt": {"weight": self.prompt},
            "quadratic 2": {"strength": 2.0},
        }.get(method, {})  # fmt: skip


CHOSEN = tomllib.loads((Path(__file__).parent / "configs" / "chosen.toml").read_text("utf-8"))
RIVALS = {name: Rivals(**values) for name, values in CHOSEN["rivals"].items()}
RIVAL_GRID = (Rivals(1.0, 0.5, 5.0, 1.0), Rivals(2.0, 0.7, 20.0, 2.0), Rivals(4.0, 0.85, 80.0, 4.0))


#: The points of the curve that a quick run draws.
SHORT_CURVE = [("quadratic", 1.0, "mean"), ("quadratic", 2.0, "mean"), ("bell", 0.5, "mean")]


def _noise(n: int, shape: tuple[int, ...], seed: int, *names: object) -> Tensor:
    return torch.from_numpy(seeding.rng(seed, "noise", *names).standard_normal((n, *shape)).astype(np.float32))


def _pick(index: Tensor, n: int, seed: int, *names: object) -> Tensor:
    return index[torch.from_numpy(seeding.rng(seed, "bank", *names).permutation(len(index))[:n])]


def settings(
    bank: ReferenceBank, strength: float, schedule: str = "quadratic", **options: Any
) -> ReferenceMeanGuidance:
    """Guidance over the whole time with the authors' top 4; the strengths measured here extrapolate on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExtrapolationWarning)
        return ReferenceMeanGuidance(bank, strength, schedule, **{"topk": TOPK, "window": (0.0, 1.0)} | options)


def trusted(judge: Judge, name: str) -> Judge:
    """A judge that is right on more than nine of ten images it was not fitted to (the digits, faces and people).

    Raises:
        RuntimeError: it is not; what it says of samples would mean little.
    """
    if judge.accuracy <= 0.9:
        raise RuntimeError(f"judge of {name}: expected an accuracy above 0.9, got {judge.accuracy:.3f}")
    return judge


def setting(schedule: str, strength: float, metric: str) -> str:
    """Name of a point of the curve."""
    return f"{schedule} {strength:g}" + (" (sum)" if metric == "sum" else "")


def control(
    flow: VectorFlow, bank: ReferenceBank, judge: Judge, target: int, noise: Tensor, seed: int,
    rivals: Rivals, prompt: int | None = None, curve: Curve | None = None,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Rate of the attribute, copy distance and spread: unguided, over the strength curve, and for the rivals.

    Args:
        flow: the frozen flow.
        bank: the references.
        judge: of the attribute; only an :class:`AttributeClassifier` can also guide.
        target: the wanted class.
        noise: starting points, the same for every method.
        seed: of the references that are copied or noised.
        rivals: settings of the rivals.
        prompt: the attribute in words, where the flow knows prompts.
        curve: points of the strength curve; all of ``CURVE`` by default.
    """
    how, rng = rivals, seeding.rng(seed, "rivals")

    def plain(x: Tensor, t: Tensor) -> Tensor:
        return flow(x, t)

    def guided(**options: Any) -> Tensor:
        return sample_flow(plain, noise, settings(bank, **options))

    found = {"unguided": sample_flow(plain, noise)}
    for schedule, strength, metric in CURVE if curve is None else curve:
        found[setting(schedule, strength, metric)] = guided(strength=strength, schedule=schedule, metric=metric)
    # averaging latents: the plain mean of the bank in place of the posterior mean
    found["latent average"] = guided(strength=how.average, schedule="quadratic", temperature=1e12, topk=None)
    copies = bank.latents[torch.from_numpy(rng.integers(len(bank), size=len(noise)))]
    found["copy of a reference"] = copies
    # SDEdit: a reference noised to the level of the solver nearest to the wanted one, then denoised from there
    levels = noise_levels(20)
    start = int((levels - how.sdedit).abs().argmin())
    sigma = float(levels[start])
    found["SDEdit"] = sample_flow(plain, (1 - sigma) * copies + sigma * noise, start=start)
    if isinstance(judge, AttributeClassifier):
        probe = judge

        def classified(x: Tensor, t: Tensor) -> Tensor:
            # the probe's gradient at the endpoint mean, relative to its size on real images
            v, s = flow(x, t), (1 - t).reshape(-1, *[1] * (x.ndim - 1))
            return v - s * how.classifier / probe.scale * probe.gradient(x - s * v, target)

        found["classifier guidance"] = sample_flow(classified, noise)
    if prompt is not None:
        said = torch.full((len(noise),), prompt)

        def prompted(x: Tensor, t: Tensor) -> Tensor:  # classifier-free guidance
            if how.prompt == 1.0:
                return flow(x, t, said)
            return torch.lerp(flow(x, t), flow(x, t, said), how.prompt)

        found["prompt"] = sample_flow(prompted, noise)
    return {
        k: {"rate": judge.rate(x, target), "copy": copy_distance(x, bank), "spread": spread(x)}
        for k, x in found.items()
    }


def _average(rows: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    return {k: {m: float(np.mean([r[k][m] for r in rows])) for m in rows[0][k]} for k in rows[0]}


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


def sparse_labels(
    seed: int, per_class: tuple[int, ...] = (1, 2, 5, 10, 20, 50), n: int = 64
) -> dict[str, dict[str, float]]:
    """Accuracy of class-conditional samples from M labelled zeros and ones; no network.

    As the authors do with MNIST: every pixel standardised over the database, samples judged by their 5 nearest images.

    Args:
        seed: of labels and noise.
        per_class: numbers M of labelled images a class.
        n: samples a class.

    Returns:
        by M: accuracy unconditionally ("none"), with soft labels, and with the true labels of all ("hard").
    """
    points, label = _zeros_and_ones()
    out: dict[str, dict[str, float]] = {}
    for m in per_class:
        chosen = torch.cat([_pick((label == c).nonzero().flatten(), m, seed, c) for c in (0, 1)])
        steering = {r: _steering(points, label, chosen, r) for r in ("none", "soft", "hard")}
        out[str(m)] = {rule: _accuracy(s, points, label, seed, n, 5) for rule, s in steering.items()}
    return out


def _steering(points: Tensor, label: Tensor, chosen: Tensor, rule: str) -> SparseLabelSteering:
    rest = torch.ones(len(points), dtype=torch.bool)
    rest[chosen] = False
    known = torch.arange(len(points)) if rule == "hard" else chosen
    return SparseLabelSteering(points[rest], points[known], label[known], rule)


def _accuracy(
    steering: SparseLabelSteering, points: Tensor, label: Tensor, seed: int, n: int, neighbours: int
) -> float:
    """Share of samples of both classes whose nearest points are mostly of the class asked for."""
    right = []
    for c in (0, 1):
        x = steering.sample(_noise(n, tuple(points.shape[1:]), seed, "labels", c), c)
        right.append(_votes(x, points, label, neighbours) == c)
    return float(torch.cat(right).double().mean())


def _votes(x: Tensor, points: Tensor, label: Tensor, neighbours: int) -> Tensor:
    near = torch.cdist(x.double(), points.double()).topk(neighbours, largest=False).indices
    return (label[near].double().mean(1) > 0.5).long()


def _zeros_and_ones() -> tuple[Tensor, Tensor]:
    data = digits()
    both = data.take((data.labels["digit"] < 2).nonzero().flatten())
    x = both.images.flatten(1)
    return (x - x.mean(0)) / (x.std(0) + 1e-6), both.labels["digit"]


def moons_labels(
    seed: int, per_class: tuple[int, ...] = (1, 2, 5, 10, 20, 50), n: int = 400
) -> dict[str, dict[str, float]]:
    """Accuracy of samples drawn from a database of two moons by the labels of M points a moon.

    As the authors do: a point is drawn with a weight that grows with its soft label at t = 0.92 and jittered, and a sample
    is judged by its 15 nearest points. Their flow of MNIST is measured beside it on the same points.

    Returns:
        by M: accuracy without labels ("none"), with soft labels, with the true labels of all ("hard"), and along a flow.
    """
    data = labelled_moons(seed)
    points, label = data.images, data.labels["moon"]
    out: dict[str, dict[str, float]] = {}
    for m in per_class:
        chosen = torch.cat([_pick((label == c).nonzero().flatten(), m, seed, c) for c in (0, 1)])
        soft = label_posterior(points, points[chosen], label[chosen])
        right: dict[str, list[Tensor]] = {"none": [], "soft": [], "hard": []}
        for c in (0, 1):
            weight = {"none": torch.ones(len(points)), "soft": soft[:, c].square(), "hard": (label == c).double()}
            for rule, w in weight.items():
                x = draw_by_label(points, w, n, seeding.rng(seed, "draw", rule, c))
                right[rule].append(_votes(x, points, label, 15) == c)
        out[str(m)] = {k: float(torch.cat(v).double().mean()) for k, v in right.items()}
        flow = _steering(points, label, chosen, "soft")
        out[str(m)]["soft, along a flow"] = _accuracy(flow, points, label, seed, 64, 15)
    return out


# Exactness ----------------------------------------------------------------------------------------------------------
def exactness(seed: int) -> dict[str, float]:
    """Guiding the empirical flow of A towards B with beta 1 is the flow of B; guiding it towards A changes nothing.

    Through the guided scheduler, as in a pipeline, with the exact posterior over all references.
    """
    data = digits().images
    a, b = (data[_pick(torch.arange(len(data)), 60, seed, name)] for name in ("a", "b"))
    noise = _noise(16, (1, 8, 8), seed)

    def trajectory(refs: Tensor, towards: Tensor | None = None) -> Tensor:
        states = []

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            states.append(x)
            return (x - reference_mean(x, refs, float(t[0]))[0]) / (1 - float(t[0]))

        guidance = None
        if towards is not None:
            bank = ReferenceBank.from_latents(towards)
            guidance = settings(bank, 1.0, "constant", metric="sum", topk=None)
        end = sample_flow(velocity, noise, guidance)
        return torch.stack([*states, end])

    pairs = {"drift": (a, b), "idle": (a, a)}
    return {k: float((trajectory(s, e) - trajectory(e)).abs().max()) for k, (s, e) in pairs.items()}


# Digits -------------------------------------------------------------------------------------------------------------
#: Steps of the flow over digits; a quick run trains fewer, of a narrower network.
DIGIT_STEPS, QUICK_STEPS, QUICK_WIDTH = 400, 250, 192


@cache
def digit_judge() -> AttributeClassifier:
    """Which digit an image shows."""
    train, test = split(digits(), 0.3, 4)
    return AttributeClassifier((train.images, train.labels["digit"]), (test.images, test.labels["digit"]))


@cache
def digit_flow(seed: int, steps: int = DIGIT_STEPS, width: int = 384) -> VectorFlow:
    """A flow over the training digits."""
    train, _ = split(digits(), 0.3, 4)
    return train_flow(train.images, steps, seed, width, prompts=train.labels["digit"][:, None] + 1)


def digit_control(
    flow: VectorFlow, seed: int, per_class: int = 16, classes: int = 10, curve: Curve | None = None,
    rivals: Rivals | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Control of the digit by banks of 20 test digits, averaged over ``classes`` random classes."""
    judge, (_, test) = trusted(digit_judge(), "digits"), split(digits(), 0.3, 4)
    rows, held = [], []
    for c in _classes(seed, classes):
        pool = test.where(digit=c)
        inside = _pick(pool, BANK, seed, c)
        real = test.images[pool[~torch.isin(pool, inside)]]
        bank = ReferenceBank.from_latents(test.images[inside])
        noise = _noise(per_class, (1, 8, 8), seed, c)
        row = control(flow, bank, judge, c, noise, seed + c, rivals or RIVALS["digits"], c + 1, curve)
        if curve is None:
            few = bank.subset(list(range(5)))
            sweep = {
                "k = 1": (settings(bank, 2.0, topk=1), 20), "k = 20": (settings(bank, 2.0, topk=None), 20),
                "M = 5": (settings(few, 2.0), 20), "10 steps": (settings(bank, 2.0), 10),
                "40 steps": (settings(bank, 2.0), 40),
            }  # fmt: skip
            for name, (g, steps) in sweep.items():
                x = sample_flow(flow, noise, g, steps)
                row[f"quadratic 2, {name}"] = {
                    "rate": judge.rate(x, c), "copy": copy_distance(x, bank), "spread": spread(x)
                }  # fmt: skip
        rows.append(row)
        held.append(
            {"rate": judge.rate(real, c), "copy": copy_distance(real, bank), "spread": spread(real[:per_class])}
        )
    return _average(rows) | {"held out": {k: float(np.mean([h[k] for h in held])) for k in held[0]}}


def _classes(seed: int, n: int) -> list[int]:
    return sorted(seeding.rng(seed, "classes").permutation(10)[:n].tolist())


def settings_grid(measure: Callable[[Curve, Rivals], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Three settings of every method; by number of the setting and method: rate, copy distance, spread.

    Args:
        measure: a control experiment, given a strength curve of one point and the settings of the rivals.
    """
    found = {}
    for i, rivals in enumerate(RIVAL_GRID):
        curve = [("quadratic", STRENGTH_GRID[i], "mean")]
        found[str(i)] = row = measure(curve, rivals)
        row["ours"] = row.pop(setting(*curve[0]))
    return found


SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def digit_composition(flow: VectorFlow, seed: int, n: int = 120) -> dict[str, dict[str, float]]:
    """Share of ones among zeros and ones, by the share of ones in a bank of 20.

    Three means: the exact posterior with top 4 ("sum"), the released distance with all ("mean"), the plain average.
    """
    judge, (_, test) = digit_judge(), split(digits(), 0.3, 4)
    zero, one = (ReferenceBank.from_latents(test.images[_pick(test.where(digit=c), BANK, seed, c)]) for c in (0, 1))
    noise = _noise(n, (1, 8, 8), seed, "composition")
    how: dict[str, dict[str, Any]] = {
        "sum": {"metric": "sum"}, "mean": {"topk": None}, "latent average": {"topk": None, "temperature": 1e12}
    }  # fmt: skip
    out: dict[str, dict[str, float]] = {k: {} for k in how}
    for name, options in how.items():
        for share in SHARES:
            g = settings(zero.mix(one, share), 2.0, **options)
            seen = judge.predict(sample_flow(flow, noise, g))
            ones, zeros = int((seen == 1).sum()), int((seen == 0).sum())
            out[name][f"{share:g}"] = ones / max(1, ones + zeros)
    return out


def released_and_true_time(
    flow: VectorFlow, seed: int, n: int = 24, shift: float = 3.0, classes: int = 10
) -> dict[str, dict[str, float]]:
    """The authors' pink-elephant setting (strength 0.5 quadratic, window .15-.95) on digits under a shifted schedule."""
    judge, (_, test) = digit_judge(), split(digits(), 0.3, 4)
    modes = {"true time": ("in_step", "sigma"), "step fraction": ("in_step", "step_fraction")}
    modes |= {"released": ("released", "step_fraction"), "released first": ("released_first", "step_fraction")}
    found: dict[str, dict[str, list[float]]] = {k: {"rate": [], "copy": []} for k in ["unguided", *modes]}
    for c in _classes(seed, classes):
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
FACE_STEPS, PEOPLE_STEPS = 1200, 300


@cache
def _mixed(path: Path) -> tuple[Split, Split, dict[str, Judge]]:
    """Faces with attributes: 30 people to train on, photographs 5 to 9 of the other ten for banks, and the judges.

    Tint, style and layout are judged by rules fitted to the 30 people and tested on the other ten. A person is the one
    of the nearest image among photographs 0 to 4 (which no bank holds).
    """
    grey = photographs(path)
    every = faces(grey)
    known, early = every.labels["person"] < 30, torch.arange(len(every)) // 27 % 10 < 5
    train, bank = every.take(known.nonzero().flatten()), every.take((~known & ~early).nonzero().flatten())
    some = _pick(torch.arange(len(train)), 1500, 1, "judge")
    judges: dict[str, Judge] = {}
    for name in ("tint", "style", "layout"):
        judges[name] = AttributeClassifier(
            (train.images[some], train.labels[name][some]),
            (bank.images, bank.labels[name]),
            features=pixels_and_squares,
        )
    seen = every.take((~known & early).nonzero().flatten())
    judges["person"] = NearestClassifier((seen.images, seen.labels["person"]), (bank.images, bank.labels["person"]))
    return train, bank, judges


@cache
def mixed_flow(path: Path, seed: int, steps: int = FACE_STEPS) -> VectorFlow:
    """A flow over coloured, styled, placed faces of 30 people."""
    train, _, _ = _mixed(path)
    prompts = torch.stack([train.labels["tint"] + 1, train.labels["style"] + 4, train.labels["layout"] + 7], 1)
    return train_flow(train.images, steps, seed, 512, prompts=prompts)


#: What banks have in common: red, a sketch, the left half; a person is another one at every seed.
FACE_TARGETS = {"tint": (0, 1), "style": (1, 5), "layout": (1, 8)}
FACE_ATTRIBUTES = (*FACE_TARGETS, "person")


def face_control(
    path: Path, trained: int, seed: int, n: int = 64, names: tuple[str, ...] = FACE_ATTRIBUTES,
    curve: Curve | None = None, rivals: Rivals | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Colour (red), style (sketch), structure (left half) and identity by banks of 20 that mix all other attributes.

    Args:
        path: the photographs.
        trained: seed of the frozen flow.
        seed: of banks and noise, and of the person.
        n: samples a method.
        names: attributes.
        curve, rivals: see :func:`control`.
    """
    train, pool, judges = _mixed(path)
    flow, shape = mixed_flow(path, trained), tuple(train.images.shape[1:])
    out: dict[str, Any] = {}
    wanted: dict[str, tuple[int, int | None]] = {**FACE_TARGETS, "person": (30 + seed % 10, None)}
    for name in names:
        target, prompt = wanted[name]
        judge = trusted(judges[name], name)
        inside = _pick(pool.where(**{name: target}), BANK, seed, name)
        bank = ReferenceBank.from_latents(pool.images[inside])
        noise, how = _noise(n, shape, seed, name), rivals or RIVALS[name]
        out[name] = control(flow, bank, judge, target, noise, seed, how, prompt, curve)
        rest = pool.where(**{name: target})
        rest = _pick(rest[~torch.isin(rest, inside)], 80, seed, name, "rest")
        real = pool.images[rest]
        out[name]["held out"] = {
            "rate": judge.rate(real, target), "copy": copy_distance(real, bank), "spread": spread(real)
        }  # fmt: skip
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


@cache
def people_flow(path: Path, seed: int) -> VectorFlow:
    """A flow over plain faces: seven photographs of each of 40 people."""
    return train_flow(_people(path)[0].images, PEOPLE_STEPS, seed, 512)


def identity_control(
    path: Path, trained: int, seed: int, people: int = 20, n: int = 8, curve: Curve | None = None,
    rivals: Rivals | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Identity on plain faces by the three photographs of a person that the flow never saw."""
    train, unseen, judge = _people(path)
    trusted(judge, "people")
    flow, shape = people_flow(path, trained), tuple(train.images.shape[1:])
    rows, held = [], []
    for p in seeding.rng(seed, "people").permutation(40)[:people].tolist():
        bank = ReferenceBank.from_latents(unseen.images[unseen.where(person=p)])
        how = rivals or RIVALS["people"]
        rows.append(control(flow, bank, judge, p, _noise(n, shape, seed, p), seed + p, how, curve=curve))
        # other real photographs of the person, to the bank; the judge is tested on the unseen ones
        real = train.images[train.where(person=p)]
        held.append({"rate": judge.rate(bank.latents, p), "copy": copy_distance(real, bank), "spread": spread(real)})
    return _average(rows) | {"held out": {k: float(np.mean([h[k] for h in held])) for k in held[0]}}
