"""Traces: the public ones by their published sizes, and everything that can be wrong with a file."""

from __future__ import annotations

import json

import numpy as np
import pytest

from neurips26.felps import EngineModel, Request, Step, TraceError, Workload, calibrate, fit_cost_profile


def test_conversation_trace(trace):
    workload = Workload.from_azure_csv(trace("conv"), n_adapters=32)
    described = workload.describe()
    assert (described["requests"], described["prompt_median"], described["prompt_max"]) == (19366, 1020, 14050)
    assert (described["output_median"], described["output_max"]) == (129, 1000)
    assert described["prompt_mean"] == pytest.approx(1154.7, abs=0.05)
    assert described["duration_s"] == pytest.approx(3501.7, abs=0.1)
    assert described["adapters"] == 32 and described["origin"] == "real"


def test_code_trace_without_final_newline(trace):
    assert not trace("code").read_bytes().endswith(b"\n")
    described = Workload.from_azure_csv(trace("code")).describe()
    assert (described["requests"], described["prompt_median"], described["output_median"]) == (8819, 1469, 13)


def test_arena_trace(trace):
    workload = Workload.from_csv(trace("arena"))
    assert len(workload) == 1500 and len(workload.adapters) == 27
    counts = np.sort(np.bincount(workload.adapter))[::-1]
    assert counts[:4].tolist() == [296, 262, 199, 120]
    assert workload.prompt.mean() == pytest.approx(136.3, abs=0.05)
    faster = Workload.from_csv(trace("arena"), rate_scale=1.5)
    assert faster.duration == pytest.approx(workload.duration / 1.5, rel=1e-6)


def test_cost_profile_fit(trace):
    profile = json.loads(trace("profile").read_text())
    model = fit_cost_profile(profile)
    preset = EngineModel.preset("a10g-llama-7b")
    assert model.prefill_token == pytest.approx(0.000215, rel=0.01)
    for name in ("base", "prefill_token", "decode_seq", "kv_token"):
        assert getattr(preset, name) == pytest.approx(getattr(model, name), rel=0.01)
    errors = []
    for prompt, cells in profile.items():
        for output, (batch, _, decode) in cells.items():
            steps = int(output)
            predicted = sum(model.step(0, 0, batch, batch * (int(prompt) + i)) for i in range(steps)) / batch
            errors.append(abs(predicted / decode - 1))
    assert np.median(errors) < 0.15


def test_calibration_recovers_the_coefficients():
    truth = EngineModel(0.02, 2e-4, 3e-3, 1e-6, 0.4, prefill_seq=5e-3)
    rng = np.random.default_rng(0)
    steps = []
    for _ in range(200):
        p, s, d, k, n = (
            rng.integers(0, 500),
            rng.integers(0, 3),
            rng.integers(0, 16),
            rng.integers(0, 9000),
            rng.integers(0, 2),
        )
        p, s = (int(p), 1 + int(s)) if s else (0, 0)
        seconds = truth.step(p, s, int(d), int(k)) * float(rng.normal(1, 0.01)) + 0.4 * int(n)
        steps.append(Step(p, s, int(d), int(k), int(n), seconds, 0.4 * int(n)))
    fitted = calibrate(steps)
    for name in ("base", "prefill_token", "decode_seq", "load", "prefill_seq"):
        assert getattr(fitted, name) == pytest.approx(getattr(truth, name), rel=0.05), name
    with pytest.raises(ValueError, match="at least 5"):
        calibrate(steps[:3])


def test_calibration_by_batch_size_recovers_a_time_a_size():
    """Three sequences slower than four, as on a CPU; size 2 never occurs and lies between its neighbours."""
    truth = EngineModel(0.0, 2e-4, 0.0, 0.0, 0.0, 5e-3, decode_adapter=0.01, decode_batch=(0.07, 0.1, 0.13, 0.11))
    rng = np.random.default_rng(1)
    steps = []
    for _ in range(200):
        d, prompts = int(rng.choice([0, 1, 3, 4])), int(rng.integers(0, 3))
        prompts = max(prompts, d == 0)
        a, tokens = int(rng.integers(min(d, 1), min(d, 2) + 1)), int(rng.integers(1, 40)) * prompts
        kv = d * int(rng.integers(5, 50))
        steps.append(Step(tokens, prompts, d, kv, 0, truth.step(tokens, prompts, d, kv, a), 0.0, a))
    fitted = calibrate(steps, by_batch=True)
    assert fitted.decode_batch == pytest.approx(truth.decode_batch, rel=1e-6)
    for name in ("prefill_token", "prefill_seq", "decode_adapter"):
        assert getattr(fitted, name) == pytest.approx(getattr(truth, name), rel=1e-6), name
    assert fitted.step(0, 0, 9, 0, 1) == pytest.approx(0.12)  # more than were seen: as the last
    assert truth.step(0, 0, 0, 0) == 0.0


