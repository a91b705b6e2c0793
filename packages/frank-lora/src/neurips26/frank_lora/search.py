"""A search over learning rates that gives every method the same budget and ends inside the rates that it tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Search", "Tried", "settled"]

#: Places tried of one method and the mean losses there.
Tried = dict[int, float]


@dataclass(frozen=True)
class Search:
    """Rates ``unit * fold ** (place / 2 ** halvings)`` at whole places, the same for all methods.

    First the ``coarse`` rates, a factor ``fold`` apart, on one seed. Then, on ``seeds`` other seeds, each method's best
    and its neighbours at that distance, at half of it (in the logarithm), and so on ``halvings`` times.
    """

    unit: float
    fold: float
    coarse: int
    halvings: int
    seeds: int

    def rate(self, place: int) -> float:
        """The learning rate at a place."""
        return float(f"{self.unit * self.fold ** (place / 2**self.halvings):.4g}")

    @property
    def coarse_rates(self) -> list[float]:
        """The rates that every method is tried at first."""
        return [self.rate(2**self.halvings * i) for i in range(self.coarse)]

    def run(
        self, methods: Sequence[str], loss: Callable[[str, float, int], float]
    ) -> tuple[dict[str, int], dict[str, Tried]]:
        """Search for all methods together.

        Args:
            methods: their names.
            loss: of a method, a rate and the number of a seed (0: the coarse one); infinite for a run that diverged,
                which rules the rate out whatever the other seeds say.

        Returns:
            Each method's best place, and the mean losses of all places that it was compared with: both neighbours, at
            the smallest distance, are among them, and worse.
        """
        step = 2**self.halvings

        def coarse(method: str, place: int) -> float:
            return loss(method, self.rate(place), 0)

        def fine(method: str, place: int) -> float:
            return float(np.mean([loss(method, self.rate(place), seed) for seed in range(1, self.seeds + 1)]))

        places = [step * i for i in range(self.coarse)]
        best = settled({m: {p: coarse(m, p) for p in places} for m in methods}, step, coarse)
        tried = {m: {place: fine(m, place)} for m, place in best.items()}
        while step:
            best = settled(tried, step, fine)
            step //= 2
        return best, tried


def settled(
    tried: Mapping[str, Tried], step: int, loss: Callable[[str, int], float], limit: int = 40
) -> dict[str, int]:
    """Each method's best place, once no best lies at the end of what was tried.

    While one does, every method tries as many more places, the nearest to its own best: the budget stays the same.

    Raises:
        RuntimeError: after ``limit`` places there still is no best with worse neighbours.
    """
    while True:
        best = {method: min(losses, key=lambda place: (losses[place], place)) for method, losses in tried.items()}
        missing = [sum(best[m] + side * step not in tried[m] for side in (-1, 1)) for m in tried]
        if not any(missing):
            return best
        for method, losses in tried.items():
            if len(losses) >= limit:
                raise RuntimeError(f"{method}: no rate with worse neighbours among {len(losses)}")
            around = (best[method] + side * step * i for i in range(1, 2 * limit) for side in (-1, 1))
            fresh = [place for place in around if place not in losses][: max(missing)]
            losses.update({place: loss(method, place) for place in fresh})
