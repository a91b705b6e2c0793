import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from neurips26.shared import cli, pages, registry, runs
from neurips26.shared.record import _text, code_digest, is_stale, read_record, run_tier
from neurips26.shared.verify import same, verify_record, verify_tree


@pytest.fixture
def neurips26(fake_paper, tmp_path, monkeypatch, capsys):
    """Run the command in this process, in an empty folder: exit status, what it said, and its errors as one line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "out", Console(width=200, no_color=True))
    monkeypatch.setattr(cli, "err", Console(stderr=True, width=200, no_color=True))

    def run(*args):
        capsys.readouterr()
        try:
            code = cli.main(list(args))
        except SystemExit as stop:
            code = stop.code
        said = capsys.readouterr()
        return code, said.out, " ".join(said.err.split())

    return run


def in_a_fork(do):
    """Exit status of `do()` in a child of this process, which has imported everything already."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            do()
            os._exit(0)
        finally:
            os._exit(70)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def committed(record):
    """A record as if it had been made from a clean tree."""
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip()
    return json.loads(json.dumps(record)) | {"dirty": False, "revision": head}


def test_papers_are_listed_without_import_and_a_broken_one_with_its_error(fake_paper):
    found = {p.slug: p for p in registry.papers()}
    assert found["fake-paper"].title == "A paper for tests"
    assert "paper.toml" in found["broken-paper"].error
    assert "neurips26.broken_paper" not in sys.modules
    with pytest.raises(registry.UnknownPaperError, match="did you mean fake-paper"):
        registry.find("fake-papr")


def test_a_run_is_judged_recorded_and_verifies(fake_paper, tmp_path):
    paper = registry.find("fake-paper")
    record = run_tier(paper, "quick", tmp_path / "out")
    path = tmp_path / "out" / "fake-paper" / "quick.json"
    assert runs.read_json(path) == json.loads(json.dumps(record))
    smaller, gpu = record["claims"]
    assert smaller["verdict"] == "holds" and smaller["effect"] == pytest.approx(0.5, rel=1e-2)
    assert smaller["seeds"] == list(range(10_000, 10_006))
    assert smaller["data"] == [{"name": "numbers", "kind": "generated"}]
    assert gpu["verdict"] == "not testable here" and gpu["reason"] == "no GPU"
    assert (tmp_path / "out/fake-paper/figures/smaller.png").read_bytes() == b"png"
    assert verify_record(committed(record), path) == []
    assert not is_stale(record, paper)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["claims"][0].update(verdict="undecided", reason="x"), "verdict: expected holds"),
        (lambda r: r["claims"][0].update(effect=0.4), "effect: expected"),
        (lambda r: r["claims"][0]["ours"]["values"].__setitem__(0, 9.0), "expected"),
        (lambda r: r["claims"][0]["criterion"].update(at_most=0.95), "criterion: claims.py says"),
        (lambda r: r["claims"][0].update(figures=["none.png"]), "figure none.png is missing"),
        (lambda r: r["claims"][0].update(statement="better"), "statement"),
        (lambda r: r.update(tier="cpu"), "expected fake-paper/cpu.json"),
        (lambda r: r.update(dirty=True), "dirty"),
        (lambda r: r.pop("machine"), "machine"),
        (lambda r: r["claims"][0].update(scope="big"), "scope"),
    ],
)
def test_verify_finds_what_was_changed_by_hand(fake_paper, tmp_path, change, message):
    record = committed(run_tier(registry.find("fake-paper"), "quick", tmp_path))
    change(record)
    problems = verify_record(copy.deepcopy(record), tmp_path / "fake-paper" / "quick.json")
    assert any(message in p for p in problems), problems