def test_engine_model_refuses_nonsense():
    with pytest.raises(ValueError, match="load"):
        EngineModel(0.01, 1e-4, 1e-3, 0.0, -1.0)
    with pytest.raises(ValueError, match="overlap"):
        EngineModel(0.01, 1e-4, 1e-3, 0.0, 0.1, overlap=1.5)
    with pytest.raises(ValueError, match="base"):
        EngineModel(0.0, 1e-4, 0.0, 0.0, 0.1)
    with pytest.raises(ValueError, match="decode_batch"):
        EngineModel(0.0, 1e-4, 0.0, 0.0, 0.1, decode_batch=(0.1, 0.0))
    with pytest.raises(ValueError, match="preset"):
        EngineModel.preset("a10g")


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_seven_fractional_digits_and_midnight(tmp_path):
    text = AZURE + "2023-11-16 23:59:59.9799600,10,5\n2023-11-17 00:00:00.0319601,10,5"
    workload = Workload.from_azure_csv(write(tmp_path, text))
    assert workload.arrival == pytest.approx([0.0, 0.0520001], abs=2e-7)


def test_unsorted_rows_are_sorted_with_a_warning(tmp_path):
    text = "arrival_s,adapter,prompt_tokens,output_tokens\n2.0,a,3,1\n1.0,b,4,1\n"
    with pytest.warns(UserWarning, match="sorted"):
        workload = Workload.from_csv(write(tmp_path, text))
    assert workload.prompt.tolist() == [4, 3] and workload.adapter.tolist() == [2, 1]


def test_zero_and_missing_lengths_are_dropped_and_counted(tmp_path):
    text = (
        AZURE + "2023-11-16 00:00:00,10,5\n2023-11-16 00:00:01,0,5\n2023-11-16 00:00:02,NaN,5\n2023-11-16 00:00:03,7\n"
    )
    with pytest.warns(UserWarning, match="3 rows"):
        workload = Workload.from_azure_csv(write(tmp_path, text))
    assert len(workload) == 1 and workload.dropped == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty file"),
        (AZURE, "at least one usable"),
        ("TIMESTAMP,ContextTokens\n", "GeneratedTokens"),
        (AZURE + "2023-11-16 00:00:00,10,5\nyesterday,10,5\n", "line 3: TIMESTAMP"),
        (AZURE + "2023-11-16 00:00:00,ten,5\n", "line 2: ContextTokens"),
        (AZURE + "2023-11-16 00:00:00,1.5,5\n", "whole number"),
        (AZURE + "2023-11-16 00:00:00,-3,5\n", "line 2: ContextTokens: expected a whole number"),
        (AZURE + "2023-11-16 00:00:00,3,1e30\n", "line 2: GeneratedTokens: expected a whole number"),
    ],
)
def test_broken_files_say_where(tmp_path, text, message):
    with pytest.raises(TraceError, match=message):
        Workload.from_azure_csv(write(tmp_path, text))


def test_times_that_are_none_and_files_that_are_no_text(tmp_path):
    header = "arrival_s,adapter,prompt_tokens,output_tokens\n0,a,3,1\n"
    for time in ("inf", "-1", "soon"):
        with pytest.raises(TraceError, match="line 3: arrival_s"):
            Workload.from_csv(write(tmp_path, header + f"{time},a,3,1\n"))
    path = tmp_path / "trace.csv"
    path.write_bytes(b"arrival_s,adapter\xff\xfe")
    with pytest.raises(TraceError, match="trace.csv: expected a CSV file"):
        Workload.from_csv(path)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "profile", [{"8": 1}, {"8": {"1": [1.0]}}, {"8": {"x": [1.0, 0.1, 0.1]}}, {"8": {"1": [0.0, 0.1, 0.1]}}, {}]
)
def test_a_profile_of_another_form_is_refused(profile):
    with pytest.raises(ValueError, match="profile"):
        fit_cost_profile(profile)


