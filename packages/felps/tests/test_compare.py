"""Fronts by hand, resumable sweeps, effects of claims, the command line, and the replay client."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

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


def test_reported_and_development_windows_are_disjoint(trace):
    for reported in experiments.REPORTED_STARTS:
        for start in (*experiments.DEVELOPMENT_STARTS, 1500.0):
            assert abs(reported - start) >= experiments.WINDOW
    whole = Workload.from_csv(trace("arena"))
    early = set(zip(*(getattr(whole.window(0, 200.0), c).tolist() for c in ("adapter", "prompt", "output"))))
    early -= set(zip(*(getattr(whole.window(200.0), c).tolist() for c in ("adapter", "prompt", "output"))))
    drawn = experiments.workload("arena", trace("arena"), 20_000, 0)
    assert not early & set(zip(drawn.adapter.tolist(), drawn.prompt.tolist(), drawn.output.tolist()))
    assert drawn.duration == 320.0


def test_windows_inside_vllm_begin_where_development_ends(trace):
    for seed in (20_000, 90_000):
        reported = live.vllm_workload(trace("arena"), seed)
        development = live.vllm_workload(trace("arena"), seed, development=True)
        assert len(reported) == len(development) == 110
        kept = live.small_arena(trace("arena"), seed, 110, 12, 96, 40, 2.0, (experiments.ARENA_SPLIT, np.inf))
        assert reported.prompt.tolist() == kept.prompt.tolist() != development.prompt.tolist()
    with pytest.raises(ValueError, match="span"):
        live.small_arena(trace("arena"), 0, 110, 12, 96, 40, 2.0, (0.0, 5.0))


def test_weights_are_those_that_tuning_chose():
    """The constants of the claims against the committed record, where there is one."""
    path = Path(__file__).resolve().parents[3] / "results" / "felps" / "tune.json"
    if not path.exists():
        pytest.skip("no tuning record beside this checkout")
    chosen = {grid["id"]: grid["chosen"] for grid in json.loads(path.read_text())["grids"]}
    if "vllm-weight" not in chosen:
        pytest.skip("the tuning record is older than this grid")
    assert chosen["weight"]["felps"]["weight"] == claims.WEIGHT
    assert chosen["weight-vtc-skip"]["felps"]["weight"] == claims.SKIP_WEIGHT
    plug_in = chosen["vllm-weight"]["felps"]
    if "max_draining" not in plug_in:
        pytest.skip("the tuning record is older than this grid")
    assert plug_in == {name: live.PLUG_IN[name] for name in plug_in}


def test_the_weight_with_the_widest_margin():
    figures = {0.1: {"jain": 0.3, "throughput": 0.96}, 0.5: {"jain": 0.1, "throughput": 1.03}}
    assert tuning._widest_margin(figures) == 0.5  # -0.01 and +0.06
    assert tuning._widest_margin(figures | {0.7: {"jain": 0.08, "throughput": 1.2}}) == 0.5  # +0.05


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
    monkeypatch.setattr(live, "vllm_workload", lambda path, seed: load)
    asked = {}

    def outcome(makespan, tokens, schedule_seconds):
        return {"makespan": makespan, "busy": 1.0, "first": {"0": 1.0}, "texts": {"0": [1], "1": [tokens]},
                "progress": [[1.0, 0, 5]], "loads": 2, "steps": 10, "preemptions": 0,
                "schedule_seconds": schedule_seconds}  # fmt: skip

    def serve(job):
        asked.update(job)
        return [[outcome(4.0, 7, 0.1), outcome(2.0, 7 + (i == 2), 0.15)] for i in range(len(job["runs"]))]

    monkeypatch.setattr(live, "serve_in_vllm", serve)
    out = live.vllm_outcomes(Context("felps", "cpu", "vllm", tmp_path), windows=3, queues=2)
    assert [len(run["rows"]) for run in asked["runs"]] == [2, 2, 2, 512, 512]
    assert all(run["schedulers"] == [None, live.PLUG_IN] for run in asked["runs"])
    assert out["shares"] == pytest.approx([0.05, 0.05])
    assert [row["different"] for row in out["rows"]] == [0, 0, 1]
    for row in out["rows"]:
        assert (row["default"]["makespan"], row["felps"]["makespan"]) == (4.0, 2.0)
        assert row["felps"]["throughput"] == pytest.approx(40 / 2)
        assert 0.5 <= row["felps"]["jain"] < 1.0


def test_claims_and_grids_on_made_up_figures(tmp_path, monkeypatch):
    """FELPS ten per cent ahead of everybody in both figures: the effects and choices must say so."""

    def run(find, trace, seed, index, setting, development=False):
        ours = setting["policy"] == "felps"
        gain = 1.1 - 0.1 * abs(setting["weight"] - 0.2) if ours else 1.0
        return {"jain": 0.8 * gain, "throughput": 100.0 * gain}

    monkeypatch.setattr(experiments, "run", run)
    measured = claims.beats_fair(Context("felps", "cpu", "beats-fair-schedulers", tmp_path))
    assert len({c["seed"] for c in measured.cells}) == sweeps.FAIR_SEEDS
    effect, low, high = effects.smallest_advantage(measured.cells, 0.95)
    assert effect == pytest.approx(low) == pytest.approx(high) == pytest.approx(0.1)
    against = claims.fairer_than_vtc_skip(Context("felps", "cpu", "fairer-than-vtc-skip", tmp_path))
    assert len(against.ours.values) == len(against.seeds) == 3 * sweeps.FAIR_SEEDS
    assert against.ours.values[0] - against.baselines["vtc"].values[0] == pytest.approx(0.8 * 0.07)
    tuned = tuning.tune_weight_against_skip(Context("felps", "tune", "weight-vtc-skip", tmp_path))
    assert tuned.chosen["felps"] == {"weight": 0.2} and len(tuned.cells) == 9 * 9 * 2


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


def cell(setting, metric, seed, value):
    return {
        "factors": {"trace": "t", "setting": setting, "metric": metric},
        "seed": seed,
        "method": "m",
        "value": value,
    }


def test_dominance_needs_both_figures_beyond_noise():
    def cells(jain, throughput, noise):
        out = []
        for seed in range(5):
            wobble = noise * (-1) ** seed
            out += [
                cell("felps mode=drain weight=0.2", "jain", seed, 0.9),
                cell("felps mode=drain weight=0.2", "throughput", seed, 100.0),
            ]
            out += [
                cell("felps mode=drain weight=0.7", "jain", seed, 0.1),
                cell("felps mode=drain weight=0.7", "throughput", seed, 1.0),
            ]
            out += [cell("rival q=1", "jain", seed, jain + wobble), cell("rival q=1", "throughput", seed, throughput)]
        return out

    assert effects.dominating_points(cells(0.95, 101.0, 0.001), 0.95)[0] == 1
    assert effects.dominating_points(cells(0.95, 99.0, 0.001), 0.95)[0] == 0
    assert effects.dominating_points(cells(0.905, 101.0, 0.2), 0.95)[0] == 0


def test_smallest_advantage_and_trend():
    rows = [
        {"factors": {"rival": r, "metric": m}, "seed": s, "method": "felps", "value": v}
        for s in range(5)
        for r, m, v in (("a", "jain", 1.2), ("a", "throughput", 1.05), ("b", "jain", 2.0))
    ]
    assert effects.smallest_advantage(rows, 0.95)[0] == pytest.approx(0.05)
    trend = [
        {"factors": {"weight": w / 10}, "seed": s, "method": "felps", "value": -w * (s + 1.0)}
        for s in range(5)
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
    for arguments, named in (
        (["trace", "--trace.start", "5"], "start"), (["trace", "--trace.duration", "0"], "duration"),
        (["trace", "--trace.alpha", "nan"], "alpha"), (["replay", "nowhere", "--trace.duration", "1"], "url"),
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
