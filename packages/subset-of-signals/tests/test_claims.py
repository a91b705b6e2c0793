"""Effects, real data, the command line."""

import json

import numpy as np
import pytest

from neurips26.shared import data
from neurips26.shared.testing import needs
from neurips26.subset_of_signals import cli, datasets, effects, experiments, robust
from neurips26.subset_of_signals.choices import CHOICES


def cells(values, method="lad", **factors):
    return [{"factors": factors, "seed": i, "method": method, "value": float(v)} for i, v in enumerate(values)]


def test_slopes_of_exact_power_laws():
    rows = [c for m in (10, 20, 40) for c in cells([3.0 / m] * 5, m=m)]
    effect, low, high = effects.slope_in_m(rows, 0.95)
    assert (effect, low, high) == (pytest.approx(-1.0),) * 3


def test_threshold_of_exact_crossings():
    rows = []
    for n, d in ((100, 1), (400, 4), (900, 9)):
        rows += cells(1.7 * np.sqrt(n * d) * np.array([0.5, 1.0, 3.0]), "crossing", n=n, d=d)
        rows += cells([7.0], "median error", n=n, d=d, m=5)
    assert effects.threshold_slope(rows, 0.95)[0] == pytest.approx(0.5, abs=1e-12)


def test_crossing_of_one_draw():
    """With signals only a little better than the rest the error is always small, with hopeless ones it never is."""
    m = experiments.crossing(400, 2, 1e6, seed=1)
    assert 0.5 < m / np.sqrt(800) < 6
    assert experiments.crossing(400, 2, 1.0, seed=1) < 0.27 * np.sqrt(800)


def test_worst_ratio_takes_the_best_rival_of_the_worst_condition():
    rows = []
    for condition, ours in (("a", 1.0), ("b", 3.0)):
        for method, value in (("npmle", ours), ("x", 2.0), ("y", 4.0)):
            rows += cells([value * 1.1**i for i in range(6)], method, condition=condition)
    assert effects.worst_ratio(rows, 0.95)[0] == pytest.approx(1.5)


def test_coverage_reports_the_law_farthest_from_nominal():
    rows = cells([0.95] * 50, "npmle", law="a") + cells([1.0, 0.5] * 25, "npmle", law="b")
    effect, low, high = effects.worst_coverage(rows, 0.95)
    assert effect == pytest.approx(0.75) and low < 0.75 < high


def test_hubble_slopes():
    path = data.find("subset-of-signals", "SCPUnion2.1_mu_vs_z.txt")
    needs("data", path is not None, "SCPUnion2.1_mu_vs_z.txt")
    table = datasets.hubble(path)
    assert table.x.size == 199
    weighted = robust.oracle_wls(table.design, table.mu, table.error)
    se = np.sqrt(np.linalg.inv(table.design.T @ (table.design / table.error[:, None] ** 2))[0, 0])
    assert (weighted[0], se) == (pytest.approx(5.0056, abs=5e-4), pytest.approx(0.0351, abs=1e-4))
    assert robust.wls(table.design, table.mu)[0] == pytest.approx(4.9863, abs=5e-4)


def test_the_default_is_what_the_claims_measure():
    assert experiments.TUNED["npmle"] == {"scale_floor": CHOICES.scale_floor}


def test_a_wrong_table_is_named(tmp_path):
    (tmp_path / "x.txt").write_text("a\tb\tc\td\n")
    with pytest.raises(ValueError, match="^path: expected the tab-separated Union2.1 table"):
        datasets.hubble(tmp_path / "x.txt")


def test_command_line(tmp_path, capsys):
    table = tmp_path / "t.csv"
    assert cli.main(["simulate", str(table), "--n", "800", "--m", "400", "--d", "2"]) == 0
    capsys.readouterr()
    assert cli.main(["fit", str(table), "--scale", "1", "--method", "lad", "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert set(got["coef"]) == {"x0", "x1", "intercept"} and got["converged"]
    assert cli.main(["phase", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["threshold"] == pytest.approx(200.0)
    with pytest.raises(ValueError, match="^z: expected one of the columns"):
        cli.main(["fit", str(table), "--y", "z"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,y\n1,2\n3\n", "^csv: expected 2 fields as in the header, got 1 in line 3"),
        (b"", "^csv: expected a header and rows, got 0 lines"),
        (b"a,y\n", "^csv: expected a header and rows, got 1 lines"),
        (b"\xff\xfe\x00\x01", "^csv: expected a table in UTF-8, got"),
        (b"a,a,y\n1,2,3\n2,3,4\n", "^csv: expected columns of different names, got a more than once"),
        (b"y\n1\n2\n", "^x: expected at least one column beside the response, got y"),
        (None, "^csv: expected a table, got .*, which is no file"),
    ],
)
def test_tables_that_are_none(tmp_path, content, message):
    if content is not None:
        (tmp_path / "bad.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        cli.main(["fit", str(tmp_path / "bad.csv")])


def test_an_interrupted_scaling_goes_on(tmp_path, capsys, monkeypatch):
    def run(*more):
        assert cli.main(["scaling", "--repeats", "2", "--work", str(tmp_path / "w"), "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)

    real, calls = experiments.error, []

    def stopped(*a):
        if len(calls) == 7:
            raise KeyboardInterrupt
        calls.append(1)
        return real(*a)

    monkeypatch.setattr(experiments, "error", stopped)
    with pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.setattr(experiments, "error", lambda *a: calls.append(1) or real(*a))
    first = run()
    assert len(calls) == 9 * 2 and set(first) == {"m", "n", "d"} and run() == first and len(calls) == 9 * 2
    assert -1.6 < first["m"]["exponent"] < -0.5
    for arguments in (["scaling", "--repeats", "1"], ["compare", "--repeats", "0"]):
        with pytest.raises(ValueError, match="^repeats: expected an integer >= "):
            cli.main(arguments)


def test_a_table_of_ones_own(tmp_path, capsys):
    """Semicolons, a byte-order mark and a column of names, as spreadsheets write them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = x @ [2.0, -1.0] + np.where(np.arange(60) < 40, 0.01, 50.0) * rng.normal(size=60)
    table = tmp_path / "own.csv"
    rows = [f"s{i};{a};{b};{c}" for i, ((a, b), c) in enumerate(zip(x, y))]
    table.write_text("\n".join(["name;a;b;y", *rows]), encoding="utf-8-sig")
    assert cli.main(["fit", str(table), "--x", "a,b", "--scale", "0.01", "--json"]) == 0
    got = json.loads(capsys.readouterr().out)["coef"]
    assert (got["a"], got["b"], got["intercept"]) == pytest.approx((2.0, -1.0, 0.0), abs=0.01)
    with pytest.raises(ValueError, match="^name: expected a column of finite numbers, got 's0' in row 1"):
        cli.main(["fit", str(table)])
    with pytest.raises(ValueError, match="^x: expected columns other than the response, got y"):
        cli.main(["fit", str(table), "--x", "a,y"])
    table.write_text("a,y\n1,2\n3,nan\n")
    with pytest.raises(ValueError, match="^y: expected a column of finite numbers, got 'nan' in row 2"):
        cli.main(["fit", str(table)])
    table.write_text("a,y\n" + "".join(f"{i},{i + i % 3}\n" for i in range(30)))
    capsys.readouterr()
    assert cli.main(["fit", str(table)]) == 0
    assert capsys.readouterr().err.startswith("warning: the noise shows no second scale")
