"""The search for learning rates, and that the package uses what it found."""

import json
import logging
import math
from collections import Counter
from pathlib import Path

import pytest

from neurips26.frank_lora.experiments import SEARCHES, adopted, chosen, run
from neurips26.frank_lora.search import Search, settled

RECORD = Path(__file__).parents[3] / "results" / "frank-lora" / "tune.json"
PLAN = Search(unit=0.1, fold=2.0, coarse=4, halvings=3, seeds=2)


def bowl(centre, edge=math.inf):
    """A loss with its minimum at a rate, that diverges from another on."""
    return lambda lr: math.inf if lr >= edge else math.log(lr / centre) ** 2


def test_it_finds_optima_between_coarse_rates_below_an_edge_and_beyond_the_ends():
    losses = {"between": bowl(0.29), "edge": bowl(1.0, edge=0.57), "far": bowl(3.3), "low": bowl(0.04)}
    asked = Counter()

    def loss(method, lr, seed):
        asked[method] += 1
        return losses[method](lr) + 0.001 * seed

    best, tried = PLAN.run(list(losses), loss)
    last = 2 ** (1 / 8)
    for method, centre in (("between", 0.29), ("far", 3.3), ("low", 0.04)):
        assert 1 / last < PLAN.rate(best[method]) / centre < last
    assert 0.57 / last < PLAN.rate(best["edge"]) < 0.57
    assert len(set(asked.values())) == 1  # one budget
    for method, place in best.items():
        assert tried[method][place] < min(tried[method][place - 1], tried[method][place + 1])


def test_one_seed_that_diverges_rules_a_rate_out():
    best, _ = PLAN.run(["a"], lambda _, lr, seed: math.inf if lr > (0.5 if seed == 2 else 2.0) else -lr)
    assert 0.5 / 2 ** (1 / 8) < PLAN.rate(best["a"]) <= 0.5


def test_a_loss_that_always_falls_is_an_error():
    with pytest.raises(RuntimeError, match="a: no rate with worse neighbours among 40"):
        settled({"a": {0: 0.0}}, 1, lambda _, place: -float(place))


def test_a_run_leaves_the_harness_logger_as_it_was():
    log = logging.getLogger("neurips26.federated")
    before = log.level
    got = run("linear", "frank", 1e9, 5, "quick", "validation")
    assert log.level == before
    assert got["rejected"] > 0 and math.isfinite(got["loss"])


def test_the_package_uses_what_the_record_chose_inside_what_it_tried():
    record = json.loads(RECORD.read_text("utf-8"))
    for grid in record["grids"]:
        plan = SEARCHES[grid["id"].removesuffix("-rates")]
        step = plan.fold ** (1 / 2**plan.halvings)
        for method, found in grid["chosen"].items():
            fine = {}
            for cell in grid["cells"]:
                if cell["method"] == method and cell["factors"]["stage"] == "fine":
                    fine.setdefault(cell["factors"]["lr"], []).append(cell["value"])
            means = {lr: sum(values) / len(values) for lr, values in fine.items()}
            assert min(means, key=means.__getitem__) == found["lr"], method
            assert means[found["lr"]] == pytest.approx(found["loss"])
            assert {len(values) for values in fine.values()} == {plan.seeds}
            for side in (1 / step, step):
                assert any(math.isclose(lr, found["lr"] * side, rel_tol=2e-3) for lr in means), (method, found)
    kept = adopted(record["grids"])
    assert {name: chosen(name) for name in kept} == kept
