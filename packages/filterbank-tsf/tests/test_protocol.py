"""Borders, scaler, window counts and errors of the benchmark protocol; values on the real files where they are."""

import itertools
import os

import numpy as np
import pytest

from neurips26.filterbank_tsf.benchmark import SPECS, evaluate, load_ltsf, window_count
from neurips26.filterbank_tsf.linear import LinearForecaster, average, repeat_last, seasonal_naive
from neurips26.filterbank_tsf.protocol import DataSpec, block_errors, dominant_period, split
from neurips26.filterbank_tsf.protocol import waves as waves_of_known_rank
from neurips26.filterbank_tsf.rank import numerical_rank
from neurips26.filterbank_tsf.regression import RidgePath, reduced_rank, ridge
from neurips26.filterbank_tsf.selection import (
    REHEARSAL_ALPHAS,
    RULES,
    apply_rule,
    blocked_cv,
    candidates,
    choose_by_blocks,
    choose_on_validation,
    chosen_rule,
    decide,
    rehearse,
    with_folds,
)
from neurips26.filterbank_tsf.stats import WindowStats
from neurips26.filterbank_tsf.tables import closed_form_table
from neurips26.shared import data as shared_data
from neurips26.shared.testing import needs


def real(name):
    """The benchmark, or a listed skip where the file is not on this machine."""
    found = shared_data.find("filterbank-tsf", SPECS[name].file)
    needs("data", found is not None, f"{SPECS[name].file}; set NEURIPS26_DATA")
    return load_ltsf(name)


@pytest.fixture(scope="module")
def waves():
    rng = np.random.default_rng(0)
    z = np.sin(2 * np.pi * np.arange(1500)[:, None] / np.array([24, 12])) + 0.3 * rng.normal(size=(1500, 2))
    return split("waves", z, ("a", "b"), DataSpec("", None, 24, (24, 48), (12,)))


def test_borders_start_a_lookback_early(waves):
    assert (waves.train_end, waves.val_end, waves.test_end) == (1050, 1200, 1500)
    assert (
        len(waves.rows("train", 48)) == 1050
        and len(waves.rows("val", 48)) == 198
        and len(waves.rows("test", 48)) == 348
    )
    assert np.array_equal(waves.rows("test", 48)[48], waves.values[1200])
    assert window_count(348, 48, 12) == 289
    assert np.allclose(waves.values[:1050].mean(0), 0) and np.allclose(waves.values[:1050].std(0), 1)
    with pytest.raises(ValueError, match="before the first row"):
        waves.rows("val", 1100)


def test_evaluate_is_the_plain_average(waves):
    model = LinearForecaster(np.random.default_rng(1).normal(size=(24, 12)), "mean")
    w = np.concatenate([np.lib.stride_tricks.sliding_window_view(c, 36) for c in waves.rows("test", 24).T])
    error = model.predict(w[:, :24]) - w[:, 24:]
    got = evaluate(model, waves, 24, 12)
    assert (got.mse, got.mae) == (
        pytest.approx((error**2).mean(), rel=1e-12),
        pytest.approx(np.abs(error).mean(), rel=1e-12),
    )
    assert got.windows == 289 and model.mse(waves.stats("test", 24, 12)) == pytest.approx(got.mse, rel=1e-9)
    blocks = block_errors(model, waves, 24, 12, 17)  # 289 = 17 x 17: equal blocks
    assert blocks.mean() == pytest.approx(got.mse, rel=1e-9)
    with pytest.raises(ValueError, match="expected forecasts of shape"):
        evaluate(lambda x: x[:, :5], waves, 24, 12)


def test_naive_rows_and_averages(waves):
    x = np.arange(48.0)[None]
    assert np.allclose(repeat_last(48, 5).predict(x), 47)
    assert np.allclose(seasonal_naive(48, 30, 24).predict(x)[0, :26], [*range(24, 48), 24, 25])
    a, b = LinearForecaster(np.ones((24, 12)), "mean"), LinearForecaster(np.zeros((48, 12)), "last", np.ones(12))
    both = average([a, b])
    x = np.random.default_rng(2).normal(size=(3, 48))
    assert np.allclose(both.predict(x), (a.predict(x) + b.predict(x)) / 2)
    assert both.mse(waves.stats("test", 48, 12)) == pytest.approx(evaluate(both, waves, 48, 12).mse, rel=1e-9)
    with pytest.raises(ValueError, match="period must be at most"):
        seasonal_naive(12, 5, 24)


