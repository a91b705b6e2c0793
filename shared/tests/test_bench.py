import gc
import time

import numpy as np
import pytest

from neurips26.shared import bench


@pytest.fixture(autouse=True, scope="module")
def short_collections():
    """Every timing begins with a collection of garbage: a second each while the modules of other tests' libraries take part."""
    gc.freeze()
    yield
    gc.unfreeze()


def spin(milliseconds):
    """Uses CPU, so that CPU seconds and wall seconds agree on a free core."""

    def run():
        end = time.process_time() + milliseconds / 1e3
        while time.process_time() < end:
            pass

    return run


def test_ratio_of_known_work():
    result = bench.ratio(spin(4), spin(8), repeats=5, min_seconds=0.005)
    assert result.cpu == pytest.approx(0.5, rel=0.1)
    assert result.low <= result.cpu <= result.high
    assert len(result.pairs) == len(result.ours.cpu) == len(result.peer.wall) == 5
    assert result.ours.median == pytest.approx(0.004, rel=0.2)
    assert 0 < result.gemm_seconds < 1
    assert "the peer's CPU time" in str(result)


def test_pairs_are_interleaved_in_alternating_order():
    log = []
    bench.ratio(lambda: log.append("o"), lambda: log.append("p"), repeats=4, warmup=0, min_seconds=0.0)
    assert "".join(log[2:]) == "oppooppo"  # the first two calls set the number of calls a repeat


def test_short_callables_are_repeated_until_the_clock_resolves_them():
    # One look decides how many; where other work takes the core in that moment it sees a long call. Not ten times, though.
    timings = [bench.measure(lambda: None, repeats=2, min_seconds=0.01) for _ in range(10)]
    assert max(timing.calls for timing in timings) > 100
    assert min(timing.median for timing in timings) < 1e-4


def test_sleep_costs_wall_but_no_cpu():
    result = bench.ratio(lambda: time.sleep(0.02), spin(4), repeats=3, min_seconds=0.0)
    assert min(result.ours.wall) >= 0.02
    assert result.cpu < 0.5
    assert result.wall > 10 * result.cpu


@pytest.mark.parametrize("power", [1, 2])
def test_growth_finds_the_exponent(power):
    result = bench.growth(lambda size: spin(size**power), [1, 2, 4], repeats=3, min_seconds=0.0)
    assert result.slope == pytest.approx(power, abs=0.12)
    assert result.sizes == (1.0, 2.0, 4.0)
    assert result.low <= result.slope <= result.high


def test_growth_does_not_time_the_making():
    def make(size):
        spin(30)()
        return spin(2)

    assert max(bench.growth(make, [1, 2, 3], repeats=1, min_seconds=0.0).seconds) < 0.01


def test_contention_is_read_off_the_reference():
    free, shared = [(1.0, 1.0), (1.0, 1.02), (1.0, 1.5)], [(1.0, 1.9), (1.0, 2.1), (1.0, 1.0)]
    assert not bench._contended(free, 1)
    assert bench._contended(shared, 1)
    assert bench._contended(free, 2)  # two threads that together got one core


def test_sync_is_called_around_every_reading():
    calls = []
    bench.measure(lambda: calls.append("f"), repeats=2, warmup=0, min_seconds=0.0, sync=lambda: calls.append("s"))
    assert "".join(calls) == "sfs" * 3


def test_garbage_collection_is_on_again():
    with pytest.raises(ZeroDivisionError):
        bench.measure(lambda: 1 / 0)
    assert gc.isenabled()


def test_reference_is_a_matrix_product():
    out = bench._reference()()
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((bench.GEMM_SIZE, bench.GEMM_SIZE), dtype=np.float32) for _ in range(2))
    np.testing.assert_allclose(out[:3], a[:3].astype(float) @ b.astype(float), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bench.ratio(int, int, repeats=0), "repeats: expected an integer >= 1"),
        (lambda: bench.measure(int, warmup=-1), "warmup: expected an integer >= 0"),
        (lambda: bench.measure(int, min_seconds=-0.1), "min_seconds: expected a finite number >= 0"),
        (lambda: bench.measure(int, threads=0), "n: expected an integer >= 1"),
        (lambda: bench.growth(lambda s: int, [1, 2]), "sizes: expected at least 3 distinct"),
        (lambda: bench.growth(lambda s: int, [0, 1, 2]), "sizes: expected at least 3 distinct positive"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
