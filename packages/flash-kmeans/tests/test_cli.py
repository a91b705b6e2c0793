"""The command line: files in, files out, one line for a mistake."""

import numpy as np
import pytest

from neurips26.flash_kmeans import KMeans, assign, kmeans
from neurips26.flash_kmeans.cli import main


@pytest.fixture
def x(tmp_path):
    values = np.random.default_rng(0).standard_normal((500, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", values)
    return values


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("name", ["c.npy", "model.safetensors"])
def test_fit_and_predict(tmp_path, x, name, metric, capsys):
    files = {word: str(tmp_path / word) for word in ("x.npy", name, "fitted.npy", "labels.npy", "state")}
    fit = ["fit", files["x.npy"], "-k", "7", "-o", files[name], "--labels", files["fitted.npy"], "--metric", metric]
    assert main([*fit, "--memory-limit", "20000", "--checkpoint", files["state"]]) == 0
    assert main([*fit, "--memory-limit", "20000", "--checkpoint", files["state"], "--resume"]) == 0
    expected = kmeans(x, 7, seed=0, max_iter=100, metric=metric)
    assert (
        capsys.readouterr().out.count(f"inertia {expected.inertia:.6g} after {expected.n_iter} iterations (converged)")
        == 2
    )
    centroids = np.load(files[name]) if name == "c.npy" else KMeans.load(files[name]).cluster_centers_
    assert (centroids == expected.centroids).all() and (np.load(files["fitted.npy"]) == expected.labels).all()
    how = ["--metric", metric] if name == "c.npy" else []
    assert main(["predict", files["x.npy"], files[name], "-o", files["labels.npy"], *how]) == 0
    assert (np.load(files["labels.npy"]) == assign(x, expected.centroids, metric=metric)).all()


def test_plan_and_doctor(capsys):
    assert main(["plan", "--n", "8000000", "--k", "1024", "--d", "128"]) == 0
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "sm_90 float16: AssignPlan(" in text and "float32 lanes" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "none.npy", "-k", "2", "-o", "c.npy"], "x: none.npy: no such file"),
        (["fit", "{x}", "-k", "501", "-o", "c.npy"], "k: expected at most the number of points N=500, got K=501"),
        (["fit", "{x}", "-k", "2", "-o", "c.npy", "--resume"], "resume: expected checkpoint=path as well"),
        (["plan", "--n", "10", "--k", "2", "--d", "3", "--arch", "91"], "arch: expected one of 75, 80"),
        (["compile-report", "--arch", "91"], "arch: expected one of 75, 80"),
        (["predict", "{x}", "{x}", "-o", "l.npy", "--metric", "cosine"], ""),
    ],
)
def test_a_mistake_is_one_line(tmp_path, x, arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status = main([word.format(x=tmp_path / "x.npy") for word in arguments])
    error = capsys.readouterr().err
    assert (status, error.count("\n")) == ((2, 1) if message else (0, 0)) and message in error
    assert [path.name for path in tmp_path.iterdir() if path.name != "x.npy"] == ([] if message else ["l.npy"])
