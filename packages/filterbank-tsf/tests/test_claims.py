"""What the claims compute by themselves: rank correlations with weights, and the order of the record."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from neurips26.filterbank_tsf import claims
from neurips26.filterbank_tsf.choices import DEFAULTS
from neurips26.filterbank_tsf.claims.complexity import clustered_correlation, weighted_spearman
from neurips26.filterbank_tsf.nn import CORES, FilterBank


def test_weighted_rank_correlation_equals_repeated_pairs():
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 6, size=(20, 2)).astype(float)  # with ties
    weights = rng.integers(0, 4, size=(5, 20)).astype(float)
    for found, times in zip(weighted_spearman(pairs, weights), weights):
        assert found == pytest.approx(spearmanr(*pairs.repeat(times.astype(int), axis=0).T).statistic, abs=1e-12)
    assert np.isnan(weighted_spearman(np.ones((4, 2)), np.ones((1, 4))))


def test_interval_of_a_rank_correlation_draws_whole_data_sets():
    rng = np.random.default_rng(1)
    cells = [
        {"factors": {"data": name, "horizon": h}, "seed": 0, "method": method, "value": float(value)}
        for name in "abcd" for h in range(3) for method, value in zip("xy", rng.normal(size=2))
    ]  # fmt: skip
    effect, low, high = clustered_correlation(cells, "x", "y", 0.9)
    table = np.array([c["value"] for c in cells]).reshape(4, 3, 2)
    assert effect == pytest.approx(spearmanr(*table.reshape(-1, 2).T).statistic)
    draws = np.random.default_rng(0).integers(4, size=(2000, 4))
    by_hand = [spearmanr(*table[d].reshape(-1, 2).T).statistic for d in draws[:300]]
    assert low <= np.quantile(by_hand, 0.2) and high >= np.quantile(by_hand, 0.8)


def test_defaults_are_the_choices():
    bank = FilterBank(48, 24)
    assert (bank.norm.mode, bank.core_kind) == (DEFAULTS.norm, DEFAULTS.core) and DEFAULTS.core in CORES


def test_every_claim_is_exported():
    marked = [name for name, value in vars(claims).items() if hasattr(value, "claim")]
    assert len(marked) == 21 and set(marked) <= set(claims.__all__)
