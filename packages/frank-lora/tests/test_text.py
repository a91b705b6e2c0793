"""MiniLM on banking77: the partition, the cached lower layers, and the closed-form bytes."""

import numpy as np
import pytest
import torch

from neurips26.frank_lora import measure_snr
from neurips26.shared import backbones, data
from neurips26.shared.federated import AdapterState, FedConfig, run_federated
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
    """All six layers, query and value, rank 8: 12 modules of 384 x 384."""
    texts()
    config = FedConfig(
        method="neurips26.frank_lora.method:FrankLoRA", task="neurips26.shared.federated.text:TextTask",
        task_options=SMALL | {"layers": 6}, ranks=(8, 8, 8), rounds=1, local_steps=0, lr=1e-3,
    )  # fmt: skip
    head = 4 * (77 * 384 + 77)
    for method, up in ((config.method, 147_456), ("fedit", 294_912), ("ffa", 147_456)):
        result = run_federated(config.replace(method=method))
        assert [result.meter.total("up", client=pid) - head for pid in range(3)] == [up] * 3
    row = next(r for r in result.meter.rows if r["direction"] == "up")
    names = len("B/layer.0.attention.self.query") * 6 + len("B/layer.0.attention.self.value") * 6
    names += len("head/classifier.weight") + len("head/classifier.bias")
    # Flower's arrays carry 128 bytes of header each, records their keys; the configuration is one short text.
    assert 0 < row["record_bytes"] - (row["tensor_bytes"] + 14 * 128 + names) < 2000


def test_signal_to_noise_of_true_gradients():
    """Gradients of MiniLM's query and value weights on a batch of banking77: linear in r, whatever the gradient."""
    task = texts()
    model = task.model()
    model.set_adapters(AdapterState())
    model.set_head(task.initial_head(0))
    parameters = model.trainable(("base",))
    task.loss(model, 0, np.arange(8), np.random.default_rng(0)).backward()
    gradients = {name: p.grad.clone() for name, p in parameters.items()}
    model.module.requires_grad_(False)
    for parameter in parameters.values():
        parameter.grad = None
    ranks = np.array([2, 8, 32])
    for name, gradient in gradients.items():
        measured = np.array([measure_snr(gradient, int(r), 500) for r in ranks])  # the gradients have few directions
        slope = (ranks @ measured) / (ranks @ ranks)
        assert slope * 385 == pytest.approx(1.0, abs=0.05), name
        assert np.corrcoef(ranks, measured)[0, 1] ** 2 > 0.999
