"""The Triton kernels themselves, run by Triton's interpreter on shapes that are no multiples of a tile."""

import dataclasses
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from neurips26.flash_kmeans import gpu_assign
from neurips26.flash_kmeans.datasets import tokens
from neurips26.flash_kmeans.gpu_assign import launch_assign, launch_recheck
from neurips26.flash_kmeans.gpu_plan import ARCHITECTURES, plan_assign, plan_recheck, plan_update
from neurips26.flash_kmeans.gpu_update import launch_update, work_list
from neurips26.flash_kmeans.precision import assign_points

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = [torch.float32, torch.float16, torch.bfloat16]

pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not gpu_assign.INTERPRETED, reason="the kernels were imported without the interpreter"
)


def points(b, n, k, d, dtype, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(b, n, d, generator=g).to(dtype)
    return x.to(DEVICE), torch.randn(b, k, d, generator=g).to(DEVICE)


def scores(x, c):
    return (c.double() ** 2).sum(-1)[:, None, :] - 2 * x.double() @ c.double().transpose(1, 2)


def agree(labels, x, c, ties=1e-6):
    """Labels attain the float64 minimum up to rounding ties."""
    s = scores(x, c)
    got = s.gather(-1, labels.long()[..., None])[..., 0]
    scale = (c.double() ** 2).sum(-1).amax() + (x.double() ** 2).sum(-1)
    return bool((got - s.amin(-1) <= ties * scale).all())


SHAPES = [
    (1, 1, 1, 1),
    (1, 63, 2, 2),
    (2, 65, 63, 3),
    (1, 64, 64, 15),
    (1, 130, 65, 16),
    (2, 100, 37, 17),
    (1, 70, 5, 100),
    (1, 65, 66, 192),
    (1, 33, 20, 320),
    (1, 40, 9, 513),
    (1, 33, 5, 768),
    (1, 17, 3, 1536),
    (1, 1000, 1, 4),
    (2, 7, 1000, 12),
]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_assignment_equals_brute_force(shape, dtype):
    x, c = points(*shape, dtype)
    for precision in ("ieee", "certified"):
        out = assign_points(x, c, precision=precision, distances=True)
        assert agree(out.labels, x, c)
        expected = ((x.double() - torch.gather(c.double(), 1, out.labels.long()[..., None].expand_as(x))) ** 2).sum(-1)
        assert torch.allclose(out.distances.double(), expected, rtol=1e-4, atol=1e-4 * shape[3])


@pytest.mark.parametrize("precision", ["ieee", "fast", "certified"])
def test_centroids_may_have_any_strides(precision):
    x, c = points(1, 70, 40, 20, torch.float32)
    every_other, crossed = c[:, ::2], c.transpose(1, 2).contiguous().transpose(1, 2)
    for given in (every_other, crossed):
        assert agree(assign_points(x, given, precision=precision).labels, x, given)


def test_fast_labels_may_differ_and_certified_repairs_them():
    x, c = points(1, 400, 64, 32, torch.float16)
    c = c * 1e-3 + 1.0  # near-ties: half precision rounds the centroids together
    fast = assign_points(x, c, precision="fast")
    certified = assign_points(x, c, precision="certified")
    assert not agree(fast.labels, x, c)
    assert agree(certified.labels, x, c)
    assert 0 < int(certified.n_rechecked[0]) <= 400


@pytest.mark.parametrize("d", [32, 320], ids=["one tile of D", "slices of D"])
def test_bfloat16_centroids_keep_what_rounding_takes(d):
    """Bound and product know both parts of a centroid: few rows need a second look, and none of the others is wrong."""
    x, c = points(1, 150, 40, d, torch.float32)
    x, c = (1 + 0.05 * x).to(torch.bfloat16), 1 + 0.05 * c
    assert not agree(assign_points(x, c, precision="fast").labels, x, c)
    out = assign_points(x, c, precision="certified")
    assert agree(out.labels, x, c) and int(out.n_rechecked[0]) < 130


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_certified_labels_of_token_embeddings_are_those_of_float32(dtype):
    """Norms from 0.4 to 38: single precision operands go through tensor cores as tf32."""
    rows = torch.from_numpy(tokens()[::80].copy())  # (400, 256)
    x, c = rows[None].to(dtype).to(DEVICE), rows[None, ::7].contiguous().to(DEVICE)
    out = assign_points(x, c, precision="certified")
    assert agree(out.labels, x, c)
    single = (c * c).sum(-1)[:, None, :] - 2 * x.float() @ c.transpose(1, 2)
    assert (out.labels == single.argmin(-1)).float().mean() > 0.995  # apart only where single precision itself ties
    assert 0 <= int(out.n_rechecked[0]) <= 400


def test_a_well_separated_problem_is_certified_without_a_second_pass():
    c = torch.eye(8, device=DEVICE)[None] * 10
    x = c.repeat(1, 20, 1).to(torch.float16)
    out = assign_points(x, c, precision="certified")
    assert int(out.n_rechecked[0]) == 0
    assert out.labels[0].tolist() == list(range(8)) * 20


def test_ties_go_to_the_lowest_index_across_tiles():
    c = torch.zeros(1, 300, 4, device=DEVICE)
    x, _ = points(1, 65, 1, 4, torch.float32)
    for precision in ("ieee", "fast", "certified"):
        assert assign_points(x, c, precision=precision).labels.max() == 0


def test_padding_never_wins():
    # Every real score of the cosine form is positive; a padded centroid would score 0.
    x = torch.ones(1, 70, 20, device=DEVICE)
    c = -torch.rand(1, 4, 20, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    out = assign_points(x, c, cosine=True)
    assert int(out.labels.max()) <= 3
    assert agree_cosine(out.labels, x, c)


def agree_cosine(labels, x, c):
    return bool((labels.long() == (-(x.double() @ c.double().transpose(1, 2))).argmin(-1)).all())


@pytest.mark.parametrize("view", ["transposed", "stepped", "expanded"])
def test_any_strides(view):
    base = torch.randn(2, 24, 70, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    x = {"transposed": base.transpose(1, 2), "stepped": base[:, ::2], "expanded": base[:1].expand(3, 24, 70)}[view]
    c = torch.randn(x.shape[0], 9, x.shape[2], generator=torch.Generator().manual_seed(2)).to(DEVICE)
    out, same = assign_points(x, c), assign_points(x.contiguous(), c)
    assert torch.equal(out.labels, same.labels)
    plan = plan_update(x.shape[1], 9, x.shape[2], 4)
    assert torch.equal(launch_update(x, out.labels, 9, plan)[0], launch_update(x.contiguous(), out.labels, 9, plan)[0])


def test_top_two_scores():
    x, c = points(2, 65, 130, 20, torch.float32)
    plan = plan_assign(2, 65, 130, 20, 4, "ieee")
    out = launch_assign(x, c, (c**2).sum(-1), plan, top2=True)
    best = scores(x, c).topk(2, largest=False).values
    assert torch.allclose(out.best.double(), best[..., 0], atol=1e-4)
    assert torch.allclose(out.second.double(), best[..., 1], atol=1e-4)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(1, 1000, 37, 20), (2, 130, 25, 3), (1, 1, 1, 1), (1, 300, 4, 200)], ids=str)
def test_segment_sums_equal_a_scatter(shape, weighted, deterministic):
    b, n, k, d = shape
    x, _ = points(b, n, k, d, torch.float16)
    g = torch.Generator().manual_seed(3)
    # Zipf-like sizes with empty clusters.
    labels = (torch.rand(b, n, generator=g) ** 4 * k).int().to(DEVICE)
    w = torch.rand(b, n, generator=g).to(DEVICE) if weighted else None
    sums, mass = launch_update(x, labels, k, plan_update(n, k, d, 2), weights=w, deterministic=deterministic)
    for i in range(b):
        wi = torch.ones(n, dtype=torch.float64, device=DEVICE) if w is None else w[i].double()
        expected = torch.zeros(k, d, dtype=torch.float64, device=DEVICE)
        expected.index_add_(0, labels[i].long(), x[i].double() * wi[:, None])
        assert torch.allclose(sums[i].double(), expected, rtol=1e-6, atol=1e-5)
        expected_mass = torch.zeros(k, dtype=torch.float64, device=DEVICE).index_add_(0, labels[i].long(), wi)
        assert torch.allclose(mass[i].double(), expected_mass, rtol=1e-6)


@pytest.mark.parametrize(("n", "k", "piece"), [(1000, 37, 64), (10, 50, 64), (513, 1, 256)])
def test_the_work_list_is_bounded_and_covers_every_row_once(n, k, piece):
    labels = (torch.rand(1, n, generator=torch.Generator().manual_seed(0)) ** 3 * k).int()
    work = work_list(labels, k, piece)
    assert int(work.first[-1]) <= work.owner.numel() <= n // piece + k
    assert sorted(work.order.tolist()) == list(range(n))
    sizes = torch.bincount(labels[0], minlength=k)
    assert torch.equal(work.counts[0], sizes)
    pieces = torch.bincount(work.owner[work.owner >= 0], minlength=k)
    assert torch.equal(pieces, (sizes + piece - 1) // piece)


def test_the_deterministic_update_repeats_bitwise():
    x, _ = points(1, 400, 1, 33, torch.float32)
    labels = torch.randint(0, 11, (1, 400), generator=torch.Generator().manual_seed(0)).int().to(DEVICE)
    plan = plan_update(400, 11, 33, 4)
    first = launch_update(x, labels, 11, plan)[0]
    assert all(torch.equal(first, launch_update(x, labels, 11, plan)[0]) for _ in range(2))


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("itemsize", [2, 4])
def test_the_planner_is_pure_and_fits_every_device(arch, itemsize):
    device = ARCHITECTURES[arch]
    for d in (1, 3, 16, 64, 100, 128, 256, 512, 768, 1536, 5000):
        for n, k in ((100, 8), (65_536, 1024), (8_000_000, 16_384)):
            for precision in ("ieee", "tf32x3", "fast", "certified"):
                plan = plan_assign(1, n, k, d, itemsize, precision, device)
                assert plan == plan_assign(1, n, k, d, itemsize, precision, device)
                assert plan.shared_bytes <= device.shared_bytes
                assert plan.tiny == (d <= 8)


def test_the_planner_serves_a_device_with_little_shared_memory():
    small = dataclasses.replace(ARCHITECTURES[75], shared_bytes=48 << 10)
    for d in (1, 17, 128, 256, 257, 1536, 5000):
        for itemsize in (2, 4):
            for precision in ("ieee", "tf32x3", "fast", "certified"):
                plan = plan_assign(
                    1, 100_000, 1000, d, itemsize, precision, small, 2 if precision == "certified" else 1
                )
                assert plan.shared_bytes <= 48 << 10 and plan.block_n >= 32 and plan.block_k >= 32
    with pytest.raises(ValueError, match="expected a tile that fits 1024 bytes of shared memory, found none for D=128"):
        plan_assign(1, 1000, 100, 128, 2, "fast", dataclasses.replace(small, shared_bytes=1024))


def test_a_broken_kernel_is_seen(monkeypatch):
    """The brute-force comparison is not vacuous: a plan that reads half of D gives wrong labels."""
    x, c = points(1, 130, 33, 20, torch.float32)
    plan = plan_assign(1, 130, 33, 20, 4, "fast")
    assert agree(launch_assign(x, c, (c**2).sum(-1), plan).labels, x, c)
    if plan.block_d == 0:
        wrong = launch_assign(
            x[..., :16], c[..., :16].contiguous(), (c**2).sum(-1), dataclasses.replace(plan, d_pad=16)
        )
        assert not agree(wrong.labels, x, c)


def test_few_plans_serve_all_shapes_of_one_width():
    for d in (3, 64, 100, 512):
        plans = {
            (p.block_n, p.block_k, p.block_d, p.num_warps, p.num_stages, p.dot)
            for n in (100, 3000, 65_536, 8_000_000)
            for k in (4, 64, 1000, 50_000)
            for b in (1, 64)
            for p in [plan_assign(b, n, k, d, 2)]
        }
        assert len(plans) <= 3


def test_the_second_look_covers_every_problem_of_a_batch():
    """Flagged rows of all problems go through one launch; every problem has its own list."""
    x, c = points(3, 90, 20, 12, torch.float32)
    norms, exact = (c**2).sum(-1), plan_recheck(12, 4)
    right = launch_assign(x, c, norms, plan_assign(3, 90, 20, 12, 4, "ieee")).labels
    flagged = torch.rand(3, 90, generator=torch.Generator().manual_seed(2)).to(DEVICE) < torch.tensor([0.0, 0.5, 1.0])[
        :, None
    ].to(DEVICE)
    labels = torch.full((3, 90), -7, dtype=torch.int32, device=DEVICE)
    count = launch_recheck(x, c, norms, flagged, labels, exact)
    assert torch.equal(count.long(), flagged.sum(1)) and count[0] == 0
    assert torch.equal(labels[flagged], right[flagged]) and bool((labels[~flagged] == -7).all())