def test_mooncake_lines(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"timestamp": 1500, "input_length": 7, "output_length": 3}\n\n')
    workload = Workload.from_jsonl(path, 4)
    assert (workload.arrival[0], workload.prompt[0], workload.output[0]) == (1.5, 7, 3)
    path.write_text(
        '{"timestamp": 0, "input_length": 7, "output_length": 0}\n{"timestamp": 9, "input_length": 7, "output_length": 3}'
    )
    with pytest.warns(UserWarning, match="1 rows"):
        assert Workload.from_jsonl(path, 4).dropped == 1
    path.write_text('{"timestamp": 1500, "input_length": 7}\n')
    with pytest.raises(TraceError, match="line 1"):
        Workload.from_jsonl(path)


def test_round_trip_and_base_label(tmp_path):
    workload = Workload.synthetic(5, 3.0, 30.0, seed=1)
    workload.save(tmp_path / "w.csv")
    again = Workload.from_csv(tmp_path / "w.csv")
    assert again.prompt.tolist() == workload.prompt.tolist() and len(again.adapters) == len(workload.adapters)
    assert again.arrival == pytest.approx(workload.arrival, abs=1e-6)
    text = "arrival_s,adapter,prompt_tokens,output_tokens\n0,base,3,1\n1,x,4,1\n"
    assert Workload.from_csv(write(tmp_path, text), base="base").adapter.tolist() == [0, 1]


def test_zipf_assignment_is_seeded_and_skewed():
    workload = Workload.synthetic(1, 50.0, 200.0, seed=0)
    one, two = workload.with_adapters(16, 1.0, seed=3), workload.with_adapters(16, 1.0, seed=3)
    assert (one.adapter == two.adapter).all()
    shares = np.sort(np.bincount(one.adapter, minlength=17)[1:])[::-1] / len(one)
    expected = 1 / np.arange(1, 17) / (1 / np.arange(1, 17)).sum()
    assert shares == pytest.approx(expected, abs=0.02)
    flat = workload.with_adapters(16, 0.0, seed=3)
    assert np.bincount(flat.adapter).max() < 1.3 * len(flat) / 16


@pytest.mark.parametrize("arrivals", ["poisson", "gamma", "onoff"])
def test_synthetic_rates(arrivals):
    workload = Workload.synthetic(4, 8.0, 600.0, arrivals, seed=2)
    assert len(workload) / 600 == pytest.approx(8.0, rel=0.15)
    assert workload.prompt.mean() == pytest.approx(300, rel=0.1)
    assert workload.origin == "generated"


def test_bad_windows_and_arrays():
    workload = Workload.synthetic(2, 2.0, 10.0)
    with pytest.raises(ValueError, match="start"):
        workload.window(500.0, 1.0)
    with pytest.raises(ValueError, match="rate_scale"):
        workload.window(rate_scale=0.0)
    with pytest.raises(ValueError, match="prompt"):
        Workload(np.zeros(1), np.ones(1), np.zeros(1), np.ones(1))
    with pytest.raises(ValueError, match="arrival"):
        Workload(np.array([np.nan]), np.ones(1), np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match=r"output: expected whole numbers, got 1\.5"):
        Workload(np.zeros(2), np.ones(2), np.ones(2), np.array([1.0, 1.5]))
    with pytest.raises(ValueError, match="output_mean"):
        Workload.synthetic(2, 2.0, 10.0, output_mean=0.0)


def test_from_request_objects():
    workload = Workload.from_requests([Request("b", 2, 1.0, 5, 6), Request("a", 1, 0.5, 3, 4)])
    assert workload.adapter.tolist() == [1, 2] and workload.output.tolist() == [4, 6]
    with pytest.raises(ValueError, match="'a' twice"):
        Workload.from_requests([Request("a", 2, 1.0, 5, 6), Request("a", 1, 0.5, 3, 4)])
    with pytest.raises(ValueError, match="output lengths"):
        Workload.from_requests([Request("a", 1, 0.5, 3)])
