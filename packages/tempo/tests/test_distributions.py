import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neurips26.tempo.distributions import Categorical, Gaussian, project, support


def test_uniform_three_atoms():
    z = Categorical(jnp.zeros(3), jnp.array([0.0, 1.0, 2.0]))
    assert float(z.mean()) == pytest.approx(1.0) and float(z.entropy()) == pytest.approx(1.0986123, abs=1e-6)
    assert z.max_entropy == pytest.approx(np.log(3))


def test_certain_prediction_has_no_entropy_and_finite_gradients():
    logits, atoms = jnp.array([0.0, 50.0, 0.0]), jnp.array([0.0, 1.0, 2.0])
    assert float(Categorical(logits, atoms).entropy()) < 1e-18
    for scale in (1.0, 100.0):
        slope = jax.grad(lambda x: Categorical(x, atoms).entropy())(scale * logits)
        assert np.isfinite(np.asarray(slope)).all()


def test_gaussian_entropy():
    z = Gaussian(jnp.array(2.0), jnp.log(jnp.array(3.0)))
    assert float(z.entropy()) == pytest.approx(np.log(3) + 0.5 * np.log(2 * np.pi * np.e), rel=1e-6)


def test_projection_by_hand():
    atoms, p = jnp.array([0.0, 0.5, 1.0]), jnp.array([[0.2, 0.3, 0.5]])
    got = project(p, jnp.array([0.3]), jnp.array([0.5]), atoms)
    np.testing.assert_allclose(got[0], [0.08, 0.59, 0.33], atol=1e-6)
    done = project(p, jnp.array([0.3]), jnp.array([0.0]), atoms)
    np.testing.assert_allclose(done[0], [0.4, 0.6, 0.0], atol=1e-6)


def test_projection_keeps_mass_on_an_atom_and_at_the_ends():
    atoms = jnp.array([0.0, 0.5, 1.0])
    exact = project(jnp.array([[1.0, 0.0, 0.0]]), jnp.array([0.5]), jnp.array([1.0]), atoms)
    np.testing.assert_allclose(exact[0], [0, 1, 0], atol=1e-7)
    beyond = project(jnp.array([[0.0, 0.0, 1.0]]), jnp.array([5.0]), jnp.array([1.0]), atoms)
    np.testing.assert_allclose(beyond[0], [0, 0, 1], atol=1e-7)
    rng = np.random.default_rng(0)
    p = jnp.asarray(rng.dirichlet(np.ones(3), 50), jnp.float32)
    mass = project(p, jnp.asarray(rng.normal(size=50), jnp.float32), jnp.full(50, 0.97), atoms).sum(1)
    np.testing.assert_allclose(mass, 1.0, atol=1e-5)


def test_support_checks():
    np.testing.assert_allclose(support(-0.1, 1.7, 101)[[0, -1]], [-0.1, 1.7])
    with pytest.raises(ValueError, match="v_min"):
        support(1.0, 1.0, 11)