def test_selectors_never_read_the_test_part(waves):
    grids = with_folds([candidates(waves, n, 12) for n in (24, 48)], waves, 12)
    tables = [blocked_cv(waves.rows("train", n), n, 12) for n in (24, 48)]
    choices = [
        choose_on_validation(grids),
        choose_on_validation(grids, True),
        *(apply_rule(grids, rule) for rule in RULES),
        choose_by_blocks(grids, tables),
    ]
    spoiled = split("waves", np.concatenate([waves.values[:1200], np.full((300, 2), 99.0)]), ("a", "b"), waves.spec)
    grids = with_folds([candidates(spoiled, n, 12) for n in (24, 48)], spoiled, 12)
    again = [
        choose_on_validation(grids),
        choose_on_validation(grids, True),
        *(apply_rule(grids, rule) for rule in RULES),
        choose_by_blocks(grids, tables),
    ]
    for a, b in zip(choices, again):
        assert np.allclose(a.forecaster.weight, b.forecaster.weight, atol=1e-8)


def test_blocked_cv_sees_no_target_twice():
    z = np.random.default_rng(3).normal(size=(300, 1))
    base = blocked_cv(z, 6, 4, ranks=(1, 2), alphas=(0.1,), folds=5)
    count = 291
    changed = z.copy()
    changed[6 + 58 + 4 : 110] += 5.0  # targets of the second block: the others' fits may use these rows, its own not
    second = blocked_cv(changed, 6, 4, ranks=(1, 2), alphas=(0.1,), folds=5)
    edges = np.linspace(0, count, 6).astype(int)
    assert edges[1] == 58
    assert not np.allclose(base[1], second[1]) and base.shape == (5, 1, 3)


def test_table_on_a_series_that_a_dependency_ships():
    data = load_ltsf("co2")
    rows = ("chosen", "rrr-val", "ridge", "kronecker", "repeat-last", "seasonal-naive")
    table = closed_form_table(data, 13, rows)
    assert table["chosen"]["mse"] < 0.2 * table["seasonal-naive"]["mse"] < table["repeat-last"]["mse"]
    assert table["ridge"]["windows"] == window_count(len(data.rows("test", 208)), 208, 13)
    # D is (look-back / 52) x 1 and E 52 x 52: the horizon is less than a period.
    assert table["kronecker"]["mse"] < table["seasonal-naive"]["mse"] and table["kronecker"]["rank"] == 13
    frames = table["kronecker"]["setting"]["lookback"] // 52
    assert table["kronecker"]["macs"] == 52 * frames + 52 * 52
    with pytest.raises(ValueError, match="rows must be among"):
        closed_form_table(data, 13, ("patchtst",))
    with pytest.raises(ValueError, match="lookbacks: the row 'kronecker' needs one of at least a period"):
        closed_form_table(data, 13, ("kronecker",), lookbacks=(26,))


def test_the_generated_series_has_the_rank_it_says():
    data = load_ltsf("waves")
    assert data.kind == "generated" and data.values.shape == (4000, 3)
    clean = waves_of_known_rank(1000, noise=0.0)
    with pytest.warns(RuntimeWarning, match="minimum-norm"):
        weight = ridge(WindowStats.from_series(clean, 100, 30), 0.0)
    assert numerical_rank(weight, 1e-6) == 6 and np.abs(clean[:100].T @ weight - clean[100:130].T).max() < 1e-3
    grid = candidates(data, 168, 48)
    by_rank = dict(zip(grid.ranks, grid.val.min(0)))
    assert by_rank[4] > 1.3 * by_rank[6] and by_rank[6] < 1.01 * min(by_rank.values())


def test_dominant_period():
    t = np.arange(2000)
    assert dominant_period((np.sin(2 * np.pi * t / 24) + 0.01 * t)[:, None]) == 24


def test_real_counts_and_scaler():
    data = real("ETTh1")
    assert data.stats("test", 336, 96).count == 7 * 2785 and data.stats("test", 336, 720).count == 7 * 2161
    path = shared_data.require("filterbank-tsf", "ETTh1.csv")
    oil = np.genfromtxt(path, delimiter=",", skip_header=1, usecols=7)[:8640]
    assert data.mean[-1] == pytest.approx(oil.mean()) and data.std[-1] == pytest.approx(oil.std())
    illness = real("illness")
    assert len(illness.rows("test", 0)) == 193


def test_real_numbers_of_the_closed_forms():
    data = real("ETTh1")
    train, test = (data.stats(p, 512, 96).normalised("mean") for p in ("train", "test"))
    path = RidgePath(train)
    assert test.mse(path.weight(0.01)) == pytest.approx(0.3667, abs=5e-4)
    assert test.mse(path.reduced_rank(0.01, 12).weight) == pytest.approx(0.362, abs=1e-3)
    exchange = real("exchange")
    assert repeat_last(96, 96).mse(exchange.stats("test", 96, 96)) == pytest.approx(0.0811, abs=1e-4)


