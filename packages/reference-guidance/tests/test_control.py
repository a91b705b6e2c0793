"""What rows of control are made of: names of settings, the choice of a strength, copies to train on."""

import torch

from neurips26.reference_guidance.claims.common import _balanced, _highest
from neurips26.reference_guidance.control import CURVE, setting, strength_of
from neurips26.reference_guidance.toys import join, photographs
from neurips26.shared import data
from neurips26.shared.testing import needs


def test_a_setting_names_its_strength() -> None:
    assert [strength_of(setting(*point)) for point in CURVE] == [point[1] for point in CURVE]
    assert [strength_of(name) for name in ("unguided", "latent average", "quadratic 2, k = 1")] == [None, None, None]


def test_choice_of_a_strength() -> None:
    """The highest rate among those far enough; or the one furthest beyond both bars."""

    def row(rate: float, distance: float) -> dict[str, dict[str, float]]:
        return {"ours": {"rate": rate, "copy": 3 * distance}, "held out": {"copy": 3.0}}

    rows = [row(0.71, 0.95), row(0.76, 0.90), row(0.80, 0.86), row(0.95, 0.60)]
    assert _highest(rows, "ours") == 2
    assert _balanced(rows, "ours", 0.7) == 1  # 1.014, 1.059, 1.012, 0.706 times the nearer bar
    assert _highest(rows[3:], "ours") == 0


def test_copies_to_train_on_are_mirrored_and_shifted() -> None:
    path = data.find("reference-guidance", "olivetti_faces_64.npz")
    needs("data", path is not None, "olivetti_faces_64.npz")
    assert path is not None
    real, mirrored, shifted = (photographs(path, copy=c) for c in range(3))
    torch.testing.assert_close(mirrored.images, real.images.flip(-1), atol=1e-6, rtol=0)
    assert torch.equal(shifted.images, photographs(path, copy=2).images)
    assert 0.02 < float((shifted.images - real.images).abs().mean()) < 0.2
    both = join([real, mirrored])
    assert torch.equal(both.labels["person"], real.labels["person"].repeat(2)) and len(both) == 800
