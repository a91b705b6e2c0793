from dataclasses import replace

import numpy as np
import pytest
import torch

from neurips26.reference_guidance import (
    SPG,
    BankMismatchError,
    CheckpointError,
    DiTMean,
    EmptyBankError,
    ReferenceBank,
    SparseLabelSteering,
    SPGConfig,
    SPGPipeline,
    SPGTrainer,
    reference_mean,
)
from neurips26.reference_guidance.spg import euler_sample, patchify, unpatchify
from neurips26.reference_guidance.spg_train import TrainConfig, keep_mask, spg_loss

SIZES = SPGConfig(4, 8, 8, 2, 32, 2, 2, 4, 32)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    m = SPG.from_sizes(SIZES).eval()
    with torch.no_grad():
        for p in m.parameters():
            p.add_(0.05 * torch.randn_like(p))  # away from the zero initialisation
    return m


def data(n, seed=0):
    return torch.randn(n, 4, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_patches():
    x = data(2)
    tokens = patchify(x, 2)
    assert tokens.shape == (2, 16, 16)
    torch.testing.assert_close(tokens[0, 1], x[0, :, 0:2, 2:4].flatten())
    assert torch.equal(unpatchify(tokens, 2, (4, 4)), x)


def test_anchor_is_a_convex_combination_patch_by_patch(model):
    x, refs, t = data(3), data(9, 1), torch.tensor([0.1, 0.5, 0.9])
    out = model(x, t, refs)
    low, high = refs.amin(0), refs.amax(0)
    assert (out.retrieved >= low - 1e-5).all() and (out.retrieved <= high + 1e-5).all()
    torch.testing.assert_close(model(x, t, refs.flip(0)).mean, out.mean, rtol=1e-4, atol=1e-5)
    other = refs.clone()
    other[:, :, :2, :2] += 5.0  # only the first patch of the references changes
    changed = (model(x, t, other).retrieved - out.retrieved).abs().amax((0, 1))
    assert changed[:2, :2].min() > 0.1 and changed[2:].max() == 0 and changed[:, 2:].max() == 0


def test_cached_and_chunked_equal_dense(model):
    x, refs, t = data(3), data(9, 1), torch.tensor([0.1, 0.5, 0.9])
    dense = model(x, t, refs).mean
    assert torch.equal(model(x, t, model.anchor.cache(refs)).mean, dense)
    small = SPG.from_sizes(SPGConfig(**{**vars(SIZES), "chunk": 2})).eval()
    small.load_state_dict(model.state_dict())
    mask = torch.rand(3, 9, generator=torch.Generator().manual_seed(3)) < 0.5
    mask[:, :2] = False
    mask[:, 5] = True
    torch.testing.assert_close(small(x, t, refs, mask).mean, model(x, t, refs, mask).mean, rtol=1e-5, atol=1e-6)


def test_masked_reference_has_no_gradient(model):
    x, refs, t = data(2), data(5, 1).requires_grad_(), torch.tensor([0.3, 0.6])
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[:, 3] = False
    model(x, t, refs, mask).mean.square().sum().backward()
    assert refs.grad[3].abs().max() == 0 and refs.grad[2].abs().max() > 0


def test_start_of_training():
    m = SPG.from_sizes(SIZES)
    x, refs, t = data(3), data(9, 1), torch.tensor([1e-3, 0.5, 1 - 1e-3])
    out = m(x, t, refs)
    assert out.residual.abs().max() == 0
    torch.testing.assert_close(out.mean, 0.5 * x + 0.5 * out.retrieved)
    assert torch.isfinite(spg_loss(out, data(3, 2), t))
    fixed = SPG.from_sizes(SPGConfig(**{**vars(SIZES), "gate": "fixed"}))
    out = fixed(x, torch.full((3,), 0.25), refs)
    torch.testing.assert_close(out.base, 0.25 * x + 0.75 * out.retrieved)


def test_loss_values():
    target, t = torch.zeros(2, 1, 1, 1), torch.tensor([0.0, 0.6])
    # mean of 4 / 1 and 4 / 0.64
    assert float(spg_loss(2 + target, target, t)) == pytest.approx((4 + 4 / 0.64) / 2)


def test_self_mask_and_dropout():
    g = torch.Generator().manual_seed(0)
    own, refs = torch.tensor([3, 7, 1]), torch.arange(8)
    mask = keep_mask(own, refs, 0.0, g)
    assert mask.sum() == 21 and not mask[0, 3] and not mask[1, 7] and not mask[2, 1]
    many = keep_mask(torch.zeros(4000, dtype=torch.long), refs, 0.1, g)
    assert float(many[:, 1:].double().mean()) == pytest.approx(0.9, abs=0.01)
    hard = keep_mask(torch.zeros(500, dtype=torch.long), torch.arange(3), 0.95, g)
    assert hard.any(1).all() and not hard[:, 0].any()


def test_self_masking_keeps_the_loss_of_a_copier_above_zero():
    """The sharpest retrieval there is (the exact posterior near t = 1) copies its target unless the target is hidden."""
    x1, own = data(12), torch.arange(12)
    t = torch.full((12,), 0.999)
    x = (1 - t).reshape(-1, 1, 1, 1) * data(12, 7) + t.reshape(-1, 1, 1, 1) * x1
    losses = {}
    for hidden in (True, False):
        mask = keep_mask(own, own, 0.0, torch.Generator().manual_seed(0), hidden)
        losses[hidden] = float(spg_loss(reference_mean(x, x1, t, mask=mask)[0], x1, t))
    assert losses[False] < 1e-6 and losses[True] > 100


@pytest.mark.parametrize("kind", [SPG.from_sizes, DiTMean.of_equal_budget])
def test_training_resumes_bit_for_bit(kind, tmp_path):
    torch.manual_seed(0)
    first = kind(SIZES)
    torch.manual_seed(0)
    second = kind(SIZES)
    config = TrainConfig(4, 8, 10, 1e-3)
    whole = SPGTrainer(first, data(20), config).train()
    SPGTrainer(second, data(20), config).train(until=2, save_to=tmp_path / "c.pt")
    torch.manual_seed(9)
    resumed = SPGTrainer(kind(SIZES), data(20), config).load(tmp_path / "c.pt").train()
    assert resumed.losses == whole.losses
    for a, b in zip(whole.averaged().parameters(), resumed.averaged().parameters()):
        assert torch.equal(a, b)
    for other, said in (
        ((data(20), TrainConfig(4, 8, 10, 1e-4)), "lr 0.001 .asked 0.0001."),
        ((data(20), TrainConfig(4, 8, 10, 1e-3, self_mask=False)), "self_mask"),
        ((data(20, 5), config), "other latents"),
    ):
        with pytest.raises(CheckpointError, match=said):
            SPGTrainer(kind(SIZES), *other).load(tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match=r"dim 32 .asked 64.; choose another folder"):
        SPGTrainer(kind(replace(SIZES, dim=64)), data(20), config).load(tmp_path / "c.pt")
    SPGTrainer(kind(SIZES), data(20), TrainConfig(9, 8, 10, 1e-3)).load(
        tmp_path / "c.pt"
    )  # more steps may be asked for
    (tmp_path / "c.pt").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match="c.pt"):
        SPGTrainer(kind(SIZES), data(20), config).load(tmp_path / "c.pt")


