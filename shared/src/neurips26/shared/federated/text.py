# ruff: noqa: D102  what overrides is documented in its base class
"""Text classification over clients with MiniLM, its lower layers computed once."""

from __future__ import annotations

import csv
import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neurips26.shared import backbones, data
from neurips26.shared.arrays import check_choice, check_int, check_real
from neurips26.shared.federated.model import LoraModel
from neurips26.shared.federated.state import Tensors
from neurips26.shared.federated.task import Task
from neurips26.shared.progress import track
from neurips26.shared.seeding import derive, rng

__all__ = ["TextTask", "deal", "dirichlet_partition", "read_labelled", "read_table", "split_like", "stratified"]


def read_table(path: str | Path, *columns: str) -> list[dict[str, str]]:
    """Rows of a CSV file that has at least these columns.

    A real CSV reader: fields may hold commas and line breaks. Bytes that are not UTF-8, and a missing column or field,
    are an error naming the file.
    """
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8 text ({error})") from None
    for number, row in enumerate(rows or [{}], 1):
        absent = [c for c in columns if row.get(c) is None]
        if absent:
            raise ValueError(
                f"{path}: expected rows with the columns {' and '.join(columns)}, row {number} lacks {absent}"
            )
    return rows


def read_labelled(path: str | Path) -> tuple[list[str], list[str]]:
    """Texts and labels: of a CSV file with the columns ``text`` and one of ``category``, ``label`` (BANKING77, NusaX), or
    of a file ``.tsv`` with a text, a tab and a label on every line and no header (SST-2).
    """
    if str(path).endswith(".tsv"):
        try:
            lines = Path(path).read_text("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: expected UTF-8 text ({error})") from None
        fields = [line.split("\t") for line in lines]
        for number, row in enumerate(fields or [[]], 1):
            if len(row) != 2:
                raise ValueError(f"{path}: expected a text, a tab and a label, line {number} has {len(row)} fields")
        return [row[0] for row in fields], [row[1] for row in fields]
    rows = read_table(path)
    column = next((c for c in ("category", "label") if rows and c in rows[0]), None)
    if column is None or "text" not in rows[0]:
        raise ValueError(f"{path}: expected rows with the columns text and category (or label)")
    return [row["text"] for row in rows], [row[column] for row in rows]


def dirichlet_partition(labels: np.ndarray, num_clients: int, alpha: float, seed: int) -> list[np.ndarray]:
    """Indices of each client: class shares drawn from Dirichlet(alpha), by flwr-datasets; no client stays empty.

    Raises:
        ValueError: no partition with at least one example a client was found in flwr-datasets' bounded tries.
    """
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    check_int(num_clients, "num_clients", minimum=1, maximum=len(labels))
    check_real(alpha, "alpha", minimum=0, inclusive=False)
    if num_clients == 1:
        return [np.arange(len(labels))]
    partitioner = DirichletPartitioner(
        num_clients, "label", alpha, min_partition_size=1, self_balancing=False, seed=seed % 2**31, shuffle=True
    )
    partitioner.dataset = Dataset.from_dict({"label": labels.tolist(), "index": list(range(len(labels)))})
    try:
        return [np.sort(np.asarray(partitioner.load_partition(i)["index"])) for i in range(num_clients)]
    except ValueError as error:
        raise ValueError(f"alpha: no partition without an empty client was found at {alpha} ({error})") from error


def split_like(labels: np.ndarray, train_labels: np.ndarray, parts: list[np.ndarray], seed: int) -> list[np.ndarray]:
    """Deal examples to clients so that each class is spread as it is in the clients' training parts."""
    draw = rng(seed, "split like")
    out: list[list[int]] = [[] for _ in parts]
    for label in np.unique(labels):
        counts = np.array([(train_labels[part] == label).sum() for part in parts], dtype=float)
        indices = draw.permutation(np.flatnonzero(labels == label))
        shares = counts / counts.sum() if counts.sum() else np.full(len(parts), 1 / len(parts))
        cuts = np.rint(np.cumsum(shares) * len(indices)).astype(int)[:-1]
        for mine, dealt in zip(out, np.split(indices, cuts), strict=True):
            mine.extend(dealt.tolist())
    return [np.array(sorted(mine), dtype=np.int64) for mine in out]