def test_a_killed_run_continues_after_its_finished_cells(neurips26, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("FAKE_DIE", "3")
        assert in_a_fork(lambda: cli.main(["run", "fake-paper"])) == 9
    assert not (tmp_path / "build/fake-paper/quick.json").exists()
    code, _, error = neurips26("run", "fake-paper")
    assert code == 0, error
    first = 10_000
    assert (tmp_path / "log").read_text().split("\n")[:-1] == [f"cell {first + i}" for i in (0, 1, 2, 3, 3, 4, 5)]
    code, _, error = neurips26("run", "fake-paper")
    assert code == 0 and len((tmp_path / "log").read_text().split("\n")) == 8
    explained = " ".join(neurips26("explain", "smaller")[1].split())
    assert "neurips26 run fake-paper --tier quick --only smaller --force" in explained


def test_killed_at_any_write_it_leaves_the_old_record_or_the_new_one(fake_paper, tmp_path):
    """Every file that a run writes, and both sides of the moment at which it gets its name."""
    paper, target = registry.find("fake-paper"), tmp_path / "fake-paper" / "quick.json"
    run_tier(paper, "quick", tmp_path)
    cells = [row["ours"] for row in read_record(target)["claims"]]

    def die(at, after):
        plain, left = os.replace, at

        def counted(source, name):
            nonlocal left
            left -= 1
            if left == 0 and not after:
                os._exit(9)
            plain(source, name)
            if left == 0:
                os._exit(9)

        os.replace = counted
        run_tier(paper, "quick", tmp_path, force=True)

    killed = 0
    for at in range(1, 100):
        before = target.read_bytes()
        codes = set()
        for after in (False, True):
            codes.add(in_a_fork(lambda at=at, after=after: die(at, after)))
            there = target.read_bytes()
            assert there == before or [row["ours"] for row in json.loads(there)["claims"]] == cells
            # What the kill left half-written in the folder is no record.
            (record,) = pages.load_records([tmp_path])
            assert record["paper"] == "fake-paper"
        run_tier(paper, "quick", tmp_path)
        assert [row["ours"] for row in read_record(target)["claims"]] == cells
        if codes == {0}:
            break
        assert codes == {9}
        killed += 1
    assert killed == 10  # the digest of the code, six cells, the claim, its picture, the record


def test_a_run_of_one_claim_forgets_that_one_only(fake_paper, tmp_path):
    paper = registry.find("fake-paper")
    log = tmp_path / "log"
    run_tier(paper, "quick", tmp_path)
    run_tier(paper, "quick", tmp_path, only=["needs-a-gpu"], force=True)
    assert len(log.read_text().splitlines()) == 6
    record = run_tier(paper, "quick", tmp_path, only=["smaller"], force=True)
    assert len(log.read_text().splitlines()) == 12 and len(record["claims"]) == 2
    with pytest.raises(ValueError, match="only: expected ids among smaller, needs-a-gpu, got ../../log"):
        run_tier(paper, "quick", tmp_path, only=["../../log"], force=True)
    assert log.exists()
    with pytest.raises(ValueError, match="only: expected no ids in the tune tier"):
        run_tier(paper, "tune", tmp_path, only=["rates"])


def test_a_committed_record_loses_no_row_of_the_same_code(fake_paper, tmp_path, monkeypatch):
    """On a fresh clone nothing is cached: `record --only` would leave what it did not run out of the record."""
    paper = registry.find("fake-paper")
    monkeypatch.setattr("neurips26.shared.record.git", lambda *args, **more: "")
    toml = fake_paper / "neurips26/fake_paper/claims.py"
    toml.write_text(toml.read_text().replace("def gpu_only", "def other", 1).replace(', needs=("gpu",)', "", 1).replace(
        'raise AssertionError("never called without a GPU")', "return Measurement(ours=Series({}, [0.5] * 5))"))  # fmt: skip
    run_tier(paper, "cpu", tmp_path, work=tmp_path / "one", committed=True)
    before = (tmp_path / "fake-paper/cpu.json").read_bytes()
    with pytest.raises(ValueError, match=r"got one without needs-a-gpu, .*`neurips26 run fake-paper --tier cpu`"):
        run_tier(paper, "cpu", tmp_path, work=tmp_path / "two", only=["smaller"], committed=True)
    assert (tmp_path / "fake-paper/cpu.json").read_bytes() == before
    record = run_tier(paper, "cpu", tmp_path, work=tmp_path / "one", only=["smaller"], force=True, committed=True)
    assert len(record["claims"]) == 2


def test_only_keeps_what_this_machine_cannot_measure(fake_paper, tmp_path):
    record = run_tier(registry.find("fake-paper"), "quick", tmp_path, only=["smaller"])
    assert [row["verdict"] for row in record["claims"]] == ["holds", "not testable here"]


def test_without_the_declared_data_a_row_is_a_proxy_that_says_so(fake_paper, tmp_path, monkeypatch):
    toml = fake_paper / "neurips26/fake_paper/paper.toml"
    declared = '[[data]]\nname = "numbers.csv"\npath = "numbers.csv"\nurl = "https://example.org/numbers.csv"\n'
    toml.write_text(toml.read_text() + declared + f'sha256 = "{"0" * 64}"\nsize = 3\nlicence = "none"\npurpose = "x"\n')
    monkeypatch.setenv("NEURIPS26_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    smaller = run_tier(registry.find("fake-paper"), "quick", tmp_path / "out")["claims"][0]
    assert smaller["scope"] == "proxy" and smaller["verdict"] == "holds"
    assert smaller["notes"] == [
        "stand-in data (numbers): this machine lacks numbers.csv: where the claim uses it a stand-in took its place"
    ]


def test_cells_of_a_stand_in_are_not_taken_for_those_of_the_data(fake_paper, tmp_path, monkeypatch):
    paper = registry.find("fake-paper")
    log = Path(os.environ["FAKE_LOG"])
    present = {"numbers.csv": "0" * 64}
    for digests, computed in (({}, 6), ({}, 6), (present, 12), (present, 12)):
        monkeypatch.setattr("neurips26.shared.record._data_digests", lambda _, digests=digests: digests)
        run_tier(paper, "quick", tmp_path, only=["smaller"])
        assert log.read_text().count("cell") == computed


def test_claims_run_on_one_thread_unless_the_user_says_otherwise(fake_paper, tmp_path):
    """In a process of its own, where numpy is not imported yet."""
    source = fake_paper / "neurips26/fake_paper/claims.py"
    seen = '\nprint("threads", os.environ["OMP_NUM_THREADS"], os.environ["OPENBLAS_NUM_THREADS"])\n'
    source.write_text(source.read_text() + seen)
    unset = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    env = unset | {"PYTHONPATH": str(fake_paper), "OMP_NUM_THREADS": "3"}
    command = [sys.executable, "-m", "neurips26.shared.cli", "run", "fake-paper"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert "threads 3 1" in done.stdout


def test_a_claim_may_say_why_it_cannot_be_tested(fake_paper, tmp_path):
    source = fake_paper / "neurips26/fake_paper/claims.py"
    text = source.read_text().replace(
        "    def one(seed):", '    raise NotTestable("the policy falls")\n\n    def one(seed):', 1
    )
    source.write_text(text.replace("import os\n", "import os\nfrom neurips26.shared.record import NotTestable\n", 1))
    row = run_tier(registry.find("fake-paper"), "quick", tmp_path)["claims"][0]
    assert (row["verdict"], row["reason"], row["effect"]) == ("not testable here", "the policy falls", None)


def test_tune_and_changed_code(fake_paper, tmp_path):
    paper = registry.find("fake-paper")
    record = run_tier(paper, "tune", tmp_path)
    assert record["grids"][0]["chosen"] == {"ours": {"lr": 0.1}, "base": {"lr": 0.2}}
    assert {c["seed"] for c in record["grids"][0]["cells"]} == {90_000, 90_001}
    source = fake_paper / "neurips26/fake_paper/claims.py"
    source.write_text(source.read_text() + "\n\n# a remark\n")
    assert not is_stale(record, paper)
    source.write_text(source.read_text() + "\nextra = 1\n")
    assert is_stale(record, paper)


def test_shipped_files_are_part_of_the_digest(fake_paper, tmp_path):
    """Other weights or other settings are other numbers; what tuning chose is a result of the tune record alone."""
    folder = fake_paper / "neurips26/fake_paper"
    (folder / "chosen.json").write_text("{}")
    descriptor = folder / "paper.toml"
    descriptor.write_text(descriptor.read_text() + 'tuned = ["chosen.json"]\n')
    paper = registry.find("fake-paper")
    tune, cpu = (run_tier(paper, tier, tmp_path) for tier in ("tune", "cpu"))
    descriptor.write_text(descriptor.read_text() + "# a remark\n")
    assert not is_stale(tune, paper) and not is_stale(cpu, paper)
    (folder / "chosen.json").write_text('{"lr": 1}')
    assert not is_stale(tune, paper) and is_stale(cpu, paper)
    (folder / "chosen.json").write_text("{}")
    (folder / "weights.safetensors").write_bytes(b"weights")
    assert is_stale(tune, paper) and is_stale(cpu, paper)


def _own_name(tune, cpu, name, lr):
    """The tune record calls ours by its own name."""
    grid = tune["grids"][0]
    grid["chosen"] = {name: {"lr": 0.1}, "base": {"lr": 0.2}}
    cpu["claims"][0]["ours"]["setting"] = {"method": name, "lr": lr}


def _a_part(tune, cpu, lr):
    """A setting for one data set of two."""
    tune["grids"][0]["chosen"] = {"ours/digits": {"lr": 0.1}, "base": {"lr": 0.2}}
    cpu["claims"][0]["ours"]["setting"] = {"digits": {"lr": lr}, "faces": {"lr": 9.0}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tune, cpu: None, ""),
        (
            lambda tune, cpu: tune["grids"][0]["chosen"]["ours"].update(lr=0.2),
            "ours: the tune record chose {'lr': 0.2}",
        ),
        (lambda tune, cpu: tune["grids"][0].update(id="other"), "tuned_by: expected a grid of tune.json, got 'rates'"),
        (
            lambda tune, cpu: tune["grids"][0]["cells"].pop(),
            "rates: expected one budget, got {'ours': 4, 'base': 3} cells",
        ),
        (
            lambda tune, cpu: tune["grids"][0]["cells"][0].update(seed=20_003),
            "expected none that the grid rates has seen",
        ),
        (lambda tune, cpu: cpu["claims"][0]["ours"]["setting"].update(lr=0.4), "the run used {'lr': 0.4}"),
        (lambda tune, cpu: _own_name(tune, cpu, "frank", 0.1), ""),
        (lambda tune, cpu: _own_name(tune, cpu, "frank", 0.4), "the run used {'method': 'frank', 'lr': 0.4}"),
        (lambda tune, cpu: _a_part(tune, cpu, 0.1), ""),
        (
            lambda tune, cpu: _a_part(tune, cpu, 0.4),
            "ours: the tune record chose {'lr': 0.1}, the run used {'lr': 0.4}",
        ),
        (
            lambda tune, cpu: tune["grids"][0].update(chosen={"ours on digits": {"lr": 0.1}}),
            "tuned_by: expected settings chosen by rates in the row's series ['base', 'ours']",
        ),
    ],
)
def test_verify_compares_a_record_with_its_tuning(fake_paper, tmp_path, change, message):
    paper = registry.find("fake-paper")
    tune, cpu = (committed(run_tier(paper, tier, tmp_path)) for tier in ("tune", "cpu"))
    cells = tune["grids"][0]["cells"]
    cells += [{**cell, "method": "base"} for cell in cells]
    change(tune, cpu)
    runs.atomic_write_json(tmp_path / "fake-paper/tune.json", tune)
    problems = verify_record(cpu, tmp_path / "fake-paper/cpu.json")
    assert [p for p in problems if message in p] == problems and bool(problems) == bool(message), problems


def test_the_digest_sees_code_and_not_prose(tmp_path):
    a, b, c = (tmp_path / name for name in ("a.py", "b.py", "c.py"))
    a.write_text('def f(x):\n    """One."""\n    return x  # why\n')
    b.write_text('def f(x):\n    """Two."""\n\n    return (x)\n')
    c.write_text('def f(x):\n    """One."""\n    return -x\n')
    assert code_digest(a) == code_digest(b) != code_digest(c)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "fake-papr"], "did you mean fake-paper"),
        (["run", "[/red]"], "got '[/red]'"),
        (["run", "fake-paper", "--tier", "quik"], "did you mean 'quick'"),
        (["run", "fake-paper", "--only", "smal"], "expected ids among smaller, needs-a-gpu"),
        (["run", "broken-paper"], "paper.toml"),
        (["record", "fake-paper", "--tier", "quick"], "not committed"),
        (["record", "fake-paper"], "git checkout without changes"),
        (["run", "fake-paper", "--out", "file/below"], "out: expected a folder"),
        (["run", "fake-paper", "--out", "file"], "out: expected a folder"),
        (["claims", "fake-papr"], "did you mean fake-paper"),
        (["data", "fetch", "fake-papr"], "did you mean fake-paper"),
        (["explain", "smller"], "did you mean smaller"),
        (["explain", "other-paper/smaller"], "expected the id of a recorded claim"),
        (["verify", "nowhere"], "expected a folder of records"),
        (["report", "--out", "file/page.html"], "out: expected a file that can be written, got file/page.html"),
        (["report", "--out", "."], "out: expected a file that can be written, got ."),
        (["report", "--note", "no network"], "note: expected slug=text, got 'no network'"),
        (["fake-paper", "go"], "commands of its own"),
        (["fake-papr", "go"], "did you mean fake-paper"),
        (["rn"], "did you mean"),
    ],
)
def test_bad_commands_get_one_line(neurips26, tmp_path, args, message):
    (tmp_path / "file").write_text("")
    if args[0] == "explain":
        assert neurips26("run", "fake-paper")[0] == 0
    code, _, error = neurips26(*args)
    assert code == 2 and error.startswith("error: ") and message in error


