"""The trainer resumes bit for bit; peers compute what their definitions say."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from neurips26.filterbank_tsf.bank import fit_bank
from neurips26.filterbank_tsf.linear import least_squares_affine
from neurips26.filterbank_tsf.nn import DeepFilterBank
from neurips26.filterbank_tsf.peers import FITS, PEERS, CycleNet, DLinear, RootPurge, SparseTSF, TimeBase, make_peer
from neurips26.filterbank_tsf.regression import shared_core
from neurips26.filterbank_tsf.stats import WindowStats
from neurips26.filterbank_tsf.training import TrainConfig, Windows, score, train

L, H = 48, 24


@pytest.fixture(scope="module")
def series():
    rng = np.random.default_rng(0)
    t = np.arange(900)[:, None]
    return np.sin(2 * np.pi * t / np.array([24, 12])) + 0.3 * rng.normal(size=(900, 2))


def parts(series):
    return Windows(series[:600], L, H), Windows(series[600 - L :], L, H, 600 - L)


def test_windows_and_score_are_exact(series):
    windows, _ = parts(series)
    assert len(windows) == 600 - L - H + 1
    x, y, phase = windows.batch(torch.tensor([5, 9]))
    assert np.allclose(x[1, 0], series[9 : 9 + L, 0], atol=1e-6) and np.allclose(
        y[0, 1], series[5 + L : 5 + L + H, 1], atol=1e-6
    )
    assert phase.tolist() == [5, 9]
    model = make_peer("rlinear", L, H, 2, 24)
    whole = (
        torch.stack([model(windows.batch(torch.arange(len(windows)))[0])])[0]
        - windows.batch(torch.arange(len(windows)))[1]
    )
    for batch in (7, 100, 4096):  # batches of unequal size change nothing
        assert score(model, windows, batch)[0] == pytest.approx(float(whole.square().mean().detach()), rel=1e-5)


def deep(series):
    stats = WindowStats.from_series(series[:600], L, H).normalised("mean")
    return DeepFilterBank(L, H, fit_bank(stats, 3, 12, rank=4), hidden=8, period=12)


def test_interrupted_run_is_bit_exact(series, tmp_path):
    windows, val = parts(series)
    whole = deep(series)
    history = train(whole, windows, val, TrainConfig(epochs=3, batch=128))

    class Stop(Exception):
        pass

    broken, steps = deep(series), 0

    def interrupt(*_):
        nonlocal steps
        steps += 1
        if steps == 2 * 5 + 2 + 3 * 2:  # in the middle of the third epoch
            raise Stop

    handle = broken.register_forward_pre_hook(interrupt)
    with pytest.raises(Stop):
        train(broken, windows, val, TrainConfig(epochs=3, batch=128), tmp_path / "c.pt")
    handle.remove()
    fresh = deep(series)
    resumed = train(fresh, windows, val, TrainConfig(epochs=3, batch=128), tmp_path / "c.pt")
    assert resumed.val == history.val and resumed.train == history.train
    for (name, a), b in zip(whole.state_dict().items(), fresh.state_dict().values()):
        assert torch.equal(a, b), name
    config, path = TrainConfig(epochs=3, batch=128), tmp_path / "c.pt"
    before = path.read_bytes()
    for arguments, message in (
        ((deep(series), windows, val, TrainConfig(epochs=5, batch=64)), "was made with"),
        ((deep(series), val, windows, config), "was made with other rows"),
        ((make_peer("rlinear", L, H, 2, 24), windows, val, config), "is of another model"),
    ):
        with pytest.raises(ValueError, match=f"checkpoint: .*c.pt {message}"):
            train(*arguments, path)
        assert path.read_bytes() == before  # nothing was overwritten
    path.write_bytes(before[:-100])
    with pytest.raises(ValueError, match=r"checkpoint: .*c\.pt is not a checkpoint of this trainer, or is damaged"):
        train(deep(series), windows, val, config, path)


_RUN = """
import sys, numpy as np, torch
from neurips26.filterbank_tsf.peers import make_peer
from neurips26.filterbank_tsf.training import *
torch.set_num_threads(1)
z = np.sin(2 * np.pi * np.arange(900)[:, None] / np.array([24, 12]))
model = make_peer("rootpurge", 48, 24, 2, 24)
config = TrainConfig(epochs=int(sys.argv[2]), patience=99, batch=16)
train(model, Windows(z[:600], 48, 24), Windows(z[552:], 48, 24), config, sys.argv[1])
torch.save(model.state_dict(), sys.argv[1] + ".end")
"""


@pytest.mark.slow
def test_killed_process_resumes_bit_exact(tmp_path):
    env = dict(os.environ, OMP_NUM_THREADS="1")
    command = [sys.executable, "-c", _RUN]
    subprocess.run([*command, str(tmp_path / "a"), "12"], check=True, env=env)
    process = subprocess.Popen([*command, str(tmp_path / "b"), "12"], env=env)
    while not (tmp_path / "b").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run([*command, str(tmp_path / "b"), "12"], check=True, env=env)
    a, b = (torch.load(tmp_path / f"{n}.end", weights_only=True) for n in "ab")
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_dlinear_approaches_the_affine_optimum_from_above(series):
    windows = Windows(series[:300], 24, 12)
    stats = WindowStats.from_series(series[:300].astype(np.float32), 24, 12)
    optimum = least_squares_affine(stats)
    best = stats.mse(optimum.weight, optimum.bias)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = DLinear(24, 12)
        train(model, windows, windows, TrainConfig(lr=1e-2, epochs=60, patience=60, batch=64))
    reached = score(model, windows)[0]
    assert best - 1e-7 <= reached <= 1.02 * best


def test_closed_form_of_sparsetsf_without_its_convolution(series):
    stats = WindowStats.from_series(series[:600], L, H).normalised("mean")
    model = SparseTSF(L, H, 12)
    with torch.no_grad():
        model.conv.weight.zero_()
        model.linear.weight.copy_(torch.from_numpy(shared_core(stats, 12).T))
    x = torch.from_numpy(series[100 : 100 + L].T.copy()).float()
    level = x.mean(-1, keepdim=True)
    kron = torch.from_numpy(np.kron(shared_core(stats, 12), np.eye(12))).float()
    assert torch.allclose(model(x), (x - level) @ kron + level, atol=1e-4)


def test_fits_passes_a_low_frequency_through_its_spectrum():
    model = FITS(48, 48, period=24, harmonics=2)
    assert model.bins == 16 and model.outputs == 32
    with torch.no_grad():  # bin k of the look-back is bin 2k of the doubled window
        model.linear.weight.zero_()
        model.linear.bias.zero_()
        for k in range(14):
            model.linear.weight[2 * k, k] = 1.0
    x = torch.sin(2 * torch.pi * torch.arange(96) * 3 / 48)
    assert torch.allclose(model(x[None, :48])[0], x[48:], atol=1e-4)


def test_cyclenet_uses_the_time():
    model = CycleNet(24, 12, 1, cycle=24)
    with torch.no_grad():
        model.linear.weight.zero_()
        model.linear.bias.zero_()
        model.queue.copy_(torch.arange(24.0)[None])
    x = torch.zeros(1, 1, 24)
    x[..., 0], x[..., 1] = 1.0, -1.0
    mean, sd = x.mean(), (x.var(correction=0) + 1e-5).sqrt()
    expected = torch.arange(24.0)[(torch.arange(12) + 5) % 24] * sd + mean
    assert torch.allclose(model(x, torch.tensor([5]))[0, 0], expected, atol=1e-5)


def test_root_purge_penalises_the_forecast_of_residuals():
    model = RootPurge(4, 4, strength=2.0)
    with torch.no_grad():
        model.linear.weight.copy_(torch.eye(4) * 0.5)
    x, y = torch.tensor([[[1.0, -1.0, 2.0, -2.0]]]), torch.tensor([[[0.0, 1.0, 0.0, 1.0]]])
    residual = y - 0.5 * x
    expected = residual.square().mean() + 2.0 * (0.5 * residual).square().mean()
    assert float(model.loss(x, y, torch.zeros(1)).detach()) == pytest.approx(float(expected), rel=1e-6)


def test_timebase_penalty_vanishes_for_an_orthogonal_basis():
    model = TimeBase(8, 4, period=4, basis=2, penalty=10.0)
    with torch.no_grad():
        model.extract.weight.copy_(torch.eye(2))
        model.extract.bias.zero_()
    x = torch.tensor([[[1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0, -1.0]]])  # zero mean, orthogonal halves
    y = torch.zeros(1, 1, 4)
    assert float(model.loss(x, y, torch.zeros(1)).detach()) == pytest.approx(
        float(model(x).square().mean().detach()), rel=1e-6
    )


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_learns_something(series, name):
    windows, val = parts(series)
    stats = WindowStats.from_series(series[:600], L, H)
    model = make_peer(name, L, H, 2, 12, stats)
    with torch.no_grad():
        before = score(model, val)[0]
    history = train(model, windows, val, TrainConfig(lr=1e-2, epochs=2, batch=64))
    assert history.best < before and model.macs() > 0
    with pytest.raises(ValueError, match="name must be one of"):
        make_peer("informer", L, H, 2, 12)
