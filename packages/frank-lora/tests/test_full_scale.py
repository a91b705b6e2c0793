"""The configurations of full scale, built on the meta device; and the other data sets and models that need no hub."""

import json
import tomllib
from pathlib import Path

import pytest
import torch

from neurips26.shared import backbones, data
from neurips26.shared.federated import FedConfig, LoraSpec, build_method, build_task, run_federated, setup_of
from neurips26.shared.federated.hub import ClassificationTask, GenerationTask
from neurips26.shared.federated.text import TextTask, read_labelled, read_table
from neurips26.shared.testing import needs

CONFIGS = Path(__file__).parents[1] / "configs"

#: What the models' public configurations say, so far as shapes depend on it.
ROBERTA_LARGE = {
    "model_type": "roberta", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 4096, "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1,
}  # fmt: skip
LLAMA_1B = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip


def config_of(name, **options):
    settings = tomllib.loads((CONFIGS / f"{name}.toml").read_text("utf-8"))
    config = FedConfig.from_run_config(settings)
    return config.replace(task_options=config.task_options | options)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda p: p.stem)
def test_every_configuration_is_valid(path):
    config = config_of(path.stem)
    assert len(config.ranks) == config.task_options["num_clients"]
    build_method(config)


@pytest.mark.parametrize(
    "name, architecture, shapes, total",
    [
        ("glue_roberta_large", ROBERTA_LARGE, {(1024, 1024): 48}, 355_000_000),
        ("llama_dolly", LLAMA_1B, {(2048, 2048): 16, (512, 2048): 16}, 1_236_000_000),
    ],
)
def test_full_scale_builds_on_the_meta_device(name, architecture, shapes, total, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(architecture))
    config = config_of(name, model=str(tmp_path), device="meta")
    task = build_task(config)
    model = task.model()
    found = list(model.shapes.values())
    assert {shape: found.count(shape) for shape in set(found)} == shapes
    weights = {id(p): p.numel() for p in model.module.parameters()}
    assert sum(weights.values()) == pytest.approx(total, rel=0.01)
    assert all(p.device.type == "meta" for p in model.module.parameters())
    # What a client of each rank trains and sends: B alone, and the head.
    method = build_method(config)
    setup = setup_of(config, task)
    method.begin(setup)
    head = sum(value.numel() for value in setup.head.values())
    assert head == (1024 * 1024 + 1024 + 2 * 1024 + 2 if name == "glue_roberta_large" else 0)
    for pid in (0, 8, 14, 18):
        r = config.ranks[pid]
        sent = sum(torch.Size(shape).numel() for shape in method.expected(1, pid).values())
        assert sent == r * sum(m * count for (m, _), count in shapes.items()) + head
    # The adapters themselves, injected into the meta model by PEFT, are float32.
    model._adapter(8)
    trained = [p for n, p in model.module.named_parameters() if ".lora_B.r8." in n]
    assert len(trained) == len(found) and {p.dtype for p in trained} == {torch.float32}


# --- the other data sets ----------------------------------------------------------------------------------------------


def here(*names):
    needs("data", all(data.find("frank-lora", name) is not None for name in names), ", ".join(names))
    return [data.require("frank-lora", name) for name in names]


def test_sst2_is_read_as_published():
    train, dev, test = (read_labelled(p) for p in here("sst2/train.tsv", "sst2/dev.tsv", "sst2/test.tsv"))
    assert [len(x[0]) for x in (train, dev, test)] == [6920, 872, 1821]
    assert set(train[1]) == set(test[1]) == {"0", "1"}
    assert train[0][1] == "apparently reassembled from the cutting room floor of any given daytime soap"


