import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from neurips26.shared import launch as launching
from neurips26.shared.launch import LaunchError, launch

WORKERS = """
import os, subprocess, sys, time

def environment(prefix, suffix=""):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "FLAVOUR")
    return prefix + os.environ["RANK"] + suffix, {n: os.environ.get(n) for n in names}

def fail_on(rank):
    print("starting", os.environ["RANK"], flush=True)
    if os.environ["RANK"] == str(rank):
        raise RuntimeError("the weights are gone")
    time.sleep(60)

def hang(path=None):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    if path:
        with open(path + os.environ["RANK"], "w") as out:
            out.write(f"{os.getpid()} {child.pid}")
        os.rename(path + os.environ["RANK"], path + os.environ["RANK"] + ".pids")
    print("waiting for godot", flush=True)
    time.sleep(60)

def vanish():
    os._exit(0)

def leave_a_child():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid
"""


@pytest.fixture
def env(tmp_path):
    """Workers live in a module that the ranks can import; a test file is none."""
    (tmp_path / "launched_workers.py").write_text(WORKERS)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def gone(pid, within=5.0):
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_ranks_get_their_places_and_return_by_rank(env):
    results = launch("launched_workers:environment", 3, ["r"], {"suffix": "!"}, env=env | {"FLAVOUR": "mint"})
    assert [name for name, _ in results] == ["r0!", "r1!", "r2!"]
    ports = {e["MASTER_PORT"] for _, e in results}
    assert len(ports) == 1
    assert 1024 <= int(ports.pop()) <= 65535
    for rank, (_, e) in enumerate(results):
        assert (e["RANK"], e["LOCAL_RANK"], e["WORLD_SIZE"]) == (str(rank), str(rank), "3")
        assert (e["MASTER_ADDR"], e["OMP_NUM_THREADS"], e["FLAVOUR"]) == ("127.0.0.1", "1", "mint")


def test_failing_rank_ends_the_others_and_is_quoted(env):
    begin = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        launch("launched_workers:fail_on", 2, [1], env=env)
    assert time.monotonic() - begin < 30
    text = str(caught.value)
    assert "rank 1 of 2 ended with status 1" in text
    assert "starting 1" in text
    assert "RuntimeError: the weights are gone" in text


def test_time_limit_ends_all_and_quotes_one(env, tmp_path):
    with pytest.raises(LaunchError, match=r"(?s)not finished after 3 s: ranks 0, 1 of 2; rank 0 said:.*godot"):
        launch("launched_workers:hang", 2, [str(tmp_path / "a")], timeout=3, env=env)
    for path in tmp_path.glob("a*.pids"):
        assert all(gone(int(pid)) for pid in path.read_text().split())


def test_nothing_survives_a_killed_parent(env, tmp_path):
    code = f"from neurips26.shared.launch import launch; launch('launched_workers:hang', 2, [{str(tmp_path / 'k')!r}])"
    parent = subprocess.Popen([sys.executable, "-c", code], env=os.environ | env)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("k*.pids"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = [int(pid) for path in tmp_path.glob("k*.pids") for pid in path.read_text().split()]
    assert len(pids) == 4
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert all(gone(pid) for pid in pids)


def test_children_of_a_finished_rank_are_swept(env):
    (pid,) = launch("launched_workers:leave_a_child", 1, env=env)
    assert gone(pid)


def test_rank_without_a_result_is_a_failure(env):
    with pytest.raises(LaunchError, match="rank 0 of 1 ended with status 0"):
        launch("launched_workers:vanish", 1, env=env)


def test_unknown_function_is_quoted(env):
    with pytest.raises(LaunchError, match="has no attribute 'nothing'"):
        launch("launched_workers:nothing", 1, env=env)


def test_free_port_can_be_bound():
    with socket.socket() as server:
        server.bind(("127.0.0.1", launching.free_port()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no_function", 2), "target: expected 'module:function', got 'no_function'"),
        (("m:f", 0), "n: expected an integer >= 1"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        launch(*arguments)


def test_bad_timeout_is_named():
    with pytest.raises(ValueError, match="timeout: expected a finite number > 0"):
        launch("m:f", 1, timeout=0)
