"""The estimator: scikit-learn's own checks, and the rules it shares with `kmeans`."""

import warnings

import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from neurips26.flash_kmeans import KMeans

#: What scikit-learn marks as an expected failure of its own KMeans, with its reason.
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": (
        "random draws of k-means++ fall differently on repeated rows than on weighted ones"
    ),
}


@parametrize_with_checks([KMeans(n_clusters=3)], expected_failed_checks=lambda _: EXPECTED)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_exceptions_are_those_of_scikit_learn():
    from sklearn.cluster import KMeans as Peer
    from sklearn.utils._test_common.instance_generator import PER_ESTIMATOR_XFAIL_CHECKS

    assert set(EXPECTED) <= set(PER_ESTIMATOR_XFAIL_CHECKS[Peer])


def test_labels_are_those_of_predict(digits):
    for max_iter in (1, 3, 300):
        model = KMeans(10, random_state=0, max_iter=max_iter).fit(digits)
        assert (model.labels_ == model.predict(digits)).all()
        assert model.score(digits) == pytest.approx(-model.inertia_, rel=1e-6)
        assert model.transform(digits).shape == (len(digits), 10)
        assert (model.transform(digits).argmin(1) == model.labels_).mean() > 0.999


def test_best_of_several_runs(digits):
    one = [KMeans(10, init="random", n_init=1, random_state=s, max_iter=3).fit(digits).inertia_ for s in range(3)]
    many = KMeans(10, init="random", random_state=0, max_iter=3).fit(digits)
    assert many.inertia_ <= max(one) and (many.labels_ == many.predict(digits)).all()


def test_one_run_from_given_centroids(digits):
    """As in scikit-learn, whatever holds them."""
    start = digits[:4]
    fits = [KMeans(4, init=init, max_iter=3).fit(digits) for init in (start, start.tolist(), torch.from_numpy(start))]
    assert all((fit.labels_ == fits[0].labels_).all() for fit in fits)


def test_save_and_load(tmp_path, digits):
    model = KMeans(10, random_state=0, max_iter=5, metric="cosine").fit(digits)
    model.save(tmp_path / "model.safetensors")
    other = KMeans.load(tmp_path / "model.safetensors")
    assert (other.predict(digits) == model.labels_).all() and other.get_params() == model.get_params()
    (tmp_path / "broken").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="is not a flash-kmeans model"):
        KMeans.load(tmp_path / "broken")


def test_in_a_pipeline_and_cloned(digits):
    pipe = make_pipeline(StandardScaler(), KMeans(5, random_state=0, max_iter=5))
    assert pipe.fit_predict(digits).shape == (len(digits),)
    assert list(clone(pipe).fit(digits)[-1].get_feature_names_out()) == [f"kmeans{i}" for i in range(5)]


@pytest.mark.bad_input
def test_bad_input(digits):
    with pytest.raises(NotFittedError):
        KMeans().predict(digits)
    with pytest.raises(ValueError, match="n_clusters: expected at most n_samples=3, got n_clusters=8"):
        KMeans().fit(digits[:3])
    with pytest.raises(ValueError, match="features"):
        KMeans(2).fit(digits).predict(digits[:, :3])
    with pytest.raises(ValueError, match="sample_weight: expected non-negative"):
        KMeans(2).fit(digits[:3], sample_weight=[1, -1, 1])
    with warnings.catch_warnings(), pytest.raises(ValueError, match="metric: expected one of"):
        KMeans(2, metric="l1").fit(digits)
