import copy
import json
import os
import subprocess
import sys

import pytest

from neurips26.shared import registry, runs
from neurips26.shared.record import code_digest, is_stale, run_tier
from neurips26.shared.verify import same, verify_record


def cli(site, *args, cwd, **env):
    environment = {**os.environ, "PYTHONPATH": str(site), **env}
    command = [sys.executable, "-m", "neurips26.shared.cli", *args]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


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
    record["dirty"], record["revision"] = (
        False,
        subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip(),
    )
    assert verify_record(record, path) == []
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
    record = run_tier(registry.find("fake-paper"), "quick", tmp_path)
    record = json.loads(json.dumps(record))
    record["dirty"], record["revision"] = (
        False,
        subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip(),
    )
    change(record)
    problems = verify_record(copy.deepcopy(record), tmp_path / "fake-paper" / "quick.json")
    assert any(message in p for p in problems), problems


def test_a_killed_run_continues_after_its_finished_cells(fake_paper, tmp_path):
    killed = cli(fake_paper, "run", "fake-paper", cwd=tmp_path, FAKE_DIE="3")
    assert killed.returncode == 9
    assert not (tmp_path / "build/fake-paper/quick.json").exists()
    done = cli(fake_paper, "run", "fake-paper", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first = 10_000
    assert (tmp_path / "log").read_text().split("\n")[:-1] == [f"cell {first + i}" for i in (0, 1, 2, 3, 3, 4, 5)]
    again = cli(fake_paper, "run", "fake-paper", cwd=tmp_path)
    assert again.returncode == 0 and len((tmp_path / "log").read_text().split("\n")) == 8
    explained = cli(fake_paper, "explain", "smaller", cwd=tmp_path)
    assert "neurips26 run fake-paper --tier quick --only smaller --force" in " ".join(explained.stdout.split())


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
    assert smaller["notes"] == ["stand-in data (numbers): this machine lacks numbers.csv"]


def test_claims_run_on_one_thread_unless_the_user_says_otherwise(fake_paper, tmp_path):
    source = fake_paper / "neurips26/fake_paper/claims.py"
    source.write_text(source.read_text() + '\nprint("threads", os.environ["OMP_NUM_THREADS"])\n')
    unset = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")} | {"PYTHONPATH": str(fake_paper)}
    for chosen, seen in (({}, "threads 1"), ({"OMP_NUM_THREADS": "3"}, "threads 3")):
        command = [sys.executable, "-m", "neurips26.shared.cli", "run", "fake-paper", "--force"]
        done = subprocess.run(
            command, cwd=tmp_path, env=unset | chosen, capture_output=True, text=True, timeout=120, check=True
        )
        assert seen in done.stdout


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
        (["run", "fake-paper", "--tier", "quik"], "did you mean 'quick'"),
        (["run", "fake-paper", "--only", "smal"], "expected ids among smaller, needs-a-gpu"),
        (["run", "broken-paper"], "paper.toml"),
        (["record", "fake-paper", "--tier", "quick"], "not committed"),
        (["record", "fake-paper"], "git checkout without changes"),
        (["run", "fake-paper", "--out", "file/below"], "out: expected a folder"),
        (["explain", "smller"], "did you mean smaller"),
        (["verify", "nowhere"], "expected a folder of records"),
        (["fake-paper", "go"], "commands of its own"),
        (["rn"], "did you mean"),
    ],
)
def test_bad_commands_get_one_line(fake_paper, tmp_path, args, message):
    (tmp_path / "file").write_text("")
    if args[0] == "explain":
        assert cli(fake_paper, "run", "fake-paper", cwd=tmp_path).returncode == 0
    done = cli(fake_paper, *args, cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split()) and "Traceback" not in done.stderr


def test_a_damaged_record_is_named_and_replaced_only_with_force(fake_paper, tmp_path):
    path = tmp_path / "build/fake-paper/quick.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    done = cli(fake_paper, "run", "fake-paper", cwd=tmp_path)
    assert done.returncode == 2 and "quick.json" in done.stderr and path.read_text() == "{"
    assert cli(fake_paper, "run", "fake-paper", "--force", cwd=tmp_path).returncode == 0
    assert runs.read_json(path)["schema"] == 1


def test_two_runs_in_one_directory(fake_paper, tmp_path):
    with runs.lock(tmp_path / "build/.work/fake-paper/quick"):
        done = cli(fake_paper, "run", "fake-paper", cwd=tmp_path)
    assert done.returncode == 2 and ".lock" in done.stderr


def test_same_compares_nested_numbers():
    assert same({"a": [1.0, None, "x"]}, {"a": [1.0 + 1e-12, None, "x"]}, 1e-9)
    assert not same({"a": [1.0]}, {"a": [1.1]}, 1e-9)
    assert not same(True, 1.0, 1e-9)
