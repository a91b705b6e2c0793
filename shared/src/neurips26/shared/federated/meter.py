"""Who sent how many bytes in which round, read off the messages themselves."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from flwr.app import RecordDict

from neurips26.shared.arrays import check_choice
from neurips26.shared.federated.records import sizes

__all__ = ["ByteMeter"]


@dataclass
class ByteMeter:
    """A row a message: round, client (its partition id), direction and the three sizes.

    A client that is not sampled has no row; a message whose answer was an error counts on its way down.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, round: int, client: int, direction: str, content: RecordDict, purpose: str = "train") -> None:
        """Measure one message body."""
        check_choice(direction, "direction", ("up", "down"))
        row = {"round": round, "client": client, "direction": direction, "purpose": purpose}
        self.rows.append(row | asdict(sizes(content)))

    def total(self, direction: str | None = None, column: str = "tensor_bytes", **match: Any) -> int:
        """Sum of one column over the rows that match, for example ``total("up", round=3, purpose="train")``."""
        match = match | ({"direction": direction} if direction else {})
        return sum(row[column] for row in self.rows if all(row[key] == value for key, value in match.items()))
