"""The pictures of the record: contact sheets, fields, strips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neurips26.reference_guidance import animals
from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.control import BANK, draw_noise, pick, settings
from neurips26.reference_guidance.face_experiments import faces_and_judges, mixed_flow
from neurips26.reference_guidance.flows import MeanFlow, VectorFlow, sample_flow
from neurips26.reference_guidance.posterior import reference_mean
from neurips26.reference_guidance.toys import Split, digits, moons, split
from neurips26.shared import plots

__all__ = [
    "animal_sheet",
    "composition_strip",
    "contact_sheet",
    "digit_sheets",
    "dit_face_sheet",
    "face_sheet",
    "moon_fields",
    "spg_sheet",
    "strength_curve",
]


def tile(images: Tensor) -> np.ndarray:
    """Images (rows, columns, c, h, w) in [-1, 1] as one picture (H, W, 3) with a gap of one pixel."""
    x = ((images.float().clamp(-1, 1) + 1) / 2).expand(-1, -1, 3, -1, -1)
    x = torch.nn.functional.pad(x, (1, 1, 1, 1), value=1.0)
    return x.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1).numpy()


def contact_sheet(path: Path, rows: list[tuple[str, Tensor]], title: str = "") -> None:
    """One labelled row a setting, one column a noise; pixels stay square."""
    picture = tile(torch.stack([r[1] for r in rows]))
    height = picture.shape[0] / len(rows)
    wide, labels = 5.2, 0.3 + 0.07 * max(len(name) for name, _ in rows)  # inches
    with plots.figure(path, size=(wide + labels, wide * picture.shape[0] / picture.shape[1] + 0.4)) as axes:
        axes.imshow(picture, interpolation="nearest")
        axes.set_anchor("NW")  # labels are then where the layout expects them
        axes.set_yticks([height * (i + 0.5) for i in range(len(rows))], [name for name, _ in rows])
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.grid(False)
        axes.set_title(title)


def _digit_bank(digit: int, seed: int) -> ReferenceBank:
    _, test = split(digits(), 0.3, 4)
    return ReferenceBank.from_latents(test.images[pick(test.where(digit=digit), BANK, seed, digit)])


def digit_sheets(sheet: Path, steps_path: Path, flow: VectorFlow, seed: int) -> None:
    """Base, rising strength, nearest reference; and what guidance did at each noise level."""
    bank, noise = _digit_bank(3, seed), draw_noise(16, (1, 8, 8), seed, "sheet")
    rows, last = [("unguided", sample_flow(flow, noise))], noise
    guidance = settings(bank, 0.5)
    for strength in (0.5, 1.0, 2.0, 4.0):
        guidance = settings(bank, strength)
        last = sample_flow(flow, noise, guidance)
        rows.append((f"strength {strength:g}", last))
    rows.append(("nearest reference", bank.latents[bank.nearest(last)[0]]))
    contact_sheet(sheet, rows, "the same noises, guided to twenty threes")
    with plots.figure(steps_path, columns=2) as axes:
        sigma = [h.sigma for h in guidance.history]
        axes[0].plot(sigma, [h.entropy for h in guidance.history], color=plots.OURS)
        axes[0].set(xlabel="sigma", ylabel="entropy of the weights (nats)", xlim=(1, 0))
        axes[1].plot(sigma, [h.correction for h in guidance.history], color=plots.OURS)
        axes[1].set(xlabel="sigma", ylabel="norm of the correction", xlim=(1, 0))


def strength_curve(path: Path, rows: dict[int, Any], what: str) -> None:
    """Control against copy distance for every setting and rival."""
    points = {
        name: tuple(float(np.mean([r[name][m] for r in rows.values()])) for m in ("copy", "rate"))
        for name in next(iter(rows.values()))
    }
    with plots.figure(path, size=(6.6, 3.6)) as axes:
        for name, at in points.items():
            guided = name.split()[0] in ("quadratic", "bell", "constant")
            axes.plot(*at, "o", color=plots.OURS if guided else plots.BASELINE)
        axes.plot([], [], "o", color=plots.OURS, label="guidance by the set")
        axes.plot([], [], "o", color=plots.BASELINE, label="rivals and real images")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=8)
        axes.set(xlabel="distance to the nearest reference (0 is a copy)", ylabel=what)
        # names in a column on the right, in the order of their points, so that none covers another
        names = sorted(points, key=lambda n: points[n][1])
        for i, name in enumerate(names):
            axes.annotate(
                name, points[name], xytext=(1.06, (i + 0.5) / len(names)), textcoords="axes fraction", fontsize=7,
                va="center", annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": "0.75", "linewidth": 0.6, "shrinkB": 3, "relpos": (0, 0.5)},
            )  # fmt: skip


def composition_strip(path: Path, flow: VectorFlow, seed: int) -> None:
    """Samples as the share of ones in the set grows."""
    zero, one = _digit_bank(0, seed), _digit_bank(1, seed)
    noise = draw_noise(16, (1, 8, 8), seed, "strip")
    rows = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        g = settings(zero.mix(one, share), 2.0, metric="sum")
        rows.append((f"{share:.0%} ones", sample_flow(flow, noise, g)))
    contact_sheet(path, rows, "one set of noises, five compositions of the set")


def moon_fields(path: Path, seed: int) -> None:
    """Velocity fields half-way under three sets, to one scale."""
    data = moons(400, seed)
    grid = torch.stack(torch.meshgrid(torch.linspace(-2, 2, 18), torch.linspace(-2, 2, 18), indexing="xy"), -1).reshape(
        -1, 2
    )
    with plots.figure(path, columns=3, size=(3.2, 3.8)) as axes:
        for ax, (name, keep) in zip(axes, {"both": None, "moon 0": 0, "moon 1": 1}.items()):
            refs = data.images if keep is None else data.images[data.where(moon=keep)]
            u = (reference_mean(grid, refs, 0.5)[0] - grid) / 0.5
            ax.scatter(*refs.T.numpy(), s=3, color=plots.BASELINE)
            ax.quiver(*grid.T.numpy(), *u.T.numpy(), color=plots.OURS, width=0.004, scale=45)
            ax.set(title=f"set: {name}", xticks=[], yticks=[], aspect="equal")
        axes[1].set_xlabel("orange: references, blue: velocity at t = 0.5")


def face_sheet(path: Path, data: Path, seed: int) -> None:
    """Unguided and guided faces for three attributes, with nearest references."""
    _attribute_sheet(path, mixed_flow(data, seed), faces_and_judges(data)[1], seed)


def dit_face_sheet(path: Path, data: Path, seed: int) -> None:
    """The same of the flow over 32x32 faces."""
    from neurips26.reference_guidance import dit_faces

    pool = faces_and_judges(data, dit_faces.SIDE)[1]
    _attribute_sheet(path, dit_faces.dit_flow(data, seed), pool, seed)


def _attribute_sheet(path: Path, flow: MeanFlow, pool: Split, seed: int) -> None:
    noise = draw_noise(12, tuple(pool.images.shape[1:]), seed, "sheet")
    rows = [("unguided", sample_flow(flow, noise))]
    for name, label, target in (("tint", "red", 0), ("style", "sketch", 1), ("layout", "left", 1)):
        bank = ReferenceBank.from_latents(pool.images[pick(pool.where(**{name: target}), BANK, seed, name)])
        for strength in (1.0, 2.0):
            x = sample_flow(flow, noise, settings(bank, strength))
            rows.append((f"{label}, strength {strength:g}", x))
        rows.append((f"{label}, nearest", bank.latents[bank.nearest(x)[0]]))
    contact_sheet(path, rows, "one set of noises, three sets of twenty references")


def animal_sheet(path: Path, data: Path, seed: int) -> None:
    """Unguided, guided to twenty cats and to twenty dogs at rising strength, nearest references."""
    _, test, _ = animals.photographs_and_judge(data)
    flow = animals.animal_flow(data, seed)
    noise = draw_noise(14, tuple(test.images.shape[1:]), seed, "sheet")
    rows = [("unguided", sample_flow(flow, noise))]
    for species, name in enumerate(animals.SPECIES):
        pool = test.where(species=species)
        bank = ReferenceBank.from_latents(test.images[pick(pool, BANK, seed, species)])
        for strength in (1.0, 2.0, 4.0):
            x = sample_flow(flow, noise, settings(bank, strength))
            rows.append((f"{name}s, strength {strength:g}", x))
        rows.append((f"{name}s, nearest", bank.latents[bank.nearest(rows[-1][1])[0]]))
    contact_sheet(path, rows, "one set of noises, a set of twenty cats and one of twenty dogs")


def spg_sheet(path: Path, case: Any, attribute: str, seed: int) -> None:
    """One set of noises under a mixed set and under two sets of one kind, each with the nearest references below."""
    from neurips26.reference_guidance import spg_experiments  # its imports take seconds

    model = spg_experiments.trained(case, "SPG", seed)
    noise = draw_noise(14, tuple(case.train.images.shape[1:]), seed, "sheet")
    show = case.pictures
    rows = [("mixed set", show(spg_experiments.samples(model, noise, case.mixed_set(seed))))]
    kinds = case.kinds(attribute)
    for kind in (kinds[0], kinds[-1]):
        bank = ReferenceBank.from_latents(case.unseen.images[case.unseen.where(**{attribute: kind})])
        x = spg_experiments.samples(model, noise, bank.latents)
        rows += [
            (f"set of one {attribute}: {case.names[attribute][kind]}", show(x)),
            ("nearest reference", show(bank.latents[bank.nearest(x)[0]])),
        ]
    contact_sheet(path, rows, "one generator, one set of noises, three sets")
