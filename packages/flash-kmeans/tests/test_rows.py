"""Points from files and shards: the same result as from memory, bounded memory, and errors that name the file."""

import numpy as np
import pytest

from neurips26.flash_kmeans import assign, batched_kmeans, kmeans
from neurips26.flash_kmeans.plan import cpu_plan
from neurips26.flash_kmeans.rows import rows_of, summarise


@pytest.fixture
def x():
    return np.random.default_rng(0).standard_normal((2000, 12)).astype(np.float32)


def test_files_shards_and_chunks_give_the_same_bits(tmp_path, x):
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "half.npy", x[900:])
    base = kmeans(x, 11, init=x[:11], max_iter=4)
    sources = {
        "path": tmp_path / "x.npy",
        "text path": str(tmp_path / "x.npy"),
        "memmap": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "shards": [x[:900], tmp_path / "half.npy"],
    }
    for name, source in sources.items():
        for options in (dict(), dict(memory_limit=200_000), dict(chunk_rows=37), dict(chunk_rows=1000)):
            other = kmeans(source, 11, init=x[:11], max_iter=4, **options)
            assert (other.centroids == base.centroids).all() and (other.labels == base.labels).all(), (name, options)
            assert other.inertia == base.inertia


def test_few_rows_at_a_time(x):
    small = x[:300]
    whole = kmeans(small, 5, init=small[:5])
    for size in (1, 7, 300):
        other = kmeans(small, 5, init=small[:5], chunk_rows=size)
        assert (other.centroids == whole.centroids).all() and (other.labels == whole.labels).all()


def test_a_slice_of_a_memmap_reads_the_right_rows(tmp_path, x):
    np.save(tmp_path / "x.npy", x)
    part = np.load(tmp_path / "x.npy", mmap_mode="r")[1000:1500]
    rows = rows_of(part, through_file=True)
    assert type(rows).__name__ == "FileRows" and (rows.read(3, 9) == x[1003:1009]).all()


def test_the_plan_does_not_depend_on_threads_and_keeps_to_the_limit():
    for n, k, d in [(1, 1, 1), (1000, 5, 3), (10**6, 1000, 64), (10**9, 32_768, 128)]:
        plans = [cpu_plan(n, k, d, threads=t) for t in (1, 2, 64)]
        assert len({p.slab_rows for p in plans}) == 1 and all(p.threads <= -(-n // p.slab_rows) for p in plans)
    for limit in (10**8, 10**7, 10**6):
        plan = cpu_plan(10**7, 100, 128, threads=4, memory_limit=limit, view=False)
        assert plan.bytes <= limit and plan.piece_rows <= plan.slab_rows


def test_summary(x):
    weight = np.random.default_rng(1).random(len(x)).astype(np.float32)
    s = summarise(rows_of(x + 100), weight)
    np.testing.assert_allclose(s.mean, (x + 100).mean(0, dtype=np.float64), rtol=1e-7)
    assert s.variance == pytest.approx(x.var(axis=0, dtype=np.float64).mean(), rel=1e-5)
    shifted = x + np.float32(100)
    expected = (weight.astype(np.float64)[:, None] * (shifted - s.mean) ** 2).sum()
    assert s.squares == pytest.approx(expected, rel=1e-4) and s.mass == pytest.approx(
        weight.sum(dtype=np.float64), rel=1e-6
    )
    huge = np.full((3, 2), 1e30, np.float32)
    assert summarise(rows_of(huge)).variance == 0.0


@pytest.mark.bad_input
def test_bad_files(tmp_path, x):
    np.save(tmp_path / "x.npy", x)
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:5000])
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "one.npy", x[0])
    np.save(tmp_path / "object.npy", np.array([[None]]), allow_pickle=True)
    cases = {
        "cut.npy": (ValueError, r"cut.npy: expected \d+ bytes for 2000 x 12 float32, got 5000 \(truncated file\)"),
        "text.npy": (ValueError, "text.npy: not a readable .npy file"),
        "one.npy": (ValueError, r"one.npy: expected a C-ordered array \(N, D\), got \(12,\)"),
        "object.npy": (TypeError, "object.npy: expected numbers, got dtype object"),
        "none.npy": (FileNotFoundError, "none.npy: no such file"),
    }
    for name, (error, message) in cases.items():
        with pytest.raises(error, match=message):
            kmeans(tmp_path / name, 2)
    with pytest.raises(ValueError, match="shards with one number of features"):
        kmeans([x, x[:, :3]], 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*list(cases)[:4], "x.npy"])


def test_a_file_cut_while_it_is_read(tmp_path, x):
    np.save(tmp_path / "x.npy", x)
    rows = rows_of(tmp_path / "x.npy")
    with open(tmp_path / "x.npy", "r+b") as file:
        file.truncate(1000)
    with pytest.raises(ValueError, match="the file ended while rows 0 to 2000 were read"):
        rows.read(0, 2000)


@pytest.mark.bad_input
@pytest.mark.parametrize(("dtype", "large", "small"), [(np.float32, 1e19, 1e-25), (np.float64, 1e155, 1e-165)])
def test_squares_out_of_range_are_an_error(dtype, large, small):
    """They would overflow or vanish, and every label would be 0 without a word."""
    x = np.random.default_rng(0).normal(size=(300, 4))
    for call in (
        lambda y: kmeans(y, 2, seed=0),
        lambda y: batched_kmeans(y[None], 2, seed=0),
        lambda y: assign(y, y[:2]),
    ):
        with pytest.raises(ValueError, match=r"row 0: expected squared distances to the mean .* got more than"):
            call((x * large).astype(dtype))
        with pytest.raises(ValueError, match=r"expected squared distances to the mean .* scale the data"):
            call((x * small).astype(dtype))
    with pytest.raises(ValueError, match="c: row 0: expected squared distances"):
        assign(x.astype(dtype), np.array([[0.0] * 4, [large] * 4]).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scales_within_range_change_nothing(dtype):
    """Powers of two are exact, so labels stay and centroids scale; equal points are no error at any scale."""
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(dtype)
    start = kmeans(x, 3, seed=0)
    for scale in (2.0**-55, 2.0**55):
        found = kmeans(x * dtype(scale), 3, seed=0)
        assert (found.labels == start.labels).all()
        np.testing.assert_array_equal(found.centroids, start.centroids * dtype(scale))
    for value in (0.0, 1e-30, 1e30):
        with pytest.warns(UserWarning, match="fewer different points"):
            assert kmeans(np.full((20, 3), value, dtype), 2, seed=0).inertia == 0.0


def test_wide_integers_keep_their_values():
    """float32 holds integers up to 2^24 only; 32-bit and wider ones are computed in float64."""
    x = np.array([[2**24], [2**24 + 1], [2**24 + 2], [2**24 + 3]])
    found = kmeans(x, 4, init=x, max_iter=3)
    assert sorted(found.labels) == [0, 1, 2, 3] and found.inertia == 0.0
    assert kmeans(x.astype(np.int16), 1, seed=0).centroids.dtype == np.float32


def test_shards_may_be_given_as_text(tmp_path, x):
    for i, part in enumerate((x[:900], x[900:])):
        np.save(tmp_path / f"{i}.npy", part)
    found = kmeans([str(tmp_path / "0.npy"), str(tmp_path / "1.npy")], 5, init=x[:5], max_iter=3)
    assert (found.labels == kmeans(x, 5, init=x[:5], max_iter=3).labels).all()