def test_non_finite_steps_are_skipped():
    trainer = SPGTrainer(DiTMean.of_equal_budget(SIZES), data(20), TrainConfig(1, 4))
    before = [p.clone() for p in trainer.model.parameters()]
    trainer.batch_loss = lambda: trainer.model.body.head.bias.sum() * float("nan")
    trainer.train()
    assert trainer.skipped == 1 and all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters()))


def test_pipeline_swaps_sets(model, tmp_path):
    pipe = SPGPipeline(model)
    a, b = (ReferenceBank.from_latents(data(5, s)) for s in (1, 2))
    noise = data(2, 5)
    one, two = pipe(2, a, 3, latents=noise), pipe(2, b, 3, latents=noise)
    assert one.shape == (2, 4, 8, 8) and not torch.equal(one, two)
    torch.testing.assert_close(one, pipe(2, a, 3, latents=noise))
    model.save_pretrained(tmp_path)
    again = SPG.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(SPGPipeline(again)(2, a, 3, latents=noise), one)


def test_pipeline_counts_weights_and_notices_other_anchors(model):
    import copy

    noise, bank = data(2, 5), ReferenceBank.from_latents(data(5, 1))
    own = copy.deepcopy(model)
    pipe = SPGPipeline(own)
    uniform = pipe(2, bank, 3, latents=noise)
    doubled = ReferenceBank.from_latents(torch.cat([bank.latents, bank.latents[:2]]))
    weighted = bank.with_weights([2.0, 2.0, 1.0, 1.0, 1.0])
    torch.testing.assert_close(
        pipe(2, weighted, 3, latents=noise), pipe(2, doubled, 3, latents=noise), rtol=1e-4, atol=1e-5
    )
    assert not torch.allclose(pipe(2, weighted, 3, latents=noise), uniform)
    only = bank.with_weights([0.0, 0.0, 1.0, 0.0, 0.0])
    retrieved = own(noise, torch.full((2,), 0.5), own.anchor.cache(only.latents, only.log_prior)).retrieved
    torch.testing.assert_close(retrieved, bank.latents[2].expand(2, 4, 8, 8))
    pipe(2, bank, 3, latents=noise)
    with torch.no_grad():
        own.anchor.key.weight.mul_(3.0).add_(0.1 * torch.randn(32, 32))
    torch.testing.assert_close(pipe(2, bank, 3, latents=noise), SPGPipeline(own)(2, bank, 3, latents=noise))


