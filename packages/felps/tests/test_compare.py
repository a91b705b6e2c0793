"""Fronts by hand, resumable sweeps, effects of claims, the command line, and the replay client."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from neurips26.felps import (
    EngineModel,
    Simulator,
    Workload,
    claims,
    compare,
    dominated,
    effects,
    experiments,
    hypervolume,
    live,
    pareto,
    sweeps,
    tuning,
)
from neurips26.felps.cli import main
from neurips26.felps.compare import label
from neurips26.felps.integrations import replay_vllm
from neurips26.shared.context import Context


def test_hypervolume_by_hand():
    assert hypervolume([[1.0, 1.0]], [0.0, 0.0]) == 1.0
    assert hypervolume([[3.0, 1.0], [2.0, 2.0], [1.0, 3.0]], [0.0, 0.0]) == 6.0
    assert (
        hypervolume([[3.0, 1.0], [2.0, 2.0], [1.0, 3.0], [1.0, 1.0]], [0.0, 0.0]) == 6.0
    )  # a dominated point adds nothing
    assert hypervolume([[3.0, 1.0], [3.0, 2.0]], [1.0, 0.0]) == 4.0  # equal abscissae
    assert hypervolume([[0.5, 9.0]], [1.0, 0.0]) == 0.0
    assert dominated([[3.0, 1.0], [2.0, 2.0], [1.0, 1.0], [2.0, 2.0]]).tolist() == [False, False, True, False]


def test_hypervolume_against_counting():
    rng = np.random.default_rng(0)
    points = rng.integers(1, 20, (12, 2)).astype(float)
    grid = np.stack(np.meshgrid(np.arange(20), np.arange(20)), -1).reshape(-1, 2) + 0.5
    assert hypervolume(points, [0.0, 0.0]) == (grid[:, None] < points[None]).all(-1).any(1).sum()


def bench():
    return Simulator(EngineModel.preset("a10g-llama-7b"), 2, 8, 256, 4000)


def test_an_interrupted_sweep_continues(tmp_path, monkeypatch):
    loads = [Workload.synthetic(5, 3.0, 15.0, seed=s) for s in range(2)]
    settings = [{"policy": "felps", "weight": 0.2}, {"policy": "vtc", "mode": "drain"}]
    whole = compare(loads, settings, bench())
    simulator, calls = bench(), []
    inner = simulator.run

    def dies(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return inner(*args, **kwargs)

    monkeypatch.setattr(simulator, "run", dies)
    with pytest.raises(KeyboardInterrupt):
        compare(loads, settings, simulator, tmp_path)
    again = compare(loads, settings, simulator, tmp_path)
    assert len(calls) == 3 + 2  # two were on disk, the third died, two remained
    assert again == whole
    assert {row["label"] for row in again} == {"felps weight=0.2", "vtc mode=drain"}
    assert pareto(again, tmp_path / "front.png").stat().st_size > 5000


def test_windows_overlap_neither_each_other_nor_development():
    for trace, windows in experiments.WINDOWS.items():
        starts = sorted(windows.reported)
        assert len(starts) >= 5 and min(np.diff(starts)) >= windows.length
        earlier = 1500.0 if trace != "arena" else starts[0] - windows.length
        for reported in starts:
            assert all(abs(reported - start) >= windows.length for start in (*windows.development, earlier))
    assert [experiments.window_of("arena", i) for i in range(6)] == [0, 1, 2, 3, 4, 0]
    assert experiments.window_of("conv", 3, development=True) == 0


def test_a_seed_of_the_arena_trace_draws_the_order_of_its_windows_pieces(trace):
    first = Workload.from_csv(trace("arena")).window(200.0, 80.0)
    rows = []
    for seed in (20_100, 20_101):
        drawn = experiments.workload("arena", trace("arena"), seed, 5)
        assert drawn.duration == 80.0 and (np.diff(drawn.arrival) >= 0).all() and drawn.arrival[-1] < 80.0
        rows.append(list(zip(drawn.adapter.tolist(), drawn.prompt.tolist(), drawn.output.tolist())))
    wanted = sorted(zip(first.adapter.tolist(), first.prompt.tolist(), first.output.tolist()))
    assert sorted(rows[0]) == sorted(rows[1]) == wanted and rows[0] != rows[1]


def test_shuffled_pieces_by_hand():
    load = Workload(np.array([0.0, 1.0, 4.5]), np.array([1, 2, 3]), np.full(3, 5), np.full(3, 2), duration=6.0)
    seen = {tuple(zip(w.arrival, w.adapter)) for w in (experiments.shuffled(load, s, 3.0) for s in range(8))}
    assert seen == {((0.0, 1), (1.0, 2), (4.5, 3)), ((1.5, 3), (3.0, 1), (4.0, 2))}


def test_stretches_of_the_arena_trace_do_not_overlap(trace):
    path = trace("arena")
    whole = Workload.from_csv(path)
    ids, counts = np.unique(whole.adapter, return_counts=True)
    popular = ids[np.argsort(-counts, kind="stable")][: live.VLLM_ADAPTERS]
    late = (whole.arrival >= experiments.ARENA_SPLIT) & np.isin(whole.adapter, popular)
    windows = [live.vllm_window(path, i, 0) for i in range(live.VLLM_WINDOWS)]
    kept = np.flatnonzero(late)
    for i, window in enumerate(windows):
        rows = kept[len(kept) * i // 8 :][:110]
        assert rows[-1] < (kept[len(kept) * (i + 1) // 8] if i < 7 else len(whole))
        assert window.output.tolist() == np.clip(whole.output[rows] // 16, 2, 40).tolist()
    development = live.vllm_development(path, 90_000)
    assert len(development) == 110
    with pytest.raises(ValueError, match="span"):
        live.small_arena(path, 0, 110, 12, 96, 40, 2.0, (0.0, 5.0))
    with pytest.raises(ValueError, match="stretch"):
        live.small_arena(path, 0, 110, 12, 96, 40, 2.0, (200.0, np.inf), (0, 9))


def test_weights_and_modes_are_those_that_tuning_chose():
    """The constants of the claims against the committed record, where there is one."""
    path = Path(__file__).resolve().parents[3] / "results" / "felps" / "tune.json"
    if not path.exists():
        pytest.skip("no tuning record beside this checkout")
    chosen = {grid["id"]: grid["chosen"] for grid in json.loads(path.read_text())["grids"]}
    if "felps/conv" not in chosen.get("modes", {}):
        pytest.skip("the tuning record is older than these grids")
    assert {f"felps/{trace}": {"mode": mode} for trace, mode in experiments.FELPS_MODE.items()} == chosen["modes"]
    assert chosen["weight"]["felps"]["weight"] == experiments.WEIGHT
    assert chosen["weight-vtc-skip"]["felps"]["weight"] == experiments.SKIP_WEIGHT
    plug_in = chosen["vllm-weight"]["felps"]
    assert plug_in == {name: live.PLUG_IN[name] for name in plug_in}


def test_the_worst_trace_makes_the_margin():
    gains = {"a": {"jain": 0.1, "throughput": 1.03}, "b": {"jain": 0.05, "throughput": 0.99}}
    assert tuning._margin(gains) == pytest.approx(0.02)
    assert tuning._margin(gains | {"c": {"jain": 0.3, "throughput": 0.96}}) == pytest.approx(np.log(0.96 / 0.97))


def test_sureness_counts_margins_in_their_spreads():
    bar = float(np.log(0.97))
    gain = {"jain": [0.05, 0.07], "throughput": [bar + 0.1, bar + 0.1]}  # 0.03 above, spread 0.0141
    assert tuning._sureness(gain) == pytest.approx(0.03 / np.std([0.05, 0.07], ddof=1))
    assert tuning._sureness(gain | {"throughput": [bar - 0.1, bar]}) < 0


def test_replays_side_by_side_take_a_step_each_in_turn(monkeypatch):
    log = []

    def one(name, steps):
        for _ in range(steps):
            log.append(name)
            yield
        return {"name": name}

    assert replay_vllm.in_turns([one("a", 3), one("b", 1)]) == [{"name": "a"}, {"name": "b"}]
    assert log == ["a", "b", "a", "a"]
    monkeypatch.setattr(replay_vllm.time, "process_time", iter([1.0, 3.0, 10.0, 11.0]).__next__)
    clock = replay_vllm.Stopwatch()  # at 1
    clock.stop()  # at 3
    clock.start()  # at 10: the other replay had its turn
    assert clock.read() == 2.0 + 1.0


def test_both_schedulers_serve_the_same_windows_inside_vllm(tmp_path, monkeypatch):
    """Windows of the trace, then long queues; made-up outcomes in place of vLLM's."""
    load = Workload(np.zeros(2), np.array([1, 2]), np.array([10, 10]), np.array([5, 5]))
    monkeypatch.setattr(live, "vllm_window", lambda path, index, seed: load)
    monkeypatch.setattr(live, "VLLM_WINDOWS", 3)
    asked = {}

    def outcome(makespan, tokens, schedule_seconds):
        return {"makespan": makespan, "busy": 1.0, "first": {"0": 1.0}, "texts": {"0": [1], "1": [tokens]},
                "progress": [[1.0, 0, 5]], "loads": 2, "steps": 10, "preemptions": 0,
                "schedule_seconds": schedule_seconds}  # fmt: skip

    def serve(job):
        asked.update(job)
        return [
            [outcome(4.0, 7, 0.1), outcome(2.0 if i < 3 else 8.0, 7 + (i in (2, 7)), 0.15)]
            for i in range(len(job["runs"]))
        ]

    monkeypatch.setattr(live, "serve_in_vllm", serve)
    ctx = Context("felps", "cpu", "vllm", tmp_path)
    out = live.vllm_outcomes(ctx, replays=2, queues=2)
    assert [len(run["rows"]) for run in asked["runs"]] == [2] * 6 + [512, 512]
    assert all(run["schedulers"] == [None, live.PLUG_IN] for run in asked["runs"])
    assert out["shares"] == pytest.approx([0.05, 0.05])
    assert [row["different"] for row in out["rows"]] == [0, 0, 1, 0, 0, 0] and out["different"] == [0, 1]
    assert [(row["window"], row["replay"]) for row in out["rows"]] == [(w, r) for r in range(2) for w in range(3)]
    measured = live.vllm_measurement(ctx, out["rows"], "throughput")
    assert measured.ours.values == pytest.approx([np.sqrt(40 / 2 * 40 / 8)] * 3)  # a window counts once
    assert measured.baselines["default"].values == pytest.approx([40 / 4] * 3)
    assert len(measured.seeds) == 3 and len(measured.cells) == 6 * 2 * 4


