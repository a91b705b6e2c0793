"""Pipelines by path, the released experiments, sweeps, the command line, and machines without a hub."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from neurips26.reference_guidance import ReferenceBank, reproduce
from neurips26.reference_guidance.author_runs import afhq, released
from neurips26.reference_guidance.cli import main
from neurips26.reference_guidance.grid import run_grid
from neurips26.reference_guidance.image_metrics import clip_scores
from neurips26.reference_guidance.tiny import save_tiny_klein


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_klein(tmp_path_factory.mktemp("klein"))


@pytest.fixture(scope="module")
def pipe(folder):
    found = reproduce.load_pipeline(str(folder))
    found.set_progress_bar_config(disable=True)
    return found


def test_a_saved_pipeline_takes_prompts(pipe):
    def draw(prompt):
        call = {"height": 32, "width": 32, "num_inference_steps": 2, "generator": torch.Generator().manual_seed(0)}
        return np.asarray(pipe(prompt=prompt, **call).images[0]).astype(int)

    assert np.array_equal(draw("an elephant"), draw("an elephant")) and (draw("an elephant") != draw("a cat")).any()


def test_every_released_experiment_resolves(tmp_path):
    names = released()["experiments"]
    assert len(names) == 19
    for name in names:
        how = released(name)
        assert (
            how["model"].endswith("klein-4B") and how["height"] == 768 and 0 <= how["window"][0] < how["window"][1] <= 1
        )
    assert released("cat-van-gogh")["strength"] == 1.0
    assert released("savanna-giraffe")["window"] == [0.0, 0.95]
    assert (released("hand-horns")["strength"], released("keyhole")["seed"]) == (0.6, 523)
    with pytest.raises(ValueError, match="name: expected one of"):
        released("pink-elephants")


def test_released_experiment_runs_in_small_and_continues(pipe, tmp_path):
    how = {"size": 32, "steps": 3, "references": 2}
    found = reproduce.run_released("pink-elephant", pipe, tmp_path, **how)
    (row,) = found["rows"]
    assert row["settings"]["mode"] == "released" and row["settings"]["strength"] == 0.5
    assert row["distance"] > 0 and row["nearest"] == "a pink elephant"
    for key in ("picture", "base", "nearest picture"):
        assert (tmp_path / row[key]).exists()
    written = (tmp_path / row["picture"]).stat().st_mtime_ns
    assert reproduce.run_released("pink-elephant", pipe, tmp_path, **how) == found
    assert (tmp_path / row["picture"]).stat().st_mtime_ns == written
    assert row["settings"]["seed"] == 130  # theirs is the seed plus 7
    (tmp_path / row["picture"]).unlink()  # what is gone is made again
    assert (
        reproduce.run_released("pink-elephant", pipe, tmp_path, **how) == found and (tmp_path / row["picture"]).exists()
    )
    with pytest.raises(ValueError, match=r"other settings \(seed\)"):
        reproduce.run_released("pink-elephant", pipe, tmp_path, size=32, steps=3, references=2, seed=7)


@pytest.mark.slow
def test_composition_and_prompt_by_reference(pipe, tmp_path):
    rows = reproduce.run_released("composition-object", pipe, tmp_path / "c", size=32, steps=2, references=2)["rows"]
    assert [r["settings"]["references"] for r in rows] == [[2]] * 5 and len({r["picture"] for r in rows}) == 5
    rows = reproduce.run_released("prompt-reference", pipe, tmp_path / "p", size=32, steps=2, references=2)["rows"]
    assert len({r["picture"] for r in rows}) == 4 and len({r["base"] for r in rows}) == 2  # one base a prompt
    assert [r["nearest"] for r in rows] == ["an elephant", "a pink elephant"] * 2


def grid_row(bank, **change):
    row = {"bank": bank, "strength": 1.0, "schedule": "constant", "window": (0.0, 0.95), "topk": 2, "mode": "in_step"}
    row |= {"steps": 2, "guidance_scale": 1.0, "prompt": "a cat", "seed": 0, "height": 32, "width": 32}
    return row | change


def test_the_unguided_picture_is_that_of_the_same_prompt_and_noise(pipe, tmp_path):
    latents = torch.randn(3, 64, 16, generator=torch.Generator().manual_seed(0))
    bank = ReferenceBank.from_latents(latents)
    try:
        run_grid(pipe, grid_row(bank), [{}], tmp_path)
    except ValueError as error:  # the tiny pipeline's own shape
        shape = eval(str(error).split("latents ")[1].split(")")[0] + ")")
        bank = ReferenceBank.from_latents(torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)))
        run_grid(pipe, grid_row(bank), [{}], tmp_path)
    other = grid_row(bank, prompt="an elephant", seed=5)
    (row,) = run_grid(pipe, other, [{"strength": 0.5}], tmp_path)["rows"]
    (alone,) = run_grid(pipe, other, [{"strength": 0.5}], tmp_path / "new")["rows"]
    assert (tmp_path / row["base"]).read_bytes() == (tmp_path / "new" / alone["base"]).read_bytes()
    # another bank with the same names, other weights, another model: never the old picture
    with pytest.raises(ValueError, match=r"other settings \(bank\)"):
        run_grid(pipe, grid_row(ReferenceBank.from_latents(bank.latents + 1)), [{}], tmp_path)
    with pytest.raises(ValueError, match=r"other settings \(bank\)"):
        run_grid(pipe, grid_row(bank.with_weights([1.0, 2.0, 1.0])), [{}], tmp_path)
    with pytest.raises(ValueError, match="other settings"):
        run_grid(pipe, grid_row(bank, call={"prompt": "a dog"}), [{}], tmp_path)
    words = next(pipe.text_encoder.parameters()).data
    words.mul_(-1.3)
    with pytest.raises(ValueError, match=r"other settings \(pipe\)"):  # the text encoder is the model's as well
        run_grid(pipe, other, [{"strength": 0.5}], tmp_path)
    words.div_(-1.3)
    (tmp_path / "strength-0.5.json").write_text("[]")
    with pytest.raises(ValueError, match="strength-0.5.json is damaged; delete it"):
        run_grid(pipe, other, [{"strength": 0.5}], tmp_path)


def test_command_line(folder, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for i in range(3):
        Image.new("RGB", (40, 30), (i * 40, 10, 20)).save(tmp_path / "in" / f"{i}.png")
    bank, mixed = str(tmp_path / "b.safetensors"), str(tmp_path / "m.safetensors")
    where = ["--pipe", str(folder)]
    size = ["--height", "32", "--width", "32"]
    assert main(["bank-build", *where, "--images", str(tmp_path / "in"), "--out", bank, *size]) == 0
    assert main(["bank-info", "--bank", bank]) == 0
    assert main(["bank-mix", "--first", bank, "--second", bank, "--out", mixed]) == 0
    run = ["--bank", mixed, "--prompt", "an elephant", "--steps", "2", "--topk", "2", "--out"]
    assert main(["generate", *where, *run, str(tmp_path / "one")]) == 0
    assert main(["sweep", *where, *run, str(tmp_path / "many"), "--strengths", "0.5", "2", "--sizes", "1", "3"]) == 0
    found = json.loads((tmp_path / "many" / "run.json").read_text())["rows"]
    assert [r["settings"]["references"] for r in found] == [[1], [3], [1], [3]]
    assert all(r["history"] for r in found)
    capsys.readouterr()
    assert main(["released", "pink-elephant"]) == 0
    assert '"strength": 0.5' in capsys.readouterr().out
    assert main(["released", "nothing"]) == 2
    assert "error: name" in capsys.readouterr().err
    assert main(["bank-info", "--bank", str(tmp_path / "absent.safetensors")]) == 2
    assert main(["bank-build", "--pipe", "tiny:flux", "--images", str(tmp_path / "in" / "x"), "--out", bank]) == 2
    small = ["--size", "64", "--steps", "2", "--references", "2", "--out", str(tmp_path), "--rivals"]
    capsys.readouterr()
    assert main(["reproduce", "blue-elephant", *where, *small]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    drawn = {"copy", "words", "latent average", "image conditioning"}
    assert set(row["rivals"]) == drawn | {f"image to image {s}" for s in (0.6, 0.8, 0.95)}


def test_wrong_arguments_are_told_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "img").mkdir()
    Image.new("RGB", (40, 30), (90, 10, 20)).save("img/0.png")
    size = ["--height", "32", "--width", "32"]
    assert main(["bank-build", "--pipe", "tiny:sd3", "--images", "img", "--out", "b.safetensors", *size]) == 0
    ReferenceBank.from_latents(torch.zeros(3, 4, 5)).save("bare.safetensors")
    draw = ["generate", "--pipe", "tiny:sd3", "--out", "o", "--bank"]
    for call, said in (
        (
            ["bank-build", "--pipe", "tiny:sd3", "--images", "img/0.png", "--out", "c.safetensors"],
            "images: expected a folder of images",
        ),
        (["bank-mix", "--first", "b.safetensors", "--second", "bare.safetensors", "--out", "m"], "the same VAE"),
        (["bank-info", "--bank", "img"], "not a safetensors file"),
        (["bank-info", "--bank", "absent"], "bank: no such file: absent"),
        ([*draw, "b.safetensors", "--prompt", "a cat"], "prompt: expected none with 'tiny:sd3'"),
        ([*draw, "b.safetensors", "--guidance-scale", "nan"], "guidance-scale: expected a"),
        ([*draw, "b.safetensors", "--seed", "99999999999999999999999"], "seed: expected an integer"),
        ([*draw, "b.safetensors", "--device", "meta"], "device: expected cpu, cuda"),
        (
            ["generate", "--pipe", "tiny:foo", "--out", "o", "--bank", "b.safetensors"],
            "pipe: expected one of 'tiny:flux2-klein'",
        ),
        (["sweep", *draw[1:], "b.safetensors", "--sizes", "20"], "sizes: expected an integer >= 0 and <= 1, got 20"),
        (["sweep", *draw[1:], "b.safetensors", "--strengths"], "strengths: expected at least one, got none"),
        ([*draw, "bare.safetensors"], "bank: bare.safetensors does not know the size"),
        ([*draw, "b.safetensors", "--steps", "0"], "steps: expected an integer >= 1, got 0"),
        ([*draw, "b.safetensors", "--device", "tpu"], "device: expected cpu, cuda"),
        (["sweep", *draw[1:], "b.safetensors", "--sizes", "-1"], "sizes: expected an integer >= 0 and <= 1, got -1"),
        (["reproduce", "pink-elephant", "--pipe", "tiny:sd3"], "pipe: expected one that takes prompts"),
        (["spg-train", "--out", "t", "--steps", "0"], "steps: expected an integer >= 1, got 0"),
        (["spg-sample", "--model", "none", "--bank", "b.safetensors", "--out", "x"], "model: expected a folder"),
    ):
        capsys.readouterr()
        assert main(call) == 2
        error = capsys.readouterr().err
        assert said in error and error.startswith("error: ") and error.count("\n") == 1


def test_spg_verbs_train_continue_sample_and_measure(tmp_path, capsys):
    small = ["--patch", "4", "--dim", "16", "--depth", "1", "--heads", "1", "--anchor-heads", "1", "--batch", "4"]
    train = ["spg-train", "--out", str(tmp_path / "t"), *small, "--bank", "8", "--every", "2"]
    assert main([*train, "--steps", "2"]) == 0
    assert main([*train, "--steps", "3"]) == 0
    assert '"steps": 3' in capsys.readouterr().out
    from neurips26.reference_guidance.toys import digits

    refs = str(ReferenceBank.from_latents(digits().images[:40]).save(tmp_path / "refs.safetensors"))
    draw = [
        "--model",
        str(tmp_path / "t" / "model"),
        "--bank",
        refs,
        "--steps",
        "2",
        "--out",
        str(tmp_path / "x.safetensors"),
    ]
    assert main(["spg-sample", *draw, "--n", "3"]) == 0
    assert ReferenceBank.load(tmp_path / "x.safetensors").latents.shape == (3, 1, 8, 8)
    capsys.readouterr()
    assert main(["spg-eval", *draw, "--n", "40"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"frechet", "kernel", "nearest"}
    # the baseline is drawn and measured in the same way; what neither wrote is named in one line
    assert main(["spg-train", "--model", "dit", "--out", str(tmp_path / "d"), *small, "--steps", "1"]) == 0
    dit = ["--model", str(tmp_path / "d/model"), *draw[2:]]
    assert main(["spg-eval", *dit, "--n", "4"]) == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text('{"_class_name": "AutoencoderKL"}')
    for call, said in (
        (["spg-sample", "--model", str(tmp_path / "other"), *draw[2:]], "spg-train wrote, got"),
        (["spg-sample", *draw, "--steps", "0"], "steps: expected an integer >= 1, got 0"),
        (["spg-eval", *draw, "--n", "1"], "n: expected an integer >= 2, got 1"),
        ([*train, "--steps", "3", "--dim", "32"], "dim 16 (asked 32)"),
        ([*train, "--steps", "3", "--model", "dit"], "model SPG (asked DiTMean)"),
        ([*train, "--steps", "3", "--depth", "-1"], "depth: expected an integer >= 1, got -1"),
        (["spg-train", "--out", str(tmp_path / "one"), *small, "--bank", "1"], "bank: expected 0 or at least 2"),
    ):
        capsys.readouterr()
        assert main(call) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1
    assert main(["demo", "moons", "--out", str(tmp_path)]) == 0 and (tmp_path / "moons.png").exists()


def test_without_a_hub_the_error_is_clear(tmp_path, monkeypatch, capsys):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "in").mkdir()
    where = ["--images", str(tmp_path / "in"), "--out", str(tmp_path / "b.safetensors")]
    assert main(["bank-build", "--pipe", "nobody/no-such-model", *where]) == 2
    said = capsys.readouterr().err
    assert "error: pipe: cannot load 'nobody/no-such-model'" in said and "hub" in said
    assert main(["bank-build", "--pipe", str(tmp_path / "in"), *where]) == 2  # a folder that holds no pipeline
    assert "model_index.json" in capsys.readouterr().err


class MeanMetricOfPairs:
    """In the place of LPIPS: the mean distance of pixels."""

    def __init__(self):
        self.values = []

    def update(self, left, right):
        self.values.append((left - right).abs().mean())

    def compute(self):
        return torch.stack(self.values).mean()


def test_afhq_runs_in_small_and_goes_on(tmp_path, capsys, monkeypatch):
    from neurips26.reference_guidance import image_metrics
    from neurips26.reference_guidance.tiny import tiny_pipeline

    assert afhq()["experiments"] == ["afhq-balance", "afhq-dit", "afhq-set-size", "afhq-spg"]
    assert (afhq("afhq-dit")["lr"], afhq("afhq-spg")["sets"]["cat"]) == (1e-4, ["cat"])
    tiny_pipeline("sd3").vae.save_pretrained(tmp_path / "vae")
    for i, species in enumerate(("cat", "dog")):
        (tmp_path / "in" / species).mkdir(parents=True)
        for j in range(3):
            Image.new("RGB", (40, 30), (i * 200, j * 90, 20)).save(tmp_path / "in" / species / f"{j}.png")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    small = ["--pipe", str(tmp_path / "vae"), "--images", str(tmp_path / "in"), "--out", str(tmp_path), "--size", "16"]
    small += ["--steps", "2", "--samples", "3", "--batch", "2", "--dim", "96", "--depth", "1"]
    for name in ("afhq-spg", "afhq-dit", "afhq-balance"):
        assert main(["reproduce", name, *small]) == 0
        found = json.loads(capsys.readouterr().out)
    assert set(found["folders"]) == {"photographs", "cats-1", "cats-0.5", "cats-0"}
    assert set(found["measures"].pop("not measured")) == {"FID and KID", "LPIPS diversity"}
    assert found["measures"] == {"cats-1": {}, "cats-0.5": {}, "cats-0": {}}
    assert set(found["nearest"]["cats-0"]) == {"latents", "pixels"}
    assert (tmp_path / "afhq" / "spg" / "nearest-cats-0.png").exists()
    made = {
        k: sorted((tmp_path / "afhq" / k).iterdir()) for k in ("spg/pictures-cat", "dit/pictures-both", "photographs")
    }
    assert [len(v) for v in made.values()] == [3, 3, 6] and np.asarray(Image.open(made["photographs"][0])).shape == (
        16,
        16,
        3,
    )
    cats = ReferenceBank.load(tmp_path / "afhq" / "cat.safetensors")
    assert cats.latents.shape == (3, 4, 8, 8) and cats.fingerprint["scaling"] == "0.3099"
    written = made["photographs"][0].stat().st_mtime_ns
    # with networks at hand (stand-ins here), everything is measured on the pictures that are there
    monkeypatch.setattr(image_metrics, "_inception", lambda device, download: lambda x: x.mean((2, 3)))
    monkeypatch.setattr(image_metrics, "_lpips", lambda device, download: MeanMetricOfPairs())
    assert main(["reproduce", "afhq-spg", *small]) == 0
    found = json.loads(capsys.readouterr().out)
    for label in ("both", "cat", "dog"):
        assert set(found["measures"][label]) == {"FID", "KID", "LPIPS diversity", "pairs"}
        assert set(found["nearest"][label]) == {"latents", "pixels", "Inception features"}
    assert found == {
        k: v for k, v in json.loads((tmp_path / "afhq" / "afhq-spg.json").read_text()).items() if k != "settings"
    }
    assert made["photographs"][0].stat().st_mtime_ns == written
    assert main(["reproduce", "afhq-spg", *small[:-1], "2"]) == 2
    assert "other settings" in capsys.readouterr().err
    assert main(["reproduce", "afhq-spg", "--pipe", str(tmp_path / "vae")]) == 2
    assert "images: expected the folder" in capsys.readouterr().err


def test_clip_scores_are_cosines():
    from transformers import CLIPConfig, CLIPModel

    text = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 9}
    vision = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 32,
    }
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=4)).eval()

    class Inputs(dict):
        def to(self, device):
            return self

    def processor(text, images, **_):
        pixels = torch.stack([torch.full((3, 32, 32), float(i)) for i in range(len(images))])
        return Inputs(input_ids=torch.tensor([[0, 3, 8]]), pixel_values=pixels, attention_mask=torch.ones(1, 3).long())

    scores = clip_scores([Image.new("RGB", (4, 4))] * 20, "a cat", model, processor)
    assert len(scores) == 20 and all(-1.001 <= s <= 1.001 for s in scores)
    assert scores[0] == pytest.approx(scores[16], abs=1e-6)  # batches of 16 start anew


def test_missing_photographs_are_told_in_the_record(tmp_path, monkeypatch):
    from neurips26.reference_guidance import claims, gpu_check
    from neurips26.shared.context import Context

    monkeypatch.setattr(gpu_check, "full_scale", gpu_check.rehearsal)
    monkeypatch.setattr(Context, "data", lambda self, name: None)
    ctx = Context("reference-guidance", "gpu", "gpu-spg-parity", tmp_path)
    found = claims.gpu_spg_parity(ctx)
    assert [d.kind for d in found.data] == ["generated"] and ctx.notes == [gpu_check.NO_PHOTOGRAPHS]


def test_pictures_keep_square_pixels(tmp_path):
    from neurips26.reference_guidance.pictures import contact_sheet

    red = torch.tensor([1.0, -1.0, -1.0]).reshape(1, 3, 1, 1).expand(7, 3, 8, 8)
    contact_sheet(tmp_path / "p.png", [("red", red), ("white", torch.ones(7, 3, 8, 8))], "two rows")
    pixels = np.asarray(Image.open(tmp_path / "p.png").convert("RGB")).astype(int)
    rows, columns = ((pixels[..., 0] > 200) & (pixels[..., 1] < 60)).nonzero()
    wide, high = np.ptp(columns) + 1, np.ptp(rows) + 1
    assert wide / high == pytest.approx((7 * 10 - 2) / 8, rel=0.05)  # tiles of 8 with a gap of 2


def test_gpu_check_rehearses_on_a_cpu():
    from neurips26.reference_guidance import gpu_check

    found = {name: step(gpu_check.rehearsal(), None) for name, step in gpu_check.STEPS.items()}
    assert set(found["guidance-overhead"]) == {"3", "5"} and len(found["guidance-overhead"]["3"]) == 2
    assert found["spg-parity"]["SPG loss"] > 0 and found["spg-parity"]["DiT steps a second"] > 0
