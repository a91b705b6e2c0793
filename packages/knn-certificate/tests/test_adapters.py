"""Models of other libraries, tiny and made here: Hugging Face classifiers and Trainer, Lightning, torchvision folders, timm."""

import csv

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from neurips26.knn_certificate import (
    Certificate,
    certify,
    cli,
    extract_features,
    lightning_train_fn,
    trainer_train_fn,
    verify,
)
from neurips26.knn_certificate.frozen import embed, read_items

WORDS = {
    0: ["card", "payment", "lost", "transfer", "fee", "bank"],
    1: ["rain", "sun", "wind", "cloud", "storm", "snow"],
    2: ["goal", "match", "team", "coach", "league", "ball"],
}


def sentences(n, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    return [" ".join(rng.choice(WORDS[c], int(rng.integers(6, 11)))) for c in y], y


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(w for words in WORDS.values() for w in words)]
    file = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    file.write_text("\n".join(vocabulary))
    return transformers.BertTokenizer(str(file))


def bert_config(transformers):
    return transformers.BertConfig(
        vocab_size=23, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2,
    )  # fmt: skip


class Texts(Dataset):
    def __init__(self, n, seed=0):
        self.text, self.y = sentences(n, seed)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"text": self.text[i], "labels": int(self.y[i])}


@pytest.fixture
def collate(tokenizer):
    def together(rows):
        batch = tokenizer([r["text"] for r in rows], padding=True, return_tensors="pt")  # a BatchEncoding
        batch["labels"] = torch.tensor([r["labels"] for r in rows])
        return batch

    return together


def test_text_classifier_and_its_trainer(tokenizer, collate, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    def make(subset, seed):
        settings = transformers.TrainingArguments(
            output_dir=str(tmp_path), seed=seed, per_device_train_batch_size=50, num_train_epochs=6, learning_rate=1e-2,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True,
            remove_unused_columns=False,
        )  # fmt: skip
        model = transformers.BertForSequenceClassification(bert_config(transformers))
        return transformers.Trainer(model=model, args=settings, train_dataset=subset, data_collator=collate)

    data, train_fn = Texts(600), trainer_train_fn(make)
    model = train_fn(data, 0)
    c = certify(
        model,
        DataLoader(data, 100, collate_fn=collate),
        unlabeled_loader=DataLoader(Texts(150, seed=1), 100, collate_fn=collate),
        train_fn=train_fn,
        k=3,
    )
    assert verify(c) == [] and c.rigorous and c.bound < 0.2 and c.n_train == 480, c.summary()
    with pytest.raises(ValueError, match=r"^make: expected a trainer over the subset's 600 points, got one of 10"):
        trainer_train_fn(lambda subset, seed: make(Texts(10), seed))(data, 0)


def test_heads_of_decoders_are_read_at_their_last_token(tokenizer, collate):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=23, n_embd=16, n_layer=1, n_head=2, n_positions=16, num_labels=3, pad_token_id=0
    )
    model = transformers.GPT2ForSequenceClassification(config).eval()
    data = Texts(40)
    got = extract_features(model, DataLoader(data, 8, collate_fn=collate))
    assert got.features.shape == (40, 16) and got.n_outputs == 3
    with torch.no_grad():
        logits = model.score(torch.from_numpy(got.features))
    assert (logits.argmax(1).numpy() == got.predictions).all()


def test_image_classifier():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4,
        num_channels=1, num_labels=10,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    digits = load_digits()
    rows = [
        {"pixel_values": torch.tensor(i[None] / 16.0).float(), "label": int(t)}
        for i, t in zip(digits.images, digits.target)
    ]
    c = certify(
        model, DataLoader(rows[:400], 100), unlabeled_loader=DataLoader(rows[400:500], 50), representation="frozen", k=5
    )
    assert c.mode == "loo" and c.n_classes == 10 and verify(c) == []
    assert "of a logistic head on these features" in c.summary()


def test_lightning():
    lightning = pytest.importorskip("pytorch_lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, number):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-2)

    def make():
        quiet = {
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        return Module(), lightning.Trainer(max_epochs=5, accelerator="cpu", **quiet)

    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data[:900] / 16).float(), torch.tensor(digits.target[:900]))
    train_fn = lightning_train_fn(make)
    c = certify(train_fn(data, 0), DataLoader(data, 64), train_fn=train_fn, k=3, check_train_fn=True)
    assert verify(c) == [] and c.bound < 0.4
    with pytest.raises(ValueError, match="^make: expected a pair of module and trainer, got Module"):
        lightning_train_fn(Module)(data, 0)