def test_pipeline_refuses_a_set_of_another_vae(model):
    from neurips26.reference_guidance.layouts import LatentSpace
    from neurips26.reference_guidance.tiny import tiny_pipeline

    vaes = [tiny_pipeline("sd3", seed).vae for seed in (0, 1)]
    pixels = [torch.rand(16, 16, 3, generator=torch.Generator().manual_seed(i)).numpy() for i in range(2)]
    bank = ReferenceBank.from_images(LatentSpace(vaes[0], 0.5), pixels, 16, 16)
    assert SPGPipeline(model, vaes[0], 0.5)(1, bank, 2).shape == (1, 3, 16, 16)
    for vae, scale in ((vaes[1], 0.5), (vaes[0], 1.0)):
        with pytest.raises(BankMismatchError, match="digest|scaling"):
            SPGPipeline(model, vae, scale)(1, bank, 2)


def test_sampler_lands_on_a_constant_mean():
    mu = data(2, 3)
    got = euler_sample(lambda x, t: mu, data(2), 20)
    torch.testing.assert_close(got, mu, rtol=0, atol=1e-2)  # 1e-3 of the way is left at t = 1 - 1e-3


def test_bad_input(model):
    with pytest.raises(EmptyBankError):
        model.anchor.cache(data(0))
    with pytest.raises(BankMismatchError):
        model.anchor.cache(torch.zeros(2, 4, 8, 6))
    with pytest.raises(ValueError, match=r"x, t: expected \(b, 4, 8, 8\) and \(b,\), got \(2, 3, 8, 8\)"):
        model(torch.zeros(2, 3, 8, 8), torch.zeros(2), torch.zeros(3, 3, 8, 8))
    with pytest.raises(EmptyBankError, match="mask"):
        model(data(2), torch.zeros(2), data(3), torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="height"):
        SPGConfig(4, 7, 8)
    with pytest.raises(ValueError, match="anchor_heads"):
        SPGConfig(4, 8, 8, 2, 32, 2, 2, 3)
    for name in ("patch", "dim", "depth", "heads", "anchor_heads", "time_dim", "chunk"):
        for wrong in (0, -1):
            with pytest.raises(ValueError, match=f"{name}: expected"):
                SPGConfig(**{name: wrong})
    for time in (5.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="t: expected times in"):
            model(data(2), torch.tensor([0.5, time]), data(3))