def test_claims_and_grids_on_made_up_figures(tmp_path, monkeypatch):
    """FELPS ten per cent ahead of everybody, but for one trace: effects, notes and choices must say so."""

    def run(find, trace, seed, index, setting, development=False):
        ours = setting["policy"] == "felps"
        most = 1.02 if trace == "code" else 1.1
        gain = most - 0.1 * abs(setting["weight"] - 0.2) if ours else 1.0
        return {"jain": 0.8 * gain, "throughput": 100.0 * gain}

    monkeypatch.setattr(experiments, "run", run)
    measured = claims.beats_fair(Context("felps", "cpu", "beats-fair-schedulers", tmp_path))
    seeds = dict.fromkeys(("conv", "code"), sweeps.REPEATS * 6 * 2) | {"arena": sweeps.REPEATS * 5 * 4}
    assert len(measured.seeds) == len(measured.ours.values) == sum(seeds.values())
    assert min(measured.seeds) == 20_000 + sweeps.FIRST_SEED
    effect, low, high = effects.smallest_advantage(measured.cells, 0.95)
    assert effect == pytest.approx(low) == pytest.approx(high) == pytest.approx(0.02)
    against = claims.fairer_than_vtc_skip(ctx := Context("felps", "cpu", "fairer-than-vtc-skip", tmp_path))
    assert effects.difference_on_worst_trace(against.cells, 0.95) == pytest.approx([0.8 * 0.02] * 3)
    assert "code 0.016 [0.016, 0.016] over 6 windows" in ctx.notes[0] and against.reason
    as_fast = claims.as_fast_as_vtc_skip(Context("felps", "cpu", "as-fast-as-vtc-skip", tmp_path))
    assert effects.ratio_on_worst_trace(as_fast.cells, 0.95) == pytest.approx([1.02] * 3) and not as_fast.reason
    tuned = tuning.tune_weight_against_skip(Context("felps", "tune", "weight-vtc-skip", tmp_path))
    assert tuned.chosen == {"felps": {"weight": 0.2}} and len(tuned.cells) == (3 + 3 + 12) * 9 * 2
    assert tuning.tune_weight(Context("felps", "tune", "weight", tmp_path)).chosen == {"felps": {"weight": 0.2}}