def test_nusax_is_read_as_published_and_gives_one_client_a_language():
    languages = ("english", "indonesian", "javanese", "toba_batak")
    paths = here(*(f"nusax/{name}/train.csv" for name in languages))
    for path in paths:
        texts, labels = read_labelled(path)
        assert len(texts) == 500 and set(labels) == {"negative", "neutral", "positive"}
    needs("backbones", backbones.available("MiniLM"), "the wheel with MiniLM")
    task = TextTask(
        "frank-lora", [f"nusax/{x}/train.csv" for x in languages], [f"nusax/{x}/test.csv" for x in languages],
        num_clients=4, train_size=10_000, test_size=10_000,
    )  # fmt: skip
    assert task.classes == ["negative", "neutral", "positive"]
    held = len(task._texts["validation"][0])
    assert sum(task.num_examples(pid) for pid in range(4)) == 2000 - held and held == 400
    assert all(350 < task.num_examples(pid) < 450 for pid in range(4))
    assert [len(task._own["test"][pid]) for pid in range(4)] == [400] * 4
    mine = {task._texts["train"][0][i] for i in task.parts[2]}
    assert mine <= set(read_labelled(paths[2])[0])


def test_e2e_is_read_as_published():
    dev, test = (read_table(p, "mr", "ref") for p in here("e2e/devset.csv", "e2e/testset_w_refs.csv"))
    assert (len(dev), len({row["mr"] for row in dev})) == (4672, 547)
    assert (len(test), len({row["mr"] for row in test})) == (4693, 630)
    assert not {row["mr"] for row in dev} & {row["mr"] for row in test}


@pytest.mark.slow
def test_a_language_model_learns_e2e_in_a_federation():
    """Two clients, one round: SmolLM2-135M, prompts not counted, no hub."""
    here("e2e/devset.csv", "e2e/testset_w_refs.csv")
    needs("backbones", backbones.available("SmolLM2-135M"), "the wheel with SmolLM2-135M")
    options = {"num_clients": 2, "train_size": 40, "test_size": 4, "max_length": 64}
    config = config_of("e2e_smollm2", **options).replace(ranks=(2, 8), rounds=1, local_steps=2, batch_size=2)
    result = run_federated(config)
    losses = dict(zip(*result.curve("loss"), strict=True))
    assert losses[1] < losses[0]
    grouped_query = 30 * (576 + 192)  # outputs of q and v: three key-value heads only
    assert [result.meter.total("up", client=pid) for pid in (0, 1)] == [4 * r * grouped_query for r in (2, 8)]


# --- a tiny transformer of each kind, made here -----------------------------------------------------------------------