def test_bad_files(tmp_path):
    with pytest.raises(ValueError, match="name must be one of"):
        load_ltsf("ETTh3")
    with pytest.raises(shared_data.DataMissing, match=r"weather\.csv"):
        load_ltsf("weather")
    with pytest.raises(shared_data.DataMissing, match=r"ETTh1\.csv"):
        load_ltsf("ETTh1", tmp_path)
    rows = "\n".join(f"2020-01-01,{i % 7},{i % 5}" for i in range(200))
    (tmp_path / "national_illness.csv").write_text("datum,a,b\n" + rows)
    with pytest.raises(ValueError, match="first column must be 'date'"):
        load_ltsf("illness", tmp_path)
    (tmp_path / "national_illness.csv").write_text("date,a,b\n" + rows.replace("2020-01-01,3,3", "2020-01-01,,3", 1))
    with pytest.raises(ValueError, match="column 'a' holds nan at row 3"):
        load_ltsf("illness", tmp_path)
    (tmp_path / "ETTh1.csv").write_text("date,a,b\n" + rows)
    with pytest.raises(ValueError, match="at least 14400 rows"):
        load_ltsf("ETTh1", tmp_path)
    constant = np.stack([np.ones(300), np.arange(300) % 7], 1)
    with pytest.warns(RuntimeWarning, match=r"scaled by 1: channel \['a'\]"):
        assert split("c", constant, ("a", "b"), DataSpec("", None, 7)).std[0] == 1.0
    assert os.path.exists(tmp_path / "ETTh1.csv")


def test_rehearsal_reads_training_and_validation_rows_only(waves):
    spoiled = split("waves", np.concatenate([waves.values[:1200], np.full((300, 2), 99.0)]), ("a", "b"), waves.spec)
    base, again = rehearse(waves, 12, (24, 48)), rehearse(spoiled, 12, (24, 48))
    assert len(base) == 12 and {(p["val"], p["test"]) for p in base} == set(itertools.permutations(range(4), 2))
    for a, b in zip(base, again):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-6)


def test_a_rehearsed_loss_is_the_loss_of_that_fit(waves):
    """One pair by hand: fit on blocks 2 and 3, penalty on block 0, loss on block 1, for the average over look-backs."""
    edges, blocks = np.linspace(0, 1200, 5).astype(int), []
    for a, b in itertools.pairwise(edges):
        blocks.append(WindowStats.from_series(waves.values[max(0, a - 48) : b], 48, 12))
    assert [b.count for b in blocks] == [2 * (300 - 48 - 12 + 1), *[2 * (300 - 12 + 1)] * 3]
    members = []
    for n in (24, 48):
        train = blocks[2].merge(blocks[3]).shorter(n).normalised("mean")
        val = blocks[0].shorter(n).normalised("mean")
        fits = [
            (val.mse(reduced_rank(train, r, a).weight), r, a) for r in (1, 2, 4, 6, 8, 12) for a in REHEARSAL_ALPHAS
        ]
        _, r, a = min(fits)
        members.append(LinearForecaster(reduced_rank(train, r, a).weight, "mean"))
    expected = average(members).mse(blocks[1])
    (pair,) = (p for p in rehearse(waves, 12, (24, 48)) if (p["val"], p["test"]) == (0, 1))
    assert pair["loss"]["average over look-backs"] == pytest.approx(expected, rel=1e-6)
    # The penalties of rank 12 by blocks: those of the blocks 0, 2 and 3, each by the fit on the other two.
    members = []
    for n in (24, 48):
        short = [b.shorter(n) for b in blocks]
        losses = np.zeros(len(REHEARSAL_ALPHAS))
        for held in (0, 2, 3):
            one, two = (short[i] for i in (0, 2, 3) if i != held)
            train, val = one.merge(two).normalised("mean"), short[held].normalised("mean")
            losses += [val.mse(reduced_rank(train, 12, a).weight) for a in REHEARSAL_ALPHAS]
        train = short[2].merge(short[3]).normalised("mean")
        best = REHEARSAL_ALPHAS[int(losses.argmin())]
        members.append(LinearForecaster(reduced_rank(train, 12, best).weight, "mean"))
    rule = "average over look-backs and ranks from 12 on, penalties by blocked CV"
    assert pair["loss"][rule] == pytest.approx(average(members).mse(blocks[1]), rel=1e-6)


