"""Measures of full-scale runs, with stand-ins for their pretrained networks: nothing is downloaded."""

import numpy as np
import pytest
import torch
from PIL import Image

from neurips26.reference_guidance import image_metrics


def picture(path, values):
    Image.fromarray(np.broadcast_to(np.asarray(values, dtype=np.uint8), (64, 64, 3)).copy()).save(path)
    return path


def test_distances_of_known_features():
    g = torch.Generator().manual_seed(0)
    real = torch.randn(150, 3, generator=g, dtype=torch.float64)
    same = image_metrics.inception_distances(real, real)
    assert same["FID"] == pytest.approx(0, abs=1e-6) and abs(same["KID"]) < 0.3
    away = image_metrics.inception_distances(real, real + torch.tensor([0.0, 3.0, 4.0]))
    assert away["FID"] == pytest.approx(25, rel=1e-6)  # equal covariances: the squared distance of the means
    assert away["KID"] > 1


def test_random_pairs_are_distinct_and_all_where_there_are_few():
    assert sorted(image_metrics.random_pairs(4, 10, 0)) == [(i, j) for i in range(4) for j in range(i + 1, 4)]
    many = image_metrics.random_pairs(50_000, 2000, 1)
    assert len(set(many)) == 2000 and all(0 <= i < j < 50_000 for i, j in many)
    assert max(j for _, j in many) > 45_000 and many != image_metrics.random_pairs(50_000, 2000, 2)


def test_nearest_in_pixels(tmp_path):
    paths = [picture(tmp_path / f"{i:03d}.png", [i * 10, 0, 0]) for i in range(20)]  # more than one batch
    x = image_metrics.read_pixels([paths[17], paths[2]])
    index, distance = image_metrics.nearest_in_pixels(x + 1e-3, paths)
    assert index.tolist() == [17, 2]
    torch.testing.assert_close(distance, torch.full((2,), 1e-3), rtol=1e-2, atol=1e-6)


def test_inception_features_are_clean_fids_by_name(tmp_path, monkeypatch):
    pytest.importorskip("cleanfid")
    for name, values in (("b", [200, 10, 0]), ("a", [30, 20, 10])):
        picture(tmp_path / f"{name}.png", values)
    monkeypatch.setattr(image_metrics, "_inception", lambda device, download: lambda x: x.mean((2, 3)))
    found = image_metrics.inception_features(tmp_path)
    torch.testing.assert_close(found, torch.tensor([[30.0, 20, 10], [200, 10, 0]]), rtol=1e-4, atol=1e-2)


def test_weights_are_never_fetched_unasked(tmp_path, monkeypatch):
    pytest.importorskip("cleanfid")
    pytest.importorskip("torchvision")
    for i in range(2):
        picture(tmp_path / f"{i}.png", [i, 0, 0])
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    with pytest.raises(
        image_metrics.WeightsMissing,
        match=r"Inception: expected its weights at .*hub/checkpoints/inception-2015-12-05\.pt; put",
    ):
        image_metrics.inception_features(tmp_path)
    with pytest.raises(image_metrics.WeightsMissing, match=r"LPIPS: expected its weights at .*hub/checkpoints/alexnet"):
        image_metrics.lpips_diversity(tmp_path)

    def offline(*_args, **_options):
        raise OSError("no route")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(image_metrics.WeightsMissing, match=r"LPIPS: https://.* could not be fetched \(no route\)"):
        image_metrics.lpips_diversity(tmp_path, download=True)
    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(image_metrics.WeightsMissing, match=r"Inception: https://.* could not be fetched \(no route\)"):
        image_metrics.inception_features(tmp_path, download=True)


def test_inception_is_read_from_torchs_folder(tmp_path, monkeypatch):
    pytest.importorskip("cleanfid")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))

    class Inception(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 2048)
            )

        def forward(self, x):
            return self.layers(x)

    def fetched(url, path):
        assert url == image_metrics.INCEPTION_URL
        torch.jit.script(Inception()).save(path)

    monkeypatch.setattr(torch.hub, "download_url_to_file", fetched)
    picture(tmp_path / "a.png", [1, 2, 3])
    first = image_metrics.inception_features(tmp_path, download=True)
    assert first.shape == (1, 2048) and (tmp_path / "checkpoints" / "inception-2015-12-05.pt").exists()
    torch.testing.assert_close(image_metrics.inception_features(tmp_path), first)


def test_lpips_diversity_with_a_random_alexnet(tmp_path, monkeypatch):
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    weights = models.alexnet(weights=None).state_dict()
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *a, **k: weights)
    for name, values in (("same", [[9, 9, 9]] * 3), ("other", [[9, 9, 9], [250, 0, 0], [0, 0, 250]])):
        (tmp_path / name).mkdir()
        for i, v in enumerate(values):
            picture(tmp_path / name / f"{i}.png", v)
    same, other = (image_metrics.lpips_diversity(tmp_path / n, download=True) for n in ("same", "other"))
    assert same == {"LPIPS diversity": 0.0, "pairs": 3} and other["LPIPS diversity"] > 1e-3
    (tmp_path / "one").mkdir()
    picture(tmp_path / "one" / "0.png", [1, 2, 3])
    with pytest.raises(ValueError, match="folder: expected at least two pictures in .*one, got 1"):
        image_metrics.lpips_diversity(tmp_path / "one", download=True)
