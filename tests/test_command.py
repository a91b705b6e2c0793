"""The contract of the one command: every paper speaks it in the same way."""

import json
import subprocess
import sys

import common
import pytest

from neurips26.shared import registry

VERBS = ("list", "claims", "run", "record", "explain", "report", "verify", "data", "doctor")


def test_help_names_every_verb(neurips26):
    done = neurips26("--help")
    assert done.returncode == 0
    for verb in VERBS:
        assert verb in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(neurips26, verb):
    done = neurips26(verb, "--help")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 80


def test_list_shows_every_package_and_imports_none():
    code = (
        "import sys\nfrom neurips26.shared.cli import main\nassert main(['list']) == 0\n"
        "heavy = {'torch', 'jax', 'sklearn', 'transformers', 'flwr', 'matplotlib.pyplot'} & set(sys.modules)\n"
        "papers = [m for m in sys.modules if m.startswith('neurips26.') and m.split('.')[1] != 'shared']\n"
        "assert not heavy and not papers, (heavy, papers)\n"
    )
    env = common.environment() | {"COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for slug in common.slugs():
        assert slug in done.stdout


def test_claims_tell_statement_figure_and_criterion(neurips26, slug):
    done = neurips26("claims", slug)
    assert done.returncode == 0, done.stderr
    functions = registry.find(slug).claim_functions("quick")
    for fn in functions:
        assert fn.claim.id in done.stdout
    assert done.stdout.count("holds if:") >= len(functions)


def test_paper_has_help_of_its_own(neurips26, slug):
    if not registry.find(slug).cli:
        pytest.skip("no commands of its own")
    done = neurips26(slug, "--help")
    assert done.returncode == 0, done.stderr
    assert "usage" in (done.stdout + done.stderr).lower()


def test_paper_refuses_an_unknown_verb_without_a_traceback(neurips26, slug):
    if not registry.find(slug).cli:
        pytest.skip("no commands of its own")
    done = neurips26(slug, "no-such-verb")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_command_in_a_process_of_its_own():
    command = [sys.executable, "-m", "neurips26.shared.cli", "run", "no-such-paper"]
    done = subprocess.run(command, env=common.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: paper: expected the slug")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "flash-kmean"), "flash-kmeans"),
        (("flash-kmean", "x"), "flash-kmeans"),
        (("run", "flash-kmeans", "--tier", "quik"), "quick"),
        (("explain", "no-such-claim"), "no-such-claim"),
        (("verify", "no-such-folder"), "no-such-folder"),
        (("data", "list", "flash-kmean"), "flash-kmeans"),
    ],
)
def test_mistakes_get_one_line_that_helps(neurips26, arguments, said):
    done = neurips26(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert said in done.stderr


def test_unwritable_output_is_named(neurips26, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = neurips26("run", common.slugs()[0], "--out", str(blocked / "sub"))
    assert done.returncode == 2
    assert "out: expected a folder that can be written" in done.stderr


def test_data_declarations_are_complete(slug):
    for item in registry.find(slug).data:
        assert item.size > 0, item.name
        assert item.licence, item.name
        assert item.purpose, item.name


def test_report_over_nothing_still_writes_a_page(neurips26, tmp_path):
    page = tmp_path / "page.html"
    done = neurips26(
        "report",
        "--results",
        str(tmp_path),
        "--build",
        str(tmp_path),
        "--out",
        str(page),
        "--note",
        "some-paper=no network",
    )
    assert done.returncode == 0, done.stderr
    text = page.read_text("utf-8")
    assert "no network" in text
    assert "some-paper" in text


def test_doctor_tells_versions(neurips26):
    done = neurips26("doctor")
    assert done.returncode == 0
    assert "python" in done.stdout
    assert "numpy" in done.stdout


@pytest.mark.slow
def test_quick_record_has_the_schema(clean_env, tmp_path):
    slug = common.slugs()[0]
    # In a process of its own: the annotation checker of the tests would make it many times slower.
    command = [sys.executable, "-m", "neurips26.shared.cli", "run", slug, "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=clean_env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / slug / "quick.json").read_text("utf-8"))
    assert record["schema"] == 1
    assert record["claims"]
