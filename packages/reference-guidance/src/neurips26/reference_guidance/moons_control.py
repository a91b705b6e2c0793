"""Control of a learned flow over two moons by sets of one moon."""

from __future__ import annotations

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.control import BANK, CURVE, average, draw_noise, measured, pick, setting, settings
from neurips26.reference_guidance.flows import sample_flow, train_flow
from neurips26.reference_guidance.metrics import NearestClassifier
from neurips26.reference_guidance.toys import moons

__all__ = ["moons_control"]


def moons_control(seed: int, n: int = 256, steps: int = 400) -> dict[str, dict[str, float]]:
    """Share on the set's moon: unguided, guided by twenty points of a moon, and by their plain average; over both moons.

    Flow, sets and judge have points of their own. Guidance fades over time (quadratic schedule), so unlike the flow of the
    set alone it can leave a sample where the flow takes it.
    """
    train, other, known = moons(1000, seed), moons(500, seed + 500_000), moons(1000, seed + 600_000)
    flow = train_flow(train.images, steps, seed, 128)
    judge = NearestClassifier((known.images, known.labels["moon"]), (other.images, other.labels["moon"]))
    rows = []
    for moon in (0, 1):
        inside = pick(other.where(moon=moon), BANK, seed, "moon", moon)
        bank, noise = ReferenceBank.from_latents(other.images[inside]), draw_noise(n, (2,), seed, "moon", moon)
        guided = {setting(*point): settings(bank, point[1], point[0], metric=point[2]) for point in CURVE}
        guided["latent average"] = settings(bank, 2.0, temperature=1e12, topk=None)
        found = {name: sample_flow(flow, noise, g) for name, g in guided.items()} | {
            "unguided": sample_flow(flow, noise)
        }
        rows.append({name: measured(x, judge, moon, bank) for name, x in found.items()})
        rows[-1]["real"] = measured(other.images[other.where(moon=moon)], judge, moon, bank)
    return average(rows)