def test_requests_that_all_come_at_once_are_served_to_the_end():
    load = Workload(np.zeros(4), np.array([1, 2, 1, 2]), np.full(4, 5), np.full(4, 3))
    row = compare(load, [{"policy": "felps"}], bench())[0]
    assert row["unfinished"] == 0 and row["throughput"] > 0


def test_every_method_has_the_same_tuning_budget():
    counts = {}
    for setting in experiments.tuning_grid():
        counts[setting["policy"]] = counts.get(setting["policy"], 0) + 1
    assert {counts[p] for p in ("felps", "drr", "dlpm", "dlora")} == {9}
    assert {counts[p] for p in ("vtc", "fcfs", "affinity", "sjf")} == {3}  # all they have


def cell(setting, metric, window, value, seed=0):
    factors = {"trace": "t", "window": window, "setting": setting, "metric": metric}
    return {"factors": factors, "seed": seed, "method": setting.split()[0], "value": value}


def test_dominance_in_the_mean_and_beyond_noise():
    def cells(jain, throughput, noise):
        out = []
        for window in range(6):
            wobble = noise * (-1) ** window
            out += [
                cell("felps mode=drain weight=0.2", "jain", window, 0.9),
                cell("felps mode=drain weight=0.2", "throughput", window, 100.0),
                cell("felps mode=drain weight=0.7", "jain", window, 0.1),
                cell("felps mode=drain weight=0.7", "throughput", window, 1.0),
                cell("rival q=1", "jain", window, jain + wobble),
                cell("rival q=1", "throughput", window, throughput),
            ]
        return out

    assert effects.dominating_points(cells(0.95, 101.0, 0.001), 0.95) == (1, 1, 1)
    assert effects.dominating_points(cells(0.95, 99.0, 0.001), 0.95) == (0, 0, 0)
    assert effects.dominating_points(cells(0.905, 101.0, 0.2), 0.95) == (0, 0, 1)
    rows = {
        "felps weight=0.5": (0.9, 10.0),
        "felps weight=0.7": (0.5, 11.0),
        "a q=1": (0.95, 11.0),
        "b q=1": (0.8, 20.0),
    }
    figures = {name: {"jain": jain, "throughput": throughput} for name, (jain, throughput) in rows.items()}
    assert sweeps.pairs_dominated(figures) == 1


