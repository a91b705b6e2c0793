"""MiniLM on banking77: the partition, the cached lower layers, and the closed-form bytes."""

import numpy as np
import pytest
import torch

from neurips26.shared import backbones, data
from neurips26.shared.federated import FedConfig, run_federated
from neurips26.shared.federated.text import TextTask, dirichlet_partition, read_labelled, split_like
from neurips26.shared.testing import needs

SMALL = {"paper": "frank-lora", "num_clients": 3, "train_size": 160, "test_size": 40, "max_length": 24}


def texts(**options):
    needs("data", data.find("frank-lora", "banking77/train.csv") is not None, "banking77")
    needs("backbones", backbones.available("MiniLM"), "the wheel with MiniLM")
    return TextTask(**(SMALL | options))


def test_reader_takes_quoted_line_breaks_and_names_bad_files(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('text,category\n"two\nlines, one text",a\nplain,b\n', encoding="utf-8")
    assert read_labelled(path) == (["two\nlines, one text", "plain"], ["a", "b"])
    path.write_bytes(b"text,category\nbad \xff,a\n")
    with pytest.raises(ValueError, match="x.csv: expected UTF-8 text"):
        read_labelled(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="columns text and category"):
        read_labelled(path)


def test_partition_is_whole_disjoint_and_repeatable():
    labels = np.arange(400) % 7
    parts = dirichlet_partition(labels, 5, 0.5, seed=3)
    assert sorted(np.concatenate(parts).tolist()) == list(range(400))
    assert all(len(p) for p in parts)
    again = dirichlet_partition(labels, 5, 0.5, seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    dealt = split_like(labels, labels, parts, seed=0)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(400))
    for mine, part in zip(dealt, parts, strict=True):
        counts = np.bincount(labels[mine], minlength=7) - np.bincount(labels[part], minlength=7)
        assert abs(counts).max() <= 1


def test_cached_lower_layers_give_the_whole_models_outputs():
    task = texts(layers=2)
    rows = torch.arange(8)
    with torch.no_grad():
        ours, _ = task._logits(task.model(), "test", rows)
        tokens = backbones.tokenizer("MiniLM")(
            task._texts["test"][0][:8], padding=True, truncation=True, max_length=24, return_tensors="pt"
        )
        states = backbones.load("MiniLM")(**tokens).last_hidden_state
        weight = tokens["attention_mask"][..., None].float()
        theirs = task.model().module.classifier((states * weight).sum(1) / weight.sum(1))
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-3)


def test_bytes_of_minilm_are_the_closed_form():
    texts()
    config = FedConfig(
        method="neurips26.frank_lora.method:FrankLoRA", task="neurips26.shared.federated.text:TextTask",
        task_options=SMALL, ranks=(2, 4, 8), rounds=1, local_steps=1, batch_size=4, lr=1e-3,
    )  # fmt: skip
    head = 4 * (77 * 384 + 77)
    result = run_federated(config)
    for pid, r in enumerate(config.ranks):
        assert result.meter.total("up", client=pid) == 4 * 384 * r * 2 + head
    both = run_federated(config.replace(method="hetlora"))
    assert both.meter.total("up", client=2) == 2 * 4 * 384 * 8 * 2 + head