def _layer(layer: Any, x: Tensor, there: Tensor) -> Tensor:
    """One BERT layer on the tokens of a batch laid end to end: ``x`` (tokens, width), ``there`` (b, t) where they stand.

    Attention alone needs the texts apart; the rest, which is nearly all of the work, never sees the padding.
    """
    own = layer.attention.self

    def apart(tokens: Tensor) -> Tensor:
        out = tokens.new_zeros(*there.shape, tokens.shape[-1])
        out[there] = tokens
        return out.unflatten(-1, (own.num_attention_heads, -1)).transpose(1, 2)

    query, key, value = (apart(project(x)) for project in (own.query, own.key, own.value))
    mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=there[:, None, None, :])
    x = layer.attention.output(mixed.transpose(1, 2).flatten(-2)[there], x)
    return layer.output(layer.intermediate(x), x)


class _Upper(nn.Module):
    """The upper layers of a BERT encoder, mean pooling and a linear head."""

    def __init__(self, layers: nn.ModuleList, width: int, classes: int) -> None:
        super().__init__()
        self.layer = layers
        self.classifier = nn.Linear(width, classes)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Logits from the hidden states below the first layer (b, t, width) and the attention mask (b, t)."""
        x = hidden[mask]
        for layer in self.layer:
            x = _layer(layer, x, mask)
        text = mask.nonzero()[:, 0]
        pooled = x.new_zeros(len(mask), x.shape[-1]).index_add(0, text, x) / mask.sum(1, keepdim=True)
        return self.classifier(pooled)


@lru_cache(maxsize=2)
def _encoder() -> Any:
    return backbones.load("MiniLM")


@lru_cache(maxsize=4)
def _prefix(texts: tuple[str, ...], below: int, max_length: int) -> tuple[Tensor, Tensor]:
    """Hidden states (float16) that enter layer ``below``, and masks, of all texts: constant while lower layers are frozen."""
    encoder, tokenizer = _encoder(), backbones.tokenizer("MiniLM")
    tokens = tokenizer(list(texts), padding="max_length", truncation=True, max_length=max_length, return_tensors="pt")
    mask = tokens["attention_mask"].bool()
    hidden = torch.zeros(len(texts), max_length, encoder.config.hidden_size, dtype=torch.float16)
    order = torch.argsort(mask.sum(1))  # by length, so that a batch is as short as its texts
    with torch.no_grad():
        for rows in track(order.split(64), "frozen layers"):
            longest = int(mask[rows].sum(1).max())
            short = mask[rows, :longest]
            state = encoder.embeddings(input_ids=tokens["input_ids"][rows, :longest])[short]
            for layer in encoder.encoder.layer[:below]:
                state = _layer(layer, state, short)
            text, place = short.nonzero(as_tuple=True)
            hidden[rows[text], place] = state.half()
    return hidden, mask


class TextTask(Task):
    """Texts and classes of a labelled file pair, dealt to clients by Dirichlet(alpha) over the classes.

    MiniLM is adapted in the attention projections of its upper layers. What lies below is frozen and has no dropout, so
    its outputs are computed once a text and kept in float16 (:func:`_prefix`); training touches the upper layers only.

    Args:
        paper: the paper whose declared data ``train`` and ``test`` name.
        train, test: declared names of the files; or lists of names, one a client, which then keeps its own texts (one
            language each, for example).
        num_clients: clients.
        alpha: concentration of the Dirichlet distribution over the classes.
        layers: upper layers that are adapted (1 to 6; 6 caches the embeddings only).
        targets: projections that are adapted.
        train_size, test_size: examples used, drawn by class-stratified sampling from the files.
        max_length: tokens kept of a text.
        seed: of the partition.
        sample_seed: of the choice of examples; a fifth of the training examples is the validation split.
    """

    name, kind = "text", "real"

    def __init__(
        self,
        paper: str,
        train: str | list[str] | tuple[str, ...] = "banking77/train.csv",
        test: str | list[str] | tuple[str, ...] = "banking77/test.csv",
        num_clients: int = 8,
        alpha: float = 0.5,
        layers: int = 1,
        targets: tuple[str, ...] | list[str] = ("query", "value"),
        train_size: int = 2000,
        test_size: int = 600,
        max_length: int = 32,
        seed: int = 0,
        sample_seed: int = 0,
    ) -> None:
        check_int(layers, "layers", minimum=1, maximum=6)
        for target in targets:
            check_choice(target, "targets", ("query", "key", "value"))
        own = not isinstance(train, str)
        if own != (not isinstance(test, str)) or (own and not len(train) == len(test) == num_clients):
            raise ValueError("train, test: expected one file each, or as many as there are clients")
        texts, names, source = _read_all(paper, train)
        test_texts, test_names, test_source = _read_all(paper, test)
        self.classes = sorted(set(names))
        unknown = sorted(set(test_names) - set(self.classes))
        if unknown:
            raise ValueError(f"test: expected the classes of the training file, found others: {unknown[:5]}")
        index = {name: i for i, name in enumerate(self.classes)}
        labels, test_labels = np.array([index[n] for n in names]), np.array([index[n] for n in test_names])
        self.num_clients = check_int(num_clients, "num_clients", minimum=1)
        self._settings = {"num_clients": num_clients, "alpha": alpha, "layers": layers, "seed": seed}
        self._settings |= {"sample_seed": sample_seed, "train_size": train_size, "test_size": test_size}
        chosen = stratified(labels, train_size, derive(sample_seed, "train"))
        chosen_test = stratified(test_labels, test_size, derive(sample_seed, "test"))
        held = rng(sample_seed, "validation").permutation(len(chosen))[: len(chosen) // 5]
        inside = np.setdiff1d(np.arange(len(chosen)), held)
        self._texts = {
            "train": ([texts[i] for i in chosen[inside]], labels[chosen[inside]]),
            "validation": ([texts[i] for i in chosen[held]], labels[chosen[held]]),
            "test": ([test_texts[i] for i in chosen_test], test_labels[chosen_test]),
        }
        train_labels = self._texts["train"][1]
        if own:
            self.parts = [np.flatnonzero(source[chosen[inside]] == k) for k in range(num_clients)]
            sources = {"validation": source[chosen[held]], "test": test_source[chosen_test]}
            self._own = {split: [np.flatnonzero(s == k) for k in range(num_clients)] for split, s in sources.items()}
        else:
            self.parts = dirichlet_partition(train_labels, num_clients, alpha, derive(seed, "partition"))
            self._own = {
                s: split_like(self._texts[s][1], train_labels, self.parts, seed) for s in ("validation", "test")
            }
        self._layers, self._max_length, self._targets = layers, max_length, list(targets)
        self._built: LoraModel | None = None
        self._hidden: dict[str, tuple[Tensor, Tensor, Tensor]] = {}

    def options(self) -> dict[str, Any]:
        return dict(self._settings)

    def manifest(self) -> str:
        """Every client's training texts by index and the digest of all texts, as JSON: to compare a partition or remake it."""
        digest = hashlib.sha256("\0".join(self._texts["train"][0]).encode()).hexdigest()
        return json.dumps({"sha256": digest, "parts": [part.tolist() for part in self.parts]})

    def model(self) -> LoraModel:
        if self._built is None:
            import copy

            encoder = _encoder()
            below = len(encoder.encoder.layer) - self._layers
            upper = copy.deepcopy(encoder.encoder.layer[below:])
            module = _Upper(nn.ModuleList(upper), encoder.config.hidden_size, len(self.classes))
            for part in module.modules():
                if isinstance(part, nn.Dropout):
                    part.p = 0.0
            names = [f"layer.{i}.attention.self.{t}" for i in range(self._layers) for t in self._targets]
            self._built = LoraModel(module.eval(), names, ["classifier.weight", "classifier.bias"])
        return self._built

    def initial_head(self, seed: int) -> Tensors:
        width = _encoder().config.hidden_size
        draw = torch.Generator().manual_seed(derive(seed, "head"))
        weight = torch.randn(len(self.classes), width, generator=draw) / width**0.5
        return {"classifier.weight": weight, "classifier.bias": torch.zeros(len(self.classes))}

    def num_examples(self, pid: int) -> int:
        return len(self.parts[pid])

    def _states(self, split: str) -> tuple[Tensor, Tensor, Tensor]:
        if split not in self._hidden:
            texts, labels = self._texts[split]
            hidden, mask = _prefix(tuple(texts), len(_encoder().encoder.layer) - self._layers, self._max_length)
            self._hidden[split] = hidden, mask, torch.from_numpy(labels)
        return self._hidden[split]

    def _logits(self, model: LoraModel, split: str, rows: Tensor) -> tuple[Tensor, Tensor]:
        hidden, mask, labels = self._states(split)
        longest = int(mask[rows].sum(1).max())
        return model.module(hidden[rows, :longest].float(), mask[rows, :longest]), labels[rows]

    def loss(self, model: LoraModel, pid: int, indices: np.ndarray, rng: np.random.Generator) -> Tensor:
        logits, labels = self._logits(model, "train", torch.from_numpy(self.parts[pid][indices]))
        return nn.functional.cross_entropy(logits, labels)

    def evaluate(self, model: LoraModel, split: str, pid: int | None = None) -> dict[str, float]:
        check_choice(split, "split", ("validation", "test"))
        mask = self._states(split)[1]
        rows = torch.arange(len(mask)) if pid is None else torch.from_numpy(self._own[split][pid])
        if not len(rows):
            return {"accuracy": float("nan"), "loss": float("nan")}
        rows = rows[torch.argsort(mask[rows].sum(1))]
        right, loss = 0, 0.0
        model.module.eval()
        with torch.no_grad():
            for batch in rows.split(128):
                logits, labels = self._logits(model, split, batch)
                right += int((logits.argmax(-1) == labels).sum())
                loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
        return {"accuracy": right / len(rows), "loss": loss / len(rows)}


def _read_all(paper: str, files: str | list[str] | tuple[str, ...]) -> tuple[list[str], list[str], np.ndarray]:
    """Texts and labels of one or several declared files, and the number of the file that each is from."""
    texts: list[str] = []
    labels: list[str] = []
    source: list[int] = []
    for k, name in enumerate([files] if isinstance(files, str) else files):
        more, theirs = read_labelled(data.require(paper, name))
        texts, labels, source = texts + more, labels + theirs, source + [k] * len(more)
    return texts, labels, np.array(source)


def deal(size: int, num_clients: int, seed: int) -> list[np.ndarray]:
    """Indices dealt to clients at random in parts of nearly equal size."""
    check_int(num_clients, "num_clients", minimum=1, maximum=size)
    return [np.sort(part) for part in np.array_split(rng(seed, "deal").permutation(size), num_clients)]


def stratified(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """``size`` indices with every class in proportion (all, where there are fewer)."""
    if size >= len(labels):
        return np.arange(len(labels))
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(labels))
    ranked = np.empty(len(labels))
    for label in np.unique(labels):
        members = order[labels[order] == label]
        ranked[members] = (np.arange(len(members)) + draw.random()) / len(members)
    return np.sort(np.argsort(ranked, kind="stable")[:size])
