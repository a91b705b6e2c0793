"""The command line: a CSV in, a forecast and a picture out, one line for input that cannot be used."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest

from neurips26.filterbank_tsf.cli import main


@pytest.fixture
def csv(tmp_path):
    t = np.arange(400)
    frame = pd.DataFrame({
        "Zeit": pd.date_range("2024-01-01", periods=400, freq="h"), "Last": np.sin(2 * np.pi * t / 24),
        "Öl": 3 + np.cos(2 * np.pi * t / 12),
    })  # fmt: skip
    frame.to_csv(tmp_path / "d.csv", index=False)
    return tmp_path / "d.csv"


def test_fit_predict_plot(csv, tmp_path, capsys):
    sizes = ["--horizon", "24", "--lookback", "48"]
    saved, out, png = tmp_path / "m.pkl", tmp_path / "f.csv", tmp_path / "f.png"
    assert main(["fit", str(csv), *sizes, "--out", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["channels"] == 2
    assert main(["predict", str(csv), "--forecaster", str(saved), "--horizon", "24", "--out", str(out)]) == 0
    forecast = pd.read_csv(out)
    assert np.abs(forecast["Last"] - np.sin(2 * np.pi * np.arange(400, 424) / 24)).max() < 1e-2
    assert forecast["date"][0] == "2024-01-17 16:00:00"
    assert main(["plot", str(csv), *sizes, "--out", str(png)]) == 0
    assert png.read_bytes()[:4] == b"\x89PNG"


def test_rank_report_of_two_sinusoids(csv, capsys):
    assert main(["rank-report", str(csv), "--horizon", "24", "--lookback", "36", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    errors = dict(zip(report["ranks"], report["validation mse"]))
    assert errors[2] > 10 * errors[4] and report["alignment"]["P(L)"] > 0.99
    # Four directions hold two sinusoids, in the data's kernel and in that of the bank fitted to it.
    assert report["alignment"]["k95"] <= 4 and report["alignment"]["k95 of the fitted bank's tangent kernel"] <= 4
    assert min(report["steps of gradient descent for 95 %"].values()) >= 1


def test_benchmark_without_any_data_folder(capsys, tmp_path):
    out = tmp_path / "t.csv"
    arguments = ["--datasets", "co2", "--horizons", "13", "--models", "ridge,repeat-last,timebase", "--epochs", "1"]
    assert main(["benchmark", *arguments, "--lookback", "104", "--out", str(out)]) == 0
    table = pd.read_csv(out).set_index("model")
    assert table.loc["ridge", "mse"] < table.loc["repeat-last", "mse"] and table["windows"].nunique() == 1


@pytest.mark.parametrize(("change", "message"), [
    (lambda p: p.unlink(), "does not exist"),
    (lambda p: p.write_text("date\n2024-01-01\n"), "needs a column of time stamps and at least one of numbers"),
    (lambda p: p.write_text("date,a\nyesterday,1\n"), "('date') does not hold time stamps"),
    (lambda p: p.write_text("date,a\n2024-01-01,x\n"), "column 'a' of"),
    (lambda p: p.write_text("date,a\n2024-01-01,1\n2024-01-02,2\n2024-01-03,3\n"), "y has 3 rows"),
    (lambda p: p.write_text(""), "is not a readable CSV"),
    (lambda p: p.write_text("date,a\n2024-01-01,1\n2024-01-02,2,3\n"), "is not a readable CSV"),
    (lambda p: p.write_text("date,a\n2024-01-01,1,2\n2024-01-02,2,3\n"), "more values in a row than names"),
    (lambda p: p.write_text("a,b\n1,2\n3,4\n"), "('a') does not hold time stamps"),
    (lambda p: p.write_bytes(b"date,a\n2024-01-01,\xff\xfe\n"), "is not a readable CSV"),
])  # fmt: skip
def test_one_line_for_bad_files(csv, capsys, change, message):
    change(csv)
    assert main(["predict", str(csv)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_offsets_that_change_with_summer_time(csv, tmp_path):
    index = pd.date_range("2024-03-25", periods=400, freq="h", tz="Europe/Berlin")  # +01:00, then +02:00
    frame = pd.DataFrame({"zeit": index.map(str), "x": np.sin(2 * np.pi * np.arange(400) / 24)})
    frame.to_csv(csv, index=False)
    saved, out = tmp_path / "m.pkl", tmp_path / "f.csv"
    assert main(["fit", str(csv), "--horizon", "24", "--lookback", "48", "--out", str(saved)]) == 0
    assert main(["predict", str(csv), "--forecaster", str(saved), "--horizon", "24", "--out", str(out)]) == 0
    forecast = pd.read_csv(out)
    assert pd.Timestamp(forecast["date"][0]) == index[-1] + pd.Timedelta("1h")
    assert np.abs(forecast["x"] - np.sin(2 * np.pi * np.arange(400, 424) / 24)).max() < 1e-2


def test_columns_are_matched_by_name(csv, tmp_path, capsys):
    saved, whole, some = tmp_path / "m.pkl", tmp_path / "w.csv", tmp_path / "s.csv"
    assert main(["fit", str(csv), "--horizon", "24", "--lookback", "48", "--out", str(saved)]) == 0
    assert main(["predict", str(csv), "--forecaster", str(saved), "--out", str(whole)]) == 0
    frame, expected = pd.read_csv(csv), pd.read_csv(whole)
    for columns in (["Öl", "Last"], ["Öl"]):
        frame[["Zeit", *columns]].to_csv(csv, index=False)
        assert main(["predict", str(csv), "--forecaster", str(saved), "--out", str(some)]) == 0
        assert np.allclose(pd.read_csv(some)[columns], expected[columns]) and len(pd.read_csv(some).columns) == 1 + len(
            columns
        )
    frame.rename({"Öl": "oil"}, axis=1).to_csv(csv, index=False)
    assert main(["predict", str(csv), "--forecaster", str(saved), "--horizon", "24"]) == 2
    assert "y_last: 'oil' is not among the fitted channels, 'Last', 'Öl'" in capsys.readouterr().err
    assert main(["predict", str(csv), "--forecaster", str(tmp_path / "none.pkl")]) == 2
    assert "none.pkl does not exist" in capsys.readouterr().err


def test_a_saved_forecaster_knows_its_horizon(csv, tmp_path, capsys):
    saved, out = tmp_path / "m.pkl", tmp_path / "f.csv"
    assert main(["fit", str(csv), "--horizon", "24", "--lookback", "48", "--out", str(saved)]) == 0
    assert main(["predict", str(csv), "--forecaster", str(saved), "--out", str(out)]) == 0
    assert len(pd.read_csv(out)) == 24
    assert main(["predict", str(csv), "--forecaster", str(saved), "--horizon", "30"]) == 2
    assert "horizon=30 is longer than the fitted horizon=24" in capsys.readouterr().err
    assert len(pd.read_csv(out)) == 24  # nothing was overwritten


def test_one_line_for_bad_arguments(csv, tmp_path, capsys, monkeypatch):
    saved, sizes = tmp_path / "m.pkl", ["--horizon", "24", "--lookback", "48"]
    assert main(["fit", str(csv), *sizes, "--out", str(saved)]) == 0
    damaged, other = tmp_path / "damaged.pkl", tmp_path / "other.pkl"
    damaged.write_bytes(saved.read_bytes()[:-40])
    other.write_bytes(pickle.dumps({"a": 1}))
    nowhere = str(tmp_path / "none" / "f")
    capsys.readouterr()
    for arguments, message in (
        (["predict", str(csv), "--forecaster", str(damaged)], "damaged.pkl was not saved by fit, or is damaged"),
        (["predict", str(csv), "--forecaster", str(other)], "other.pkl was not saved by fit, or is damaged"),
        (["predict", str(csv), "--forecaster", str(saved), "--out", nowhere], "none"),
        (["fit", str(csv), *sizes, "--out", nowhere], "none"),
        (["fit", str(csv), *sizes, "--model", "arima"], "model must be one of rrr, bank, auto, got 'arima'"),
        (["fit", str(csv), "--horizon", "0"], "horizon must be a positive integer, got 0"),
        (["rank-report", str(csv), "--lookback", "300"], "rows, but one window needs lookback + horizon = 300 + 96"),
        (["benchmark", "--datasets", "co2", "--models", "ridge,patchtst"], "models must be among chosen, rrr-val"),
        (["benchmark", "--datasets", "co2", "--horizons", "13,week"], "horizons must be positive integers"),
        (["benchmark", "--datasets", "M4"], "name must be one of ETTh1"),
        (["benchmark", "--datasets", "weather"], "pass data_dir"),
    ):
        assert main(arguments) == 2, arguments
        error = capsys.readouterr().err
        assert error.startswith("error: ") and message in error and error.count("\n") == 1, error
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["export", str(csv), *sizes]) == 2
    assert "neurips26-filterbank-tsf[onnx]" in capsys.readouterr().err
