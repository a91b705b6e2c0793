"""The README's commands of Flower: ``flwr run`` in a simulation, and a deployment on loopback with TLS and registered keys.

Both run the same apps and end in the same bits as a run in one process. In the deployment, a SuperLink and two SuperNodes,
every message is answered by a process of its own, as Flower does it.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from neurips26.shared.federated import FedConfig, load_result, run_federated
from neurips26.shared.testing import needs

PACKAGE = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Loopback:
    """Processes of one deployment; all of them, and nothing else, end with the block."""

    def __init__(self, folder):
        self.folder, self.started = folder, []
        self.env = os.environ | {
            "FLWR_HOME": str(folder / "home"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        (folder / "home").mkdir()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.started):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def start(self, name, *command):
        with (self.folder / f"{name}.log").open("w") as log:
            self.started.append(
                subprocess.Popen(
                    command, env=self.env, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            )

    def run(self, *command):
        done = subprocess.run(
            command, check=False, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, self.told(done.stdout + done.stderr)
        return done.stdout

    def told(self, text=""):
        logs = (f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in self.folder.glob("*.log"))
        return "\n".join([text, *logs])

    def until_open(self, port, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.2)
        pytest.fail(self.told(f"nothing listens on port {port}"))


def certificates(link):
    """An authority, the server's certificate for 127.0.0.1, and a key pair for each of two clients."""
    (link.folder / "san.txt").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for command in (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=authority -keyout ca.key -out ca.crt",
        "openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr",
        "openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 1 -extfile san.txt -out server.pem",
        "ssh-keygen -q -t ecdsa -b 384 -N  -f client0",
        "ssh-keygen -q -t ecdsa -b 384 -N  -f client1",
    ):
        link.run(*command.split(" "))


@pytest.mark.slow
def test_a_superlink_with_two_supernodes_ends_in_the_same_bits(tmp_path):
    needs("openssl", all(map(shutil.which, ("openssl", "ssh-keygen"))), "openssl and ssh-keygen make the keys")
    settings = {
        "task-options": json.dumps({"n": 16, "num_clients": 2, "examples": 64}), "ranks": "[2, 4]", "rounds": 2,
        "local-steps": 3, "batch-size": 16, "optimizer": "sgd", "lr": 0.05, "seed": 3,
    }  # fmt: skip
    link, *nodes = free_ports(3)
    with Loopback(tmp_path) as flower:
        certificates(flower)
        flower.start(
            "superlink", "flower-superlink", "--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem",
            "--ssl-keyfile", "server.key", "--enable-supernode-auth", "--disable-runtime-dependency-installation",
            "--host", "127.0.0.1", "--port", str(link),
        )  # fmt: skip
        (tmp_path / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "prod"\n[superlink.prod]\naddress = "127.0.0.1:{link}"\n'
            f'root-certificates = "{tmp_path / "ca.crt"}"\n'
        )
        flower.until_open(link)
        for pid, port in enumerate(nodes):
            flower.run("flwr", "supernode", "register", f"client{pid}.pub", "prod")
            flower.start(
                f"supernode{pid}", "flower-supernode", "--superlink", f"127.0.0.1:{link}",
                "--root-certificates", "ca.crt", "--auth-supernode-private-key", f"client{pid}",
                "--host", "127.0.0.1", "--port", str(port),
                "--node-config", f'partition-id={pid} num-partitions=2 state-dir="{tmp_path / "state"}"',
            )  # fmt: skip
        out = tmp_path / "out"
        told = " ".join(
            f"{key}='{value}'" if isinstance(value, str) else f"{key}={value}"
            for key, value in (settings | {"out-dir": str(out)}).items()
        )
        stream = flower.run("flwr", "run", str(PACKAGE), "prod", "--stream", "--run-config", told)
        assert (out / "result.json").exists(), flower.told(stream)
    assert "round 2 of 2: 2 of 2 clients, training loss" in stream and f"final arrays are in {out}" in stream
    remote = load_result(out)
    here = run_federated(FedConfig.from_run_config(remote.config.to_run_config()))
    assert remote.config.ranks == (2, 4) and remote.config.seed == 3
    assert here.final.keys() == remote.final.keys()
    assert all(torch.equal(here.final[key], remote.final[key]) for key in here.final)
    sizes = [[row[c] for c in ("round", "client", "direction", "tensor_bytes")] for row in here.meter.rows]
    assert sizes == [[row[c] for c in ("round", "client", "direction", "tensor_bytes")] for row in remote.meter.rows]
    # What a client keeps is on its own disk, and only there.
    assert sorted(p.name for p in (tmp_path / "state" / "clients").iterdir()) == ["0", "1"]
    assert not (out / "clients").exists()


@pytest.mark.slow
def test_flwr_run_in_a_simulation_ends_in_the_same_bits_and_tells_of_its_rounds(tmp_path):
    """The SuperLink is started by ``serve``, which has no limit on how long it may take."""
    pytest.importorskip("ray")
    (port,) = free_ports(1)
    out = tmp_path / "out"
    with Loopback(tmp_path) as flower:
        flower.env["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"] = str(port)
        flower.start("superlink", str(BIN / "neurips26"), "frank-lora", "serve", "--port", str(port))
        flower.until_open(port, 120)
        stream = flower.run(
            "flwr", "run", str(PACKAGE), "--federation-config", "num-supernodes=4 client-resources-num-cpus=1", "--stream",
            "--run-config", f"out-dir='{out}'",
        )  # fmt: skip
        assert (out / "result.json").exists(), flower.told(stream)
    for t in (1, 2, 3):
        assert f"round {t} of 3: 4 of 4 clients, training loss" in stream
    assert "FrankLoRA, 3 rounds, 4 clients" in stream and "global loss" in stream
    simulated = load_result(out)
    here = run_federated(FedConfig.from_run_config(simulated.config.to_run_config()))
    assert here.final.keys() == simulated.final.keys()
    assert all(torch.equal(here.final[key], simulated.final[key]) for key in here.final)