# A folder of pictures, and the command line.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    Image = pytest.importorskip("PIL.Image")
    root, digits = tmp_path_factory.mktemp("pictures"), load_digits()
    for i in range(260):
        part = root / ("train" if i < 200 else "pool") / (f"digit {digits.target[i] % 3}" if i < 200 else "unknown")
        part.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[i] * 15).astype(np.uint8)).save(part / f"{i:03d}.png")
    return root


def test_folder_of_torchvision(folder):
    torchvision = pytest.importorskip("torchvision")

    data = torchvision.datasets.ImageFolder(folder / "train", torchvision.transforms.ToTensor())
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
    c = certify(model, DataLoader(data, 32, shuffle=True), representation="frozen", k=3)
    assert c.n_classes == 3 and c.geometry.n == 200 and verify(c) == []


def test_command_line_on_pictures(folder, tmp_path, capsys):
    timm, safetensors = pytest.importorskip("timm"), pytest.importorskip("safetensors.torch")
    torch.manual_seed(0)
    weights, out = tmp_path / "weights.safetensors", tmp_path / "c.json"
    safetensors.save_file(timm.create_model("test_resnet", pretrained=False).state_dict(), weights)
    arguments = ["--model", "timm:test_resnet", "--weights", str(weights), "--data", str(folder / "train")]
    assert cli.main(["certify", *arguments, "--unlabeled", str(folder / "pool"), "--frozen", "--out", str(out)]) == 0
    assert "plain hold-out" in capsys.readouterr().out
    c = Certificate.from_json(out.read_text())
    assert c.stability.n == 60 and {r["class"] for r in c.details["classes"]} == {"digit 0", "digit 1", "digit 2"}


def test_command_line_on_sentences(tokenizer, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    transformers.BertModel(bert_config(transformers)).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    with open(tmp_path / "train.csv", "w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["text", "label"])
        table.writerows(zip(*sentences(600)))
    assert (
        cli.main(
            ["certify", "--model", f"hf:{tmp_path / 'encoder'}", "--frozen", "--data", str(tmp_path / "train.csv")]
        )
        == 0
    )
    assert "3 classes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: read_items(p / "nowhere"), "^data: expected a folder of images or a CSV file, got"),
        (read_items, "^data: expected images .* got none"),
        (lambda p: read_items(p / "a.csv"), "^data: expected columns text, label in a.csv, got text, kind"),
        (lambda p: embed("resnet18", ["a"]), "^model: expected timm:NAME or hf:NAME, got 'resnet18'"),
        (
            lambda p: embed("timm:resnet18", ["a"]),
            "^data: expected a folder of images for timm:resnet18, got sentences",
        ),
        (lambda p: embed("hf:x", ["a"], weights="w"), "^weights: expected none beside hf:x"),
        (lambda p: embed(f"hf:{p}", ["a"]), "^model: expected weights that hf finds, got hf:"),
        (
            lambda p: embed("timm:resnet17", [p / "a.png"]),
            "^model: expected weights that timm finds, got timm:resnet17",
        ),
        (lambda p: cli.main(["certify", str(p / "no.npz")]), "no.npz: expected an .npz file, got none of that name"),
        (lambda p: cli.main(["certify", str(p / "a.csv")]), "^a.csv: expected an .npz file, got something else"),
        (lambda p: cli.main(["verify", str(p / "no.json")]), "no.json: expected a JSON certificate, got no file"),
        (lambda p: cli.main(["certify", "--model", "hf:x"]), "^data: expected --data and no .npz file"),
        (lambda p: cli.main(["certify"]), "^features: expected an .npz file, or --model with --data"),
    ],
)
def test_one_clear_error(tmp_path, call, message):
    for library in ("timm", "transformers"):
        pytest.importorskip(library)
    (tmp_path / "a.csv").write_text("text,kind\nhello,b\n")
    with pytest.raises(ValueError, match=message):
        call(tmp_path)


def test_pictures_beside_class_folders_and_broken_files(folder, tmp_path):
    (tmp_path / "loose.png").write_bytes((next((folder / "pool").rglob("*.png"))).read_bytes())
    with pytest.raises(ValueError, match="^data: expected one folder a class under .*, got loose.png beside them"):
        read_items(tmp_path)
    pytest.importorskip("timm")
    (tmp_path / "loose.png").write_bytes(b"not a picture")
    from neurips26.knn_certificate.frozen import _open

    with pytest.raises(ValueError, match="^data: expected an image, got .*loose.png"):
        _open([tmp_path / "loose.png"])
