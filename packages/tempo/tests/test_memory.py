import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neurips26.tempo import memory as memories
from neurips26.tempo.memory import ScoreMemory

SAMPLE = jax.jit(memories.sample, static_argnums=(0, 3))


def fill(cfg, scores, d=2):
    memory = cfg.empty(d)
    put = jax.jit(lambda m, o, s: memories.add(cfg, m, o, s, jnp.ones((), bool)))
    for i, s in enumerate(scores):
        memory = put(memory, jnp.full(d, float(i)), jnp.asarray(float(s)))
    return memory


def test_importance_weights_of_a_known_case():
    p = jnp.array([0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(memories.weights(p, 4, 1.0), [1, 0.5, 1 / 3, 0.25], rtol=1e-6)


def test_probabilities_are_proportional_to_distance_from_the_easiest():
    # distances 3, 2, 1, 0 of a range of 3, plus 2 % of the range
    p = memories.probabilities(jnp.array([0.0, 1.0, 2.0, 3.0]), jnp.ones(4, bool), 1.0)
    raw = np.array([1, 2 / 3, 1 / 3, 0]) + 0.02
    np.testing.assert_allclose(p, raw / raw.sum(), rtol=1e-6)
    easy = memories.probabilities(jnp.array([0.0, 1.0, 2.0, 3.0]), jnp.ones(4, bool), -1.0)
    assert np.argmax(easy) == 3


def test_empirical_frequencies_and_unbiasedness():
    cfg = ScoreMemory(4, alpha=1.0)
    memory = fill(cfg, [0, 1, 2, 3])
    p = np.asarray(memories.probabilities(memory.score, memory.stamp >= 0, 1.0))
    n = 100_000
    index, w = SAMPLE(cfg, memory, jax.random.key(0), n, 1.0)
    freq = np.bincount(np.asarray(index), minlength=4) / n
    assert (np.abs(freq - p) < 3 * np.sqrt(p * (1 - p) / n)).all()
    f = np.array([1.0, -2.0, 5.0, 0.5])
    top = 1 / (4 * p.min())
    estimate = (np.asarray(w) * f[np.asarray(index)]).mean() * top
    assert estimate == pytest.approx(f.mean(), abs=0.1)


def test_alpha_zero_is_uniform_with_unit_weights():
    cfg = ScoreMemory(8, alpha=0.0)
    memory = fill(cfg, np.random.default_rng(0).normal(size=8))
    np.testing.assert_allclose(memories.probabilities(memory.score, memory.stamp >= 0, 0.0), 1 / 8, rtol=1e-6)
    _, w = SAMPLE(cfg, memory, jax.random.key(0), 100, 0.4)
    assert (np.asarray(w) == 1).all()


def test_fifo_drops_the_oldest():
    memory = fill(ScoreMemory(512), np.zeros(600))
    assert sorted(np.asarray(memory.obs[:, 0]).tolist()) == list(range(88, 600))


def test_easiest_keeps_the_hardest_and_the_newest():
    cfg = ScoreMemory(16, eviction="easiest", recent_min=4)
    scores = np.random.default_rng(0).permutation(40).astype(float)
    memory = fill(cfg, scores)
    kept = set(np.asarray(memory.obs[:, 0]).astype(int).tolist())
    assert {36, 37, 38, 39} <= kept  # the newest
    assert set(np.argsort(scores)[:8].tolist()) <= kept  # the hardest
    assert len(kept) == 16


def test_scores_change_only_where_sampled():
    memory = fill(ScoreMemory(8), range(8))
    after = memories.set_scores(memory, jnp.array([2, 5]), jnp.array([-1.0, -2.0]))
    np.testing.assert_array_equal(after.score, [0, 1, -1, 3, 4, -2, 6, 7])


def test_samples_come_from_the_filled_part_only():
    cfg = ScoreMemory(64, alpha=0.6)
    memory = fill(cfg, [5, 5, 4])
    index, w = SAMPLE(cfg, memory, jax.random.key(1), 500, 0.4)
    assert set(np.asarray(index).tolist()) == {0, 1, 2} and (np.asarray(w) > 0).all()
    _, none = SAMPLE(cfg, cfg.empty(2), jax.random.key(1), 4, 0.4)
    assert (np.asarray(none) == 0).all()


def test_equal_nan_and_huge_scores():
    filled = jnp.ones(4, bool)
    np.testing.assert_allclose(memories.probabilities(jnp.full(4, 7.0), filled, 0.6), 0.25, rtol=1e-6)
    p = np.asarray(memories.probabilities(jnp.array([1.0, jnp.nan, 2.0, 3.0]), filled, 0.6))
    assert p[1] == 0 and p.sum() == pytest.approx(1)
    p = np.asarray(memories.probabilities(jnp.array([-1e30, 0.0, 1e30, 3e38]), filled, 0.6))
    assert np.isfinite(p).all() and p.sum() == pytest.approx(1, rel=1e-5)


def test_rejected_entries_leave_no_trace():
    cfg = ScoreMemory(4)
    memory = fill(cfg, [1, 2])
    after = memories.add(cfg, memory, jnp.full(2, 9.0), jnp.asarray(9.0), jnp.zeros((), bool))
    for a, b in zip(memory, after, strict=True):
        np.testing.assert_array_equal(a, b)
