"""The measurements behind the claims about semi-parametric guidance: SPG beside a DiT of equal budget, and swapped sets.

Real images: scikit-learn's digits, coloured faces, cats and dogs in pixels and as latents of a pretrained network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from neurips26.reference_guidance.animal_latents import latent_animals
from neurips26.reference_guidance.animals import SPECIES, photographs_and_judge
from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.baselines import CHOSEN
from neurips26.reference_guidance.control import draw_noise, pick, trusted
from neurips26.reference_guidance.digit_experiments import digit_judge
from neurips26.reference_guidance.face_experiments import faces_and_judges
from neurips26.reference_guidance.metrics import Judge, copy_distance, frechet_distance, kernel_distance
from neurips26.reference_guidance.spg import SPG, DiTMean, SPGConfig, euler_sample
from neurips26.reference_guidance.spg_train import SPGTrainer, TrainConfig
from neurips26.reference_guidance.toys import LAYOUTS, STYLES, TINTS, Split, digits, faces, photographs, split

__all__ = [
    "SPG_RATES",
    "Case",
    "animal_case",
    "animal_latent_case",
    "digit_case",
    "face_case",
    "quality",
    "samples",
    "swapped",
]
__all__ += ["train_small", "trained", "tuning_score"]

#: Learning rates of Lion that the grids try for either model.
SPG_RATES = (1e-3, 2e-3, 3e-3, 5e-3)


@dataclass(frozen=True, eq=False)
class Case:
    """What both models are trained on, and the sets of one kind that SPG has never seen as such.

    Attributes:
        name: of the case, and of its learning rates in ``chosen.toml``.
        sizes: of SPG. One anchor head: its keys are then 64 wide (96 in the authors' model), and the width bounds how
            sharp the softmax over normalised queries and keys can become.
        steps: of training.
        bank: references drawn at random in each step, 0 for all training images (each hidden from itself).
        train: training images.
        unseen: images that neither model has seen: sets of one kind are made of them.
        judges: by attribute; sets share one of its values.
        names: of those values, for pictures.
        features: a network whose features give a second distance.
        mixed: size of the set that samples are drawn under, made of training images of all kinds; 0 for all of them.
        each: samples under every set of one kind.
        time: width of the DiT's time embedding, which makes the numbers of parameters equal (within 2 %).
        pictures: what images look like, where they are latents; distances between distributions are those of pictures.
    """

    name: str
    sizes: SPGConfig
    steps: int
    bank: int
    train: Split
    unseen: Split
    judges: dict[str, Judge]
    names: dict[str, tuple[str, ...]]
    features: nn.Module | None = None
    mixed: int = 0
    each: int = 40
    time: int = 80
    pictures: Callable[[Tensor], Tensor] = lambda x: x

    def mixed_set(self, seed: int) -> Tensor:
        """Training images of all kinds."""
        images = self.train.images
        return images[pick(torch.arange(len(images)), self.mixed, seed, "mixed")] if self.mixed else images

    def kinds(self, attribute: str) -> list[int]:
        """Values of an attribute."""
        return self.unseen.labels[attribute].unique().tolist()


@cache
def digit_case() -> Case:
    """8x8 digits in four patches of 16 numbers; sets of one digit."""
    train, test = split(digits(), 0.3, 4)
    return Case(
        "digits",
        SPGConfig(1, 8, 8, 4, 64, 3, 4, 1, 64),
        800,
        0,
        train,
        test,
        {"digit": digit_judge()},
        {"digit": tuple("0123456789")},
    )


#: 16x16 colour images in sixteen patches of 48 numbers.
COLOUR = SPGConfig(3, 16, 16, 4, 64, 3, 4, 1, 64)


@cache
def face_case(path: Path) -> Case:
    """Faces of 30 people, each photograph in 27 forms; sets of one tint (or style, or layout) of ten other people."""
    every = faces(photographs(path))
    known = every.labels["person"] < 30
    train, unseen = every.take(known.nonzero().flatten()), every.take((~known).nonzero().flatten())
    judges = {name: trusted(faces_and_judges(path)[2][name], name) for name in ("tint", "style", "layout")}
    names = {"tint": tuple(TINTS), "style": STYLES, "layout": LAYOUTS}
    return Case("faces", COLOUR, 400, 256, train, unseen, judges, names, mixed=500, each=100)


@cache
def animal_case(path: Path) -> Case:
    """Cats and dogs; sets of one species from photographs that neither the models nor the judge have seen."""
    train, test, judge = photographs_and_judge(path)
    return Case(
        "animals",
        COLOUR,
        400,
        256,
        train,
        test,
        {"species": judge},
        {"species": SPECIES},
        judge.body,
        mixed=500,
        each=300,
    )


#: 32x8x8 latents in sixteen patches of 128 numbers, as many as in a patch of the authors' latents.
LATENT = SPGConfig(32, 8, 8, 2, 64, 3, 4, 1, 64)


@cache
def animal_latent_case(path: Path) -> Case:
    """The same cats and dogs as latents of a pretrained network, and the same judge, which sees pictures made of them."""
    a = latent_animals(path)
    return Case(
        "animal-latents",
        LATENT,
        800,
        256,
        a.train,
        a.test,
        {"species": a.judge},
        {"species": SPECIES},
        a.features,
        mixed=500,
        each=300,
        time=92,
        pictures=a.latents.decode,
    )


def train_small(case: Case, kind: str, rate: float, seed: int, steps: int) -> SPG | DiTMean:
    """One model of either kind on the training images, which are also its set: each hidden from itself, as the authors do.

    The DiT has as many blocks as the refiner and a wider time embedding. One block more, as at the authors' size, would
    here give it a fifth more parameters.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        equal = replace(case.sizes, depth=case.sizes.depth - 1, time_dim=case.time)
        model = SPG.from_sizes(case.sizes) if kind == "SPG" else DiTMean.of_equal_budget(equal)
    # both cool down over the second half: a run this short at a constant rate ends wherever Lion's last steps left it
    config = TrainConfig(steps, 64, case.bank, rate, ema=0.99, cooldown=0.5, seed=seed)
    return SPGTrainer(model, case.train.images, config).train().averaged()


@cache
def trained(case: Case, kind: str, seed: int) -> SPG | DiTMean:
    """A model at the rate chosen for its kind."""
    return train_small(case, kind, CHOSEN["spg"][case.name][kind], seed, case.steps)


def samples(model: SPG | DiTMean, noise: Tensor, references: Tensor | None, retrieved_only: bool = False) -> Tensor:
    """Samples of either model, 20 Euler steps; ``retrieved_only`` leaves gate and refiner out (kNN flow)."""
    if isinstance(model, DiTMean):
        return euler_sample(model, noise)
    assert references is not None
    with torch.no_grad():
        bank = model.anchor.cache(references)
    if retrieved_only:
        return euler_sample(lambda x, t: model(x, t, bank).retrieved, noise)
    return euler_sample(lambda x, t: model(x, t, bank).mean, noise)


def _noise(case: Case, n: int, seed: int) -> Tensor:
    return draw_noise(n, tuple(case.train.images.shape[1:]), seed, "spg")


def tuning_score(case: Case, kind: str, rate: float, seed: int, n: int = 600) -> float:
    """Frechet distance to the training images of one model at one learning rate, after half of the steps."""
    model = train_small(case, kind, rate, seed, case.steps // 2)
    drawn = samples(model, _noise(case, n, seed), case.mixed_set(seed))
    return frechet_distance(case.pictures(case.train.images), case.pictures(drawn))


def quality(case: Case, seed: int, n: int = 600) -> dict[str, dict[str, float]]:
    """Distances of the samples of both models to the images they were trained on, and to unseen ones."""
    noise, mixed, train = _noise(case, n, seed), case.mixed_set(seed), case.train.images
    models = {kind: trained(case, kind, seed) for kind in ("SPG", "DiT")}
    found = {kind: samples(m, noise, mixed) for kind, m in models.items()}
    found["retrieved mean only"] = samples(models["SPG"], noise, mixed, retrieved_only=True)
    found["real held out"] = case.unseen.images
    known = ReferenceBank.from_latents(train)
    trained_on, unseen = case.pictures(train), case.pictures(case.unseen.images)
    out: dict[str, dict[str, float]] = {}
    for name, x in found.items():
        shown = case.pictures(x)
        out[name] = {"frechet": frechet_distance(trained_on, shown), "kernel": kernel_distance(trained_on, shown)}
        out[name]["nearest training image"] = copy_distance(x, known)
        if case.features is not None:
            out[name]["frechet in features"] = frechet_distance(trained_on, shown, case.features)
        if name != "real held out":
            out[name]["frechet held out"] = frechet_distance(unseen, shown)
    for name, m in models.items():
        out[name]["parameters"] = float(sum(p.numel() for p in m.parameters()))
    return out


def swapped(case: Case, attribute: str, seed: int) -> dict[str, dict[str, float]]:
    """What sets of one kind do to an SPG that was trained under random mixed ones: rate of the kind, and copy distance.

    "real" are the images of the set themselves (what the judge says of them) and training images of the kind (their
    distance to the set).
    """
    model, judge, kinds = trained(case, "SPG", seed), case.judges[attribute], case.kinds(attribute)
    noise, mixed = _noise(case, case.each * len(kinds), seed).split(case.each), case.mixed_set(seed)
    rows: list[dict[str, dict[str, float]]] = []
    for kind, start in zip(kinds, noise):
        bank = ReferenceBank.from_latents(case.unseen.images[case.unseen.where(**{attribute: kind})])
        real = case.train.images[case.train.where(**{attribute: kind})]
        found = {"ours": samples(model, start, bank.latents), "mixed set": samples(model, start, mixed)}
        rows.append({name: {"rate": judge.rate(x, kind), "copy": copy_distance(x, bank)} for name, x in found.items()})
        rows[-1]["real"] = {"rate": judge.rate(bank.latents, kind), "copy": copy_distance(real, bank)}
    return {k: {m: float(np.mean([r[k][m] for r in rows])) for m in rows[0][k]} for k in rows[0]}