def test_ctrl_c_is_no_traceback(neurips26, monkeypatch):
    def interrupted(*args, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("neurips26.shared.record.run_tier", interrupted)
    code, _, error = neurips26("run", "fake-paper")
    assert code == 130 and error.startswith("interrupted")


@pytest.mark.parametrize("text", ["{", "[]", "\xff", '{"schema": 2}', '{"schema": 1}', '{"schema": 1, "claims": [3]}'])
def test_a_damaged_record_is_named_and_replaced_only_with_force(neurips26, tmp_path, text):
    path = tmp_path / "build/fake-paper/quick.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("latin-1"))
    for command in (["run", "fake-paper"], ["explain", "smaller"]):
        code, _, error = neurips26(*command)
        assert code == 2 and "quick.json" in error and "left as it is" in error
    assert path.read_bytes() == text.encode("latin-1")
    assert verify_tree(tmp_path / "build", say=lambda _: None)[0].startswith(str(path))
    assert neurips26("run", "fake-paper", "--force")[0] == 0
    assert read_record(path)["schema"] == 1


def test_a_damaged_record_hides_no_other(neurips26, tmp_path):
    assert neurips26("run", "fake-paper")[0] == 0
    torn = tmp_path / "build/a-paper/cpu.json"
    torn.parent.mkdir()
    torn.write_text("{")
    assert neurips26("explain", "smaller")[0] == 0
    assert neurips26("report")[0] == 0
    page = (tmp_path / "build/report/index.html").read_text()
    assert "ours is smaller" in page and "a-paper/cpu.json: expected JSON, got a damaged file" in page


def test_brackets_are_printed_as_they_are(neurips26, fake_paper):
    source = fake_paper / "neurips26/fake_paper/claims.py"
    source.write_text(source.read_text().replace("ours is smaller", "ours is smaller [b] in [/a, c]"))
    code, said, _ = neurips26("claims", "fake-paper")
    assert code == 0 and "ours is smaller [b] in [/a, c]" in said
    assert neurips26("run", "fake-paper")[0] == 0
    code, said, _ = neurips26("explain", "smaller")
    assert code == 0 and "ours is smaller [b] in [/a, c]" in said


def test_two_runs_in_one_directory(neurips26, tmp_path):
    with runs.lock(tmp_path / "build/.work/fake-paper/quick"):
        code, _, error = neurips26("run", "fake-paper")
    assert code == 2 and ".lock" in error


def test_same_compares_nested_numbers():
    assert same({"a": [1.0, None, "x"]}, {"a": [1.0 + 1e-12, None, "x"]}, 1e-9)
    assert not same({"a": [1.0]}, {"a": [1.1]}, 1e-9)
    assert not same(True, 1.0, 1e-9)


def test_a_run_tells_effect_criterion_and_where_the_record_is(neurips26):
    code, said, _ = neurips26("run", "fake-paper")
    assert code == 0
    first, second, *_ = [line for line in said.splitlines() if "smaller" in line or "asked for" in line]
    assert first.startswith("● holds") and first.endswith("smaller")
    assert "0.5" in second and "asked for: ours / baseline" in second
    assert "record: build/fake-paper/quick.json" in said


def test_records_of_papers_that_are_not_here_are_not_judged(neurips26, tmp_path):
    assert neurips26("run", "fake-paper")[0] == 0
    record = json.loads((tmp_path / "build/fake-paper/quick.json").read_text())
    other = tmp_path / "results/other-paper/quick.json"
    other.parent.mkdir(parents=True)
    other.write_text(json.dumps(record | {"paper": "other-paper"}))
    said = []
    assert verify_tree(tmp_path / "results", say=said.append) == []
    assert said == ["other-paper/quick.json: not verified: other-paper is not installed here"]


def test_a_record_has_a_line_a_cell():
    cells = [{"factors": {"trace": "ä"}, "seed": s, "method": "m", "value": 0.1 * s} for s in range(3)]
    row = {"id": "x", "cells": cells, "note": '"cells": "<cells 2>"'}
    made = {
        "schema": 1,
        "claims": [row, {"id": "y", "cells": []}],
        "grids": [{"id": "g", "cells": cells[:1], "chosen": {}}],
    }
    text = _text(made)
    assert json.loads(text) == made
    assert sum(line.strip().startswith('{"factors"') for line in text.splitlines()) == 4
