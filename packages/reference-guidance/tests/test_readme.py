"""The README's example, run word for word."""

import re
from pathlib import Path

import pytest
from PIL import Image

README = Path(__file__).parents[1] / "README.md"


def test_the_example_guides_a_pipeline_given_by_path(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(README), "exec"), {"__name__": "example"})
    with Image.open("guided.png") as picture:
        assert picture.size == (96, 64)
    size, betas = capsys.readouterr().out.strip().split(") ")
    assert size == "(96, 64"
    # quadratic: 0.5 (1 - t)^2 falls from 0.5 over the seven steps inside the window
    found = [float(b) for b in betas.strip("[]").split(",")]
    assert found[0] == pytest.approx(0.5) and found == sorted(found, reverse=True) and len(found) == 7


def test_every_command_of_the_readme_is_a_verb():
    from neurips26.reference_guidance.cli import VERBS

    verbs = re.findall(r"^neurips26 reference-guidance (\S+)", README.read_text("utf-8"), re.MULTILINE)
    assert len(verbs) >= 8 and set(verbs) <= set(VERBS)