@pytest.mark.bad_input
def test_bad_training_is_refused():
    for name, wrong in (
        ("penalty", float("nan")), ("ema", 2.0), ("ema", float("nan")), ("clip", -1.0), ("clip", float("nan")),
        ("seed", -1), ("self_mask", "no"), ("bank", 1), ("precision", "fp8"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{name}: expected"):
            TrainConfig(**{name: wrong})
    TrainConfig(bank=1, self_mask=False)
    dit = DiTMean.of_equal_budget(SIZES)
    with pytest.raises(TypeError, match="config: expected a TrainConfig"):
        SPGTrainer(dit, data(4), {"steps": 1})
    for wrong in (
        data(4).double(),
        data(4).numpy(),
        data(4).to(torch.bfloat16),
        torch.zeros(4, 4, 8, 8, dtype=torch.int64),
    ):
        with pytest.raises(TypeError, match="latents: expected a float32 tensor"):
            SPGTrainer(dit, wrong, TrainConfig(1))
    with pytest.raises(ValueError, match="latents: expected at least 2"):
        SPGTrainer(dit, data(1), TrainConfig(1))
    with pytest.raises(ValueError, match="latents: expected finite"):
        SPGTrainer(dit, data(4) * torch.nan, TrainConfig(1))


@pytest.mark.bad_input
def test_pipeline_refuses_what_it_cannot_draw(model):
    pipe, bank = SPGPipeline(model), ReferenceBank.from_latents(data(3))
    with pytest.raises(TypeError, match="references: expected a ReferenceBank, got Tensor"):
        pipe(2, data(3))
    for steps in (0, -1):
        with pytest.raises(ValueError, match="num_inference_steps: expected"):
            pipe(2, bank, steps)
    for latents in (data(4), data(16) * torch.nan):
        with pytest.raises(ValueError, match="latents: expected finite numbers of shape"):
            pipe(16, bank, latents=latents)


def test_steering_values():
    points = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    labelled, labels = torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1])
    s = SparseLabelSteering(points, labelled, labels)
    t = 0.5
    width = 4 * (0.5 + 1e-4) ** 2
    import math

    a, b = math.exp(-(t**2) * 1 / width), math.exp(-(t**2) * 5 / width)
    torch.testing.assert_close(s.label_probability(0, t)[0], torch.tensor(a / (a + b), dtype=torch.float64))
    torch.testing.assert_close(
        s.label_probability(0, t) + s.label_probability(1, t), torch.ones(2, dtype=torch.float64)
    )
    hard = SparseLabelSteering(points, labelled, labels, "hard")
    torch.testing.assert_close(hard.mean(torch.zeros(1, 2), 1, t), labelled[1:])
    with pytest.raises(ValueError, match="target"):
        s.mean(torch.zeros(1, 2), 5, t)
    with pytest.raises(ValueError, match="rule"):
        SparseLabelSteering(points, labelled, labels, "fuzzy")


def test_soft_labels_of_the_moons():
    from neurips26.reference_guidance.steering import draw_by_label, label_posterior

    points = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    labelled, labels = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    width = 1.25 * 0.08 + 0.08 * 0.92
    p = 1 / (1 + np.exp(-1 / (2 * width**2)))  # two labels of one class count like one of the other
    expected = torch.tensor([[p, 1 - p], [1 - p, p]], dtype=torch.float64)
    torch.testing.assert_close(label_posterior(points, labelled, labels), expected)
    x = draw_by_label(points, torch.tensor([0.25, 0.75]), 4000, np.random.default_rng(0))
    assert float((x[:, 0] > 0.5).double().mean()) == pytest.approx(0.75, abs=0.03)
    assert float(x[:, 1].std()) == pytest.approx(0.06, abs=0.003)


@pytest.mark.bad_input
def test_steering_of_the_wrong_shape():
    points, labels = torch.zeros(2, 2), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="labels: expected 2, one a labelled point, got shape"):
        SparseLabelSteering(points, points, labels[:1])
    with pytest.raises(ValueError, match="labelled: expected points like the unlabelled"):
        SparseLabelSteering(points, torch.zeros(2, 3), labels)
