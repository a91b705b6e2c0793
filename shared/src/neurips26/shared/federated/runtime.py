"""Where a federation runs: in this process, in Flower's simulation on Ray, or against a SuperLink.

All three run the same ClientApp and ServerApp objects.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from neurips26.shared.arrays import check_choice, check_int
from neurips26.shared.federated.client import make_client_app
from neurips26.shared.federated.config import FedConfig
from neurips26.shared.federated.server import load_result, make_server_app, serve
from neurips26.shared.federated.strategy import FedLoRAStrategy, FedResult
from neurips26.shared.runs import lock

__all__ = ["InProcessGrid", "run_federated"]

#: Flower's codes: the client app raised; the reply did not come in time.
_RAISED, _LATE = 3, 1


class InProcessGrid(Grid):
    """A Flower grid that runs the client app in this process, one message after the other.

    Every message is serialised and read back, in both directions, so that nobody shares a tensor with anybody. Each
    client keeps its context between messages, as a SuperNode does. An exception in a client is an error reply.

    Args:
        client_app: the app.
        num_clients: nodes ``0 .. num_clients - 1``; node ids are random, as Flower's are.
        node_configs: more node configuration by partition id.
        run_config: the run configuration in the clients' contexts.
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_clients: int,
        node_configs: Mapping[int, Mapping[str, Any]] | None = None,
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        check_int(num_clients, "num_clients", minimum=1)
        self._app, self._run_config = client_app, dict(run_config or {})
        self._run_id, self._server_id = secrets.randbits(62), 1
        self._contexts: dict[int, Context] = {}
        for pid in range(num_clients):
            node = secrets.randbits(62) + 2
            config = {"partition-id": pid, "num-partitions": num_clients} | dict((node_configs or {}).get(pid, {}))
            self._contexts[node] = Context(self._run_id, node, config, RecordDict(), self._run_config)
        self._replies: dict[str, Message] = {}
        self._counter = 0
        self.use()

    def use(self) -> None:
        """Make this process the server of the run: Flower's messages can be built only inside one."""
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self._run_id, self._server_id, 1

    def set_run(self, run: Any) -> None:
        """Nothing: there is one run."""

    @property
    def run(self) -> Any:
        """There is no SuperLink that knows of it."""
        raise NotImplementedError("run: an in-process grid has no SuperLink's run")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Flower's older way of building a message."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes' random ids."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run each message's client at once and keep the reply."""
        ids = []
        for message in messages:
            self._counter += 1
            name = f"m{self._counter}"
            message.metadata.__dict__["_message_id"] = name
            self._replies[name] = self._answer(_copy(message))
            ids.append(name)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there; each is handed out once."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send and collect; nothing is ever late here."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            reply = self._app(message, context)
        except TimeoutError as error:
            reply = Message(Error(code=_LATE, reason=str(error)), reply_to=message)
        except Exception as error:  # a client's failure of any kind is a reply, as in Flower's own engines
            reply = Message(Error(code=_RAISED, reason=f"{type(error).__name__}: {error}"), reply_to=message)
        return _copy(reply)


def _copy(message: Message) -> Message:
    """The message after the way through bytes."""
    if not message.has_content():
        return message
    objects = get_all_nested_objects(message.content)
    contents = {name: item.deflate() for name, item in objects.items()}
    content = inflate_object_from_contents(message.content.object_id, contents)
    return Message(content=content, metadata=message.metadata)  # type: ignore[arg-type]


def run_federated(
    config: FedConfig,
    backend: str = "sequential",
    out_dir: str | Path | None = None,
    resume: bool = False,
    callbacks: Iterable[Callable[[int, FedLoRAStrategy], None]] = (),
) -> FedResult:
    """Run a federation and return its history, byte table and final arrays.

    Args:
        config: the settings.
        backend: ``sequential`` (this process) or ``ray`` (Flower's simulation, extra ``federated-sim``). Against a
            SuperLink the run is started by ``flwr run``; see the packages' READMEs.
        out_dir: where checkpoints, the clients' private state and the result go; needed to resume.
        resume: go on after the newest checkpoint in ``out_dir``.
        callbacks: called after each round with its number and the strategy (this process only).

    Raises:
        ValueError: unknown backend, ``resume`` without ``out_dir``, or callbacks for another process.
        neurips26.shared.runs.LockedError: another run works in ``out_dir``.
        FileExistsError: ``out_dir`` holds a run and ``resume`` is false.
    """
    check_choice(backend, "backend", ("sequential", "ray"))
    if resume and out_dir is None:
        raise ValueError("out_dir: expected the folder of the run to resume, got None")
    folder = Path(out_dir).resolve() if out_dir is not None else None
    defaults = config.to_run_config() | ({"out-dir": str(folder)} if folder else {})
    if backend == "ray":
        if callbacks:
            raise ValueError("callbacks: expected none with backend='ray', which runs the server elsewhere")
        return _ray(config, defaults | {"resume": resume}, folder)
    before = TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id
    try:
        grid = InProcessGrid(make_client_app(defaults), len(config.ranks))
        if folder is None:
            return serve(config, grid, callbacks=callbacks)
        with lock(folder):
            return serve(config, grid, folder, resume, callbacks)
    finally:
        TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = before


def _ray(config: FedConfig, defaults: dict[str, Any], folder: Path | None) -> FedResult:
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    from flwr.simulation import run_simulation

    with tempfile.TemporaryDirectory() as scratch:
        out = folder or Path(scratch)
        defaults = defaults | {"out-dir": str(out)}
        try:
            run_simulation(
                server_app=make_server_app(defaults),
                client_app=make_client_app(defaults),
                num_supernodes=len(config.ranks),
                backend_config={
                    "client_resources": {"num_cpus": config.threads, "num_gpus": 0.0},
                    "init_args": {"num_cpus": max(config.threads, os.cpu_count() or 1), "include_dashboard": False},
                },
            )
        except RuntimeError as error:
            if "timed out during startup" not in str(error.__cause__):
                raise
            raise RuntimeError(
                "backend: Ray did not start in the 30 seconds that it gives itself, which happens on a busy machine; "
                "try again, or use backend='sequential', which ends in the same arrays"
            ) from error
        return load_result(out)