def test_a_window_counts_once_and_the_worst_trace_decides():
    values = {("a", 0): [0.1, 0.3], ("a", 1): [0.4], ("b", 0): [0.2], ("b", 1): [0.2, 0.2]}
    cells = [
        {"factors": {"trace": trace, "window": window}, "seed": seed, "method": method, "value": value}
        for (trace, window), gains in values.items()
        for seed, gain in enumerate(gains)
        for method, value in (("felps", 1.0 + gain), ("x", 1.0), ("y", 0.5))
    ]
    assert {t: pytest.approx(v) for t, v in effects.advantages(cells).items()} == {"a": [0.2, 0.4], "b": [0.2, 0.2]}
    effect, low, high = effects.difference_on_worst_trace(cells, 0.95)
    wide = 0.1 * stats.t.ppf(0.975, 1)  # two windows of trace a: mean 0.3, standard error 0.1
    assert (effect, low, high) == pytest.approx((0.2, 0.3 - wide, 0.2))
    assert effects.ratio_on_worst_trace(cells, 0.95)[0] == pytest.approx(1.2)
    # The upper ends share the error: with two groups of equal spread they are those of half the error.
    _, low, high = effects.least({"a": [0.0, 0.2], "b": [0.0, 0.2]}, 0.95)
    assert (low, high) == pytest.approx((0.1 - wide, 0.1 + 0.1 * stats.t.ppf(1 - 0.025 / 2, 1)))


def test_smallest_advantage_and_trend():
    rows = [
        {"factors": {"trace": t, "window": w, "rival": r, "metric": m}, "seed": 0, "method": "felps", "value": v}
        for w in range(5)
        for t in ("s", "t")
        for r, m, v in (("a", "jain", 1.2), ("a", "throughput", 1.05 if t == "t" else 1.5), ("b", "jain", 2.0))
    ]
    assert effects.smallest_advantage(rows, 0.95)[0] == pytest.approx(0.05)
    trend = [
        {"factors": {"window": s % 5, "weight": w / 10}, "seed": s, "method": "felps", "value": -w * (s + 1.0)}
        for s in range(10)
        for w in range(6)
    ]
    assert effects.weight_trend(trend, 0.95) == (-1.0, -1.0, -1.0)


def test_front_areas_share_one_box():
    areas = experiments.front_areas({"x": ("a", 0.0, 0.0), "y": ("a", 1.0, 0.5), "z": ("b", 0.5, 1.0)})
    assert areas == {"a": 0.5, "b": 0.5}


def test_label():
    assert label({"policy": "felps", "mode": "drain", "weight": 0.2}) == "felps mode=drain weight=0.2"


