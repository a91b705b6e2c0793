"""The frozen transformer over faces, and the fit that it shares with the residual networks."""

import pytest
import torch

from neurips26.reference_guidance.dit_faces import SIDE, DiTFlow, dit_control
from neurips26.reference_guidance.flows import LOWEST_SIGMA, VectorFlow, fit_flow, train_flow

SMALL = {"side": 8, "dim": 16, "depth": 1, "heads": 2, "time_dim": 16}


def small() -> DiTFlow:
    return DiTFlow(**SMALL)


def test_size_is_the_one_asked_for() -> None:
    flow = DiTFlow()
    assert sum(p.numel() for p in flow.parameters()) == pytest.approx(1.4e6, rel=0.02)
    x, t = torch.randn(2, 3, SIDE, SIDE), torch.tensor([0.0, 0.9])
    assert flow.mean(x, t).shape == flow(x, t).shape == x.shape


def test_velocity_is_that_of_the_mean() -> None:
    torch.manual_seed(0)
    flow = small()
    for p in flow.parameters():  # the head and what depends on the time are zero at first
        torch.nn.init.normal_(p, std=0.3)
    x, t = torch.randn(4, 3, 8, 8), torch.tensor([0.0, 0.4, 0.9, 1.0])
    sigma = torch.tensor([1.0, 0.6, 0.1, LOWEST_SIGMA])[:, None, None, None]
    mean = flow.mean(x, t)
    assert float(mean.detach().abs().mean()) > 0.1
    torch.testing.assert_close(x - sigma * flow(x, t), mean, atol=1e-5, rtol=1e-5)
    assert not torch.equal(mean[0], flow.mean(x, t.flip(0))[0])  # it knows the time


def faces(n: int = 64) -> torch.Tensor:
    """Half-dark images in random tints."""
    g = torch.Generator().manual_seed(0)
    images = torch.rand(n, 3, 1, 1, generator=g).expand(-1, -1, 8, 8).clone()
    images[..., 4:] = -1
    return images


def loss(flow: DiTFlow | VectorFlow, images: torch.Tensor) -> float:
    g = torch.Generator().manual_seed(1)
    x = 0.5 * images + 0.5 * torch.randn(images.shape, generator=g)
    return float((flow.mean(x, torch.full((len(x),), 0.5)) - images).square().mean())


def test_fit_learns_and_repeats_itself() -> None:
    images = faces()
    before = torch.random.get_rng_state()
    one, two = (fit_flow(small, images, 60, 3, batch=16, times="logit-normal", rate=5e-3) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())  # the caller's stream is left alone
    for a, b in zip(one.parameters(), two.parameters()):
        assert torch.equal(a, b)
    other = fit_flow(small, images, 2, 4, batch=16)
    assert loss(one, images) < 0.5 * loss(other, images)
    assert not any(p.requires_grad for p in one.parameters()) and not one.training


def test_the_residual_network_is_fitted_the_same_way() -> None:
    """``train_flow`` is ``fit_flow`` with its own network."""
    images = faces(16)
    one = train_flow(images, 5, 0, 16, batch=8)
    two = fit_flow(lambda: VectorFlow((3, 8, 8), 16), images, 5, 0, batch=8)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))


def test_refusals(tmp_path) -> None:
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="rate: expected"):
            fit_flow(small, faces(8), 2, 0, batch=4, rate=rate)
    with pytest.raises(ValueError, match="times: expected one of"):
        fit_flow(small, faces(8), 2, 0, batch=4, times="logit_normal")
    with pytest.raises(ValueError, match="prompt: expected none"):
        small().mean(torch.zeros(1, 3, 8, 8), torch.zeros(1), torch.ones(1, dtype=torch.long))
    with pytest.raises(ValueError, match="name: expected one of 'tint', 'style', 'layout'"):
        dit_control(tmp_path, 0, 0, "person")
