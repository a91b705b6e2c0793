import json
import os
import signal
import subprocess
import sys

import pytest

from neurips26.shared import grid, progress, runs, seeding, threads
from neurips26.shared.testing import needs


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    runs.atomic_write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), runs.atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert runs.read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_nan_is_not_json(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        runs.atomic_write_json(tmp_path / "a.json", float("nan"))
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_named_and_kept(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": ')
    with pytest.raises(runs.CorruptRecordError, match=r"a\.json"):
        runs.read_json(path)
    assert path.read_text() == '{"a": '


def test_the_second_run_in_a_directory_stops_and_names_the_lock(tmp_path):
    with runs.lock(tmp_path), pytest.raises(runs.LockedError, match=r"\.lock.*process"), runs.lock(tmp_path):
        pass
    with runs.lock(tmp_path):
        pass


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path):
    code = f"import os; from neurips26.shared.runs import lock\nwith lock({str(tmp_path)!r}): os._exit(1)"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert (tmp_path / ".lock").exists()
    with runs.lock(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_of_many_that_find_a_dead_lock_one_takes_it(tmp_path):
    """Each looks, then takes; between the two no other may have taken it."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    who = {"pid": dead.pid, "started": 0.0, "host": runs.socket.gethostname()}
    (tmp_path / ".lock").write_text(json.dumps(who))
    answers, say = os.pipe()
    go, hold = os.pipe()
    children = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os.close(hold)
            try:
                with runs.lock(tmp_path):
                    os.write(say, b"y")
                    os.read(go, 1)  # until the parent has heard all
            except runs.LockedError:
                os.write(say, b"n")
            finally:
                os._exit(0)
        children.append(child)
    heard = b""
    while len(heard) < len(children):
        heard += os.read(answers, 1)
    for end in (go, hold, say, answers):
        os.close(end)
    for child in children:
        os.waitpid(child, 0)
    assert sorted(heard) == sorted(b"y" + b"n" * 5)
    assert not (tmp_path / ".lock").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"pid": 1'])
def test_a_lock_without_an_owner_is_taken_over(tmp_path, text):
    (tmp_path / ".lock").write_text(text)
    with runs.lock(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_a_finished_cell_never_runs_twice(tmp_path):
    calls = []
    sweep = grid.Grid(tmp_path)
    cells = grid.product(a=[1, 2], b=[10])
    first = sweep.run(cells, lambda a, b: calls.append(a) or a * b)
    again = grid.Grid(tmp_path).run(cells, lambda a, b: calls.append(a) or a * b)
    assert first == again == [{"factors": {"a": 1, "b": 10}, "value": 10}, {"factors": {"a": 2, "b": 10}, "value": 20}]
    assert calls == [1, 2]


def test_streams_are_stable_and_independent():
    assert seeding.derive(0, "a") == seeding.derive(0, "a") != seeding.derive(0, "b")
    assert seeding.rng(1, "x").integers(1 << 30) == seeding.rng(1, "x").integers(1 << 30)
    with pytest.raises(ValueError, match="seed"):
        seeding.rng(-1)


def test_thread_limit_reaches_blas():
    from threadpoolctl import threadpool_info

    with threads.limit(1):
        assert all(pool["num_threads"] == 1 for pool in threadpool_info())
    assert threads.environment(2)["OMP_NUM_THREADS"] == "2"


def test_track_yields_everything(capsys):
    assert list(progress.track(range(3), "x")) == [0, 1, 2]


def test_needs_skips_or_fails(monkeypatch):
    needs("data", True)
    monkeypatch.setenv("NEURIPS26_REQUIRE", "")
    with pytest.raises(pytest.skip.Exception):
        needs("data", False)
    monkeypatch.setenv("NEURIPS26_REQUIRE", "browser, data")
    with pytest.raises(pytest.fail.Exception):
        needs("data", False)
