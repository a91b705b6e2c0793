"""The README shows what is committed, and its example forecasts a CSV and plots it."""

import json
import re
import runpy
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
README = (PACKAGE / "README.md").read_text("utf-8")


def test_the_first_lines_say_that_the_method_is_rebuilt():
    assert README.splitlines()[0].startswith("# filterbank-tsf")
    assert README.splitlines()[2].startswith("Rebuilt from the paper's abstract")


def test_tables_are_those_of_the_record():
    tool = runpy.run_path(str(PACKAGE / "benchmarks" / "readme_table.py"))
    if not tool["RECORD"].exists():
        pytest.skip("no record beside this checkout")
    assert tool["fill"](README, json.loads(tool["RECORD"].read_text("utf-8"))) == README


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", README, re.M | re.S))
    assert code.count("import pandas") == 1
    exec(code, {"__name__": "readme"})
    assert (tmp_path / "forecast.png").read_bytes()[:4] == b"\x89PNG" and capsys.readouterr().out


def test_every_verb_of_the_command_line_exists():
    from neurips26.filterbank_tsf import cli

    for verb in re.findall(r"^neurips26 filterbank-tsf ([a-z-]+)", README, re.M):
        assert any(verb == name.lower().replace("rankreport", "rank-report") for name in vars(cli)), verb
