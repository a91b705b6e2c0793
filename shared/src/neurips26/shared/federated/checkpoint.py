"""The server's state after each round, so that a killed run goes on to the same final arrays."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load, save

from neurips26.shared.federated.config import FedConfig
from neurips26.shared.federated.meter import ByteMeter
from neurips26.shared.federated.method import FedMethod
from neurips26.shared.runs import atomic_write_bytes, atomic_write_json, read_json

if TYPE_CHECKING:
    from neurips26.shared.federated.strategy import FedResult

__all__ = ["Checkpoints", "ConfigMismatchError"]

log = logging.getLogger("neurips26.federated")


class ConfigMismatchError(ValueError):
    """A run is to be resumed with other settings than it was begun with."""


class Checkpoints:
    """``round-<t>.safetensors`` with ``round-<t>.json`` beside it; the last two are kept.

    The JSON is written last and holds the checksum of the tensors: a pair is whole or it is not used.
    """

    def __init__(self, folder: Path, config: FedConfig) -> None:
        self.folder, self.config = Path(folder), config

    def save(self, round: int, method: FedMethod, result: FedResult, run: str) -> None:
        """Write the state after ``round``; an error (a full disk) leaves the older ones as they are."""
        tensors, state = method.state_dict()
        data = save({key: value.contiguous() for key, value in tensors.items()})
        path = self.folder / f"round-{round:05d}.safetensors"
        atomic_write_bytes(path, data)
        about = {"sha256": hashlib.sha256(data).hexdigest(), "config": self.config.to_run_config(), "method": state}
        about |= {"history": result.history, "rounds": result.rounds, "meter": result.meter.rows, "run": run}
        atomic_write_json(path.with_suffix(".json"), about)
        for old in sorted(self.folder.glob("round-*.json"))[:-2]:
            old.unlink()
            old.with_suffix(".safetensors").unlink(missing_ok=True)

    def restore(self, method: FedMethod, result: FedResult) -> tuple[int, str | None]:
        """Load the newest whole checkpoint into ``method`` and ``result``.

        Returns:
            Its round and the token of the run; 0 and None if there is none.
        """
        for path in sorted(self.folder.glob("round-*.json"), reverse=True):
            tensors_path = path.with_suffix(".safetensors")
            try:
                about, data = read_json(path), tensors_path.read_bytes()
            except (OSError, ValueError) as error:
                log.warning("%s: damaged (%s); using the checkpoint before it", path, error)
                continue
            if hashlib.sha256(data).hexdigest() != about["sha256"]:
                log.warning("%s: damaged (checksum); using the checkpoint before it", tensors_path)
                continue
            self._same(about["config"])
            method.load_state_dict(load(data), about["method"])
            result.history, result.rounds = about["history"], about["rounds"]
            result.meter = ByteMeter(about["meter"])
            return int(path.stem.split("-")[1]), about["run"]
        return 0, None

    def _same(self, old: dict[str, object]) -> None:
        new = json.loads(json.dumps(self.config.to_run_config()))
        odd = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key != "rounds")
        if odd:
            told = "; ".join(f"{key}: {old.get(key)!r} then, {new.get(key)!r} now" for key in odd)
            raise ConfigMismatchError(f"{self.folder}: begun with other settings ({told})")