def test_decision_is_the_smallest_rule_within_one_standard_error():
    names = [r.name for r in RULES]

    def rehearsal(gains):
        losses = [{n: float(np.exp(-g[i])) for i, n in enumerate(names)} for g in gains]
        return [{"val": 0, "test": k, "loss": loss} for k, loss in enumerate(losses)]

    others = len(RULES) - 2
    flat, better = [0.0] * len(RULES), [0.0, 0.1, *[0.11] * others]
    # Block by block the gap between rules 1 and 2 is 0.01 or -0.01: within its standard error; rule 0 is far off.
    worse = [0.0, 0.1, *[0.095] * others]
    rule, means = decide({("x", 1): rehearsal([better, worse, better])})
    assert rule == RULES[1] and means[names[1]] == pytest.approx(-0.1)
    assert decide({("x", 1): rehearsal([flat, flat])})[0] == RULES[0]
    sure = [0.0, 0.1, *[0.2] * others]
    assert decide({("x", 1): rehearsal([sure, sure]), ("x", 2): rehearsal([sure, sure])})[0] == RULES[2]


def test_rules_and_their_costs(waves):
    grids = with_folds([candidates(waves, n, 12) for n in (24, 48)], waves, 12)
    rules = {r.name: r for r in RULES}
    assert len(rules) == 18 and sum(r.by_blocks for r in RULES) == 9 and chosen_rule() in RULES
    single = apply_rule(grids, rules["smallest validation error"])
    best = choose_on_validation(grids)
    assert np.allclose(single.forecaster.weight, best.forecaster.weight)
    assert single.forecaster.macs == best.setting["rank"] * (best.setting["lookback"] + 12)
    both = apply_rule(grids, rules["average over look-backs"])
    assert len(both.setting["members"]) == 2 and both.forecaster.lookback == 48
    every = apply_rule(grids, rules["average over look-backs and ranks from 1 on"])
    assert len(every.setting["members"]) == 12 and every.forecaster.macs == min(24 * 12 + 48 * 12, 48 * 12)
    short = apply_rule(
        grids, rules["average over look-backs and ranks from 48 on"]
    )  # none exists: the largest stands in
    assert [m["rank"] for m in short.setting["members"]] == [12, 12]
    with pytest.raises(ValueError, match="needs losses on blocks"):
        apply_rule([candidates(waves, 24, 12)], rules["blocked CV + 1 SE"])


def test_rules_by_blocks_by_hand(waves):
    """The losses on a block are those of a fit on the other three; penalty and rank follow from them alone."""
    edges, blocks = np.linspace(0, 1200, 5).astype(int), []
    for a, b in itertools.pairwise(edges):
        blocks.append(WindowStats.from_series(waves.values[max(0, a - 48) : b], 48, 12))
    plain = [candidates(waves, n, 12) for n in (24, 48)]
    grids = with_folds(plain, waves, 12)
    for grid in grids:
        for k in range(4):
            rest = [b.shorter(grid.lookback).normalised("mean") for i, b in enumerate(blocks) if i != k]
            fit = reduced_rank(rest[0].merge(rest[1]).merge(rest[2]), 4, grid.alphas[4]).weight
            held = blocks[k].shorter(grid.lookback).normalised("mean")
            assert grid.folds[k, 4, grid.ranks.index(4)] == pytest.approx(held.mse(fit), rel=1e-9)
        assert np.isfinite(grid.folds[0, ::2]).all() and np.isinf(grid.folds[0, 1::2]).all()
        rows = grid.folds.mean(0).argmin(0)
        table = grid.folds[:, rows, np.arange(len(grid.ranks))]
        gap = table - table[:, [table.mean(0).argmin()]]
        inside = gap.mean(0) <= gap.std(0, ddof=1) / 2 + 1e-15
        assert grid.one_rank(True) == int(np.flatnonzero(inside)[0])
    rule = next(r for r in RULES if r.name == "average over look-backs and ranks from 8 on, penalties by blocked CV")
    members = apply_rule(grids, rule).setting["members"]
    assert [(m["lookback"], m["rank"]) for m in members] == [(24, 8), (24, 12), (48, 8), (48, 12)]
    for member in members:
        grid = next(g for g in grids if g.lookback == member["lookback"])
        column = grid.folds.mean(0)[:, grid.ranks.index(member["rank"])]
        assert member["alpha"] == grid.alphas[int(column.argmin())]
    # On validation the same rule may take other penalties; its fits are the same ones.
    assert np.array_equal(plain[0].val, grids[0].val)


def test_a_block_without_a_whole_window_is_no_fold(waves):
    """On a short series the first of the four blocks may be shorter than a window: three are judged on."""
    short = split("short", waves.values[:300], ("a", "b"), waves.spec)
    rows = short.val_end
    lookback = rows // 4 - 5
    [grid] = with_folds([candidates(short, lookback, 12)], short, 12)
    assert grid.folds is not None and len(grid.folds) == 3 and np.isfinite(grid.folds[:, 0]).all()
    with pytest.raises(ValueError, match="in two of 4 blocks"):
        with_folds([candidates(short, lookback, 12)], short, 150)