@pytest.mark.bad_input
def test_command_line(tmp_path, capsys):
    pytest.importorskip("httpx")
    assert main(["sweep", "felps:weight=0.2", "fcfs", "--trace.duration", "10", "--out", str(tmp_path)]) == 0
    assert "felps weight=0.2" in capsys.readouterr().out
    assert (tmp_path / "front.png").exists() and len(json.loads((tmp_path / "table.json").read_text())) == 2
    assert main(["simulate", "vtc:mode=block", "--trace.duration", "10", "--out", str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["policy"]["mode"] == "block"
    assert main(["trace", "--trace.duration", "10"]) == 0
    capsys.readouterr()
    for spec, named in (
        ("felps:weight=-1", "weight"), ("felps:weight=much", "weight"), ("felps:alpha=half", "alpha"),
        ("felps:half_life=long", "half_life"), ("felps:prior_output=x", "prior_output"), ("felps:commit=maybe", "commit"),
        ("felps:load_cost=3,residency=cost", "load_cost"), ("vtc:mode=3", "mode"), ("sjf:estimator=5", "estimator"),
        ("drr:quantum=big", "quantum"), ("dlora:threshold=-1", "threshold"), ("nobody", "policy"), ("fcfs:wait=1", "wait"),
        ("felps:max_draining=1.5", "max_draining"), ("felps:ewma_rate=0", "ewma_rate"), (":", "policy"),
    ):  # fmt: skip
        assert main(["simulate", spec, "--trace.duration", "5"]) == 2, spec
        error = capsys.readouterr().err
        assert named in error and error.count("\n") == 1, (spec, error)
    assert main(["trace", "--trace.path", str(tmp_path / "none.csv")]) == 2
    assert main(["simulate", "felps:max_draining=1,commit=true,half_life=none", "--trace.duration", "5"]) == 0
    capsys.readouterr()
    assert main(["sweep", "fcfs", "--seeds", "0", "--out", str(tmp_path)]) == 2
    assert "seeds" in capsys.readouterr().err
    Workload.synthetic(2, 2.0, 5.0).save(tmp_path / "t.csv")
    for arguments, named in (
        (["trace", "--trace.start", "5"], "start"), (["trace", "--trace.duration", "0"], "duration"),
        (["trace", "--trace.alpha", "nan"], "alpha"), (["trace", "--trace.path", "x.csv", "--trace.seed", "1"], "seed"),
        (["trace", "--trace.path", "x.csv", "--trace.adapters", "4"], "adapters"),
        (["sweep", "fcfs", "--seeds", "2", "--trace.path", str(tmp_path / "t.csv"), "--out", str(tmp_path)], "seeds"),
        (["replay", "nowhere", "--trace.duration", "1"], "url"),
        (["replay", "http://x", "--models", "x-{name}"], "models"),
        (["replay", "http://localhost:1", "--trace.duration", "1", "--out", str(tmp_path / "r.json")], "none of 1 requests"),
    ):  # fmt: skip
        assert main(arguments) == 2, arguments
        assert named in capsys.readouterr().err
    (tmp_path / "p.json").write_text("{")
    assert main(["calibrate", str(tmp_path / "p.json")]) == 2
    assert "p.json: expected JSON" in capsys.readouterr().err


def test_replay_is_open_loop_and_survives_errors():
    httpx = pytest.importorskip("httpx")
    from neurips26.felps.replay import replay, summary

    load = Workload(np.array([0.0, 0.05, 0.1]), np.array([1, 2, 1]), np.array([2, 3, 2]), np.array([3, 2, 1]))
    seen = []

    async def handler(request):
        body = json.loads(request.content)
        seen.append((body["model"], body["max_tokens"]))
        if body["model"] == "two":
            return httpx.Response(404, json={"error": {"message": "no such adapter"}})
        await asyncio.sleep(0.3)  # the first answer comes after the last request was sent
        lines = [f"data: {json.dumps({'choices': [{'text': 'x'}]})}\n\n" for _ in range(body["max_tokens"])]
        return httpx.Response(200, text="".join(lines) + "data: [DONE]\n\n")

    replies = asyncio.run(replay(load, "http://server", {1: "one", 2: "two"}, transport=httpx.MockTransport(handler)))
    assert seen == [("one", 3), ("two", 2), ("one", 1)]
    assert [r.tokens for r in replies] == [3, 0, 1]
    assert replies[2].sent < replies[0].finish
    assert "404" in replies[1].error and "no such adapter" in replies[1].error
    assert summary(replies)["adapters"][2]["failed"] == 1
    with pytest.raises(ValueError, match="models"):
        asyncio.run(replay(load, "http://server", {1: "one"}))