def tiny(folder, kind):
    """A model folder with random weights and a tokenizer without a padding token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    words = ["<unk>", "<end>", *["the", "a", "good", "bad", "film", "is", "was", "name", "area", "cheap"]]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>")
    fast.save_pretrained(folder)
    sizes = {
        "vocab_size": 12,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    torch.manual_seed(0)
    if kind == "roberta":
        config = AutoConfig.for_model("roberta", num_labels=2, max_position_embeddings=64, pad_token_id=1, **sizes)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    else:
        config = AutoConfig.for_model("llama", num_key_value_heads=1, pad_token_id=None, **sizes)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


def dataset(folder, rows):
    path = folder / "rows.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def declared(monkeypatch, path):
    monkeypatch.setattr(data, "require", lambda paper, name: path)


def test_classification_trains_checkpointed_and_a_missing_padding_token_is_logged(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", logger="neurips26.federated")
    rows = ["text,label", *("the good film,1", "a bad film,0", "the film was good,1", "the film is bad,0") * 15]
    declared(monkeypatch, dataset(tmp_path, rows))
    model = tiny(tmp_path / "model", "roberta")
    options = {
        "model": model, "targets": ["query", "value"], "classes": 2, "num_clients": 2, "paper": "x", "train": "a", "test": "b",
        "alpha": None, "checkpointing": True, "device": "cpu",
    }  # fmt: skip
    config = FedConfig(
        method="neurips26.frank_lora.method:FrankLoRA", task="neurips26.shared.federated.hub:ClassificationTask",
        task_options=options, ranks=(2, 4), rounds=3, local_steps=4, batch_size=8, lr=0.05, head_lr=0.02, eval_every=1,
    )  # fmt: skip
    losses = run_federated(config).curve("loss")[1]
    assert losses[-1] < losses[0] and "no padding token" in caplog.text
    with pytest.raises(ValueError, match="classes: expected an integer >= 2"):
        ClassificationTask(**(options | {"classes": 1}))
    with pytest.raises(ValueError, match=r"targets: no linear module of .* is called .'q_proj'. .there are: .*'query'"):
        ClassificationTask(**(options | {"targets": ["q_proj"]})).model()
    with pytest.raises(ValueError, match="paper, dataset: expected one of them"):
        ClassificationTask(**(options | {"dataset": "y"}))


def test_a_label_outside_the_range_is_named(tmp_path, monkeypatch):
    declared(monkeypatch, dataset(tmp_path, ["text,label", *("the film,a", "a film,b", "good,c") * 10]))
    options = {"model": tiny(tmp_path / "model", "roberta"), "targets": ["query"], "num_clients": 1, "paper": "x"}
    task = ClassificationTask(**options, classes=2, train="a", test="b", alpha=None, device="cpu")
    task.model().set_head(task.initial_head(0))
    with pytest.raises(ValueError, match="classes: expected at least 3, the labels of the texts, got 2"):
        task.evaluate(task.model(), "test")


def test_generation_counts_the_answers_tokens_alone(tmp_path, monkeypatch):
    declared(monkeypatch, dataset(tmp_path, ["mr,ref", *("name area,the film is cheap", "area,a good film") * 20]))
    options = {
        "model": tiny(tmp_path / "model", "llama"), "targets": ["q_proj", "v_proj"], "num_clients": 2, "paper": "x",
        "train": "a", "test": "b", "prompt": "{mr} is ", "answer": "{ref}", "alpha": None, "device": "cpu",
    }  # fmt: skip
    task = GenerationTask(**options)
    assert task.model().shapes["model.layers.0.self_attn.v_proj"] == (
        8,
        16,
    )  # grouped queries: one key-value head of two
    with torch.no_grad():
        loss, count, _ = task._forward([("name area is ", "the film is cheap", ""), ("area is ", "a good film", "")])
    assert count == (4 + 1) + (3 + 1)
    ids = torch.tensor([[9, 10, 7, 2, 6, 7, 11, 1]])
    with torch.no_grad():
        alone = task.model().module(input_ids=ids).logits[0].log_softmax(-1)
    expected = -sum(float(alone[2 + i, w]) for i, w in enumerate((2, 6, 7, 11, 1)))
    with torch.no_grad():
        assert float(task._forward([("name area is ", "the film is cheap", "")])[0]) == pytest.approx(
            expected, rel=1e-4
        )
    config = FedConfig(
        method="neurips26.frank_lora.method:FrankLoRA", task="neurips26.shared.federated.hub:GenerationTask",
        task_options=options, ranks=(2, 4), rounds=2, local_steps=4, batch_size=8, lr=0.05, eval_every=1,
    )  # fmt: skip
    losses = run_federated(config).curve("loss")[1]
    assert losses[2] < losses[0]
    with pytest.raises(ValueError, match="label: expected the column"):
        GenerationTask(**(options | {"alpha": 0.5}))
    with pytest.raises(ValueError, match="prompt, answer, label: no column 'text'"):
        GenerationTask(**(options | {"answer": "{text}"})).num_examples(0)


def test_bad_files_are_named(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("a text\t1\nno label\n", encoding="utf-8")
    with pytest.raises(ValueError, match="x.tsv: expected a text, a tab and a label, line 2 has 1 fields"):
        read_labelled(path)
    path.write_bytes(b"bad \xff\t1\n")
    with pytest.raises(ValueError, match="x.tsv: expected UTF-8 text"):
        read_labelled(path)
    path = tmp_path / "x.csv"
    path.write_text("mr,ref\none\n", encoding="utf-8")
    with pytest.raises(ValueError, match="x.csv: expected rows with the columns mr and ref, row 1 lacks"):
        read_table(path, "mr", "ref")
    with pytest.raises(ValueError, match="ranks: expected an integer >= 0"):
        LoraSpec((2, -1))
