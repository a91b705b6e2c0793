import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from neurips26.reference_guidance import (
    BankCorruptError,
    BankMismatchError,
    EmptyBankError,
    ExtrapolationWarning,
    ImageError,
    ReferenceBank,
    ReferenceMeanGuidance,
    UnknownLayoutError,
)
from neurips26.reference_guidance.images import fit_image, open_image
from neurips26.reference_guidance.layouts import layout_for
from neurips26.reference_guidance.tiny import tiny_pipeline


def bank(m=4, seed=0, **fields):
    return ReferenceBank.from_latents(torch.randn(m, 3, 2, generator=torch.Generator().manual_seed(seed)), **fields)


def test_round_trip(tmp_path):
    one = bank(labels=["a", "b", "a", "c"], weights=torch.tensor([1.0, 2, 3, 4]), provenance={"x": 1})
    two = ReferenceBank.load(one.save(tmp_path / "b.safetensors"))
    assert torch.equal(one.latents, two.latents) and two.labels == one.labels and two.provenance == {"x": 1}
    torch.testing.assert_close(two.weights, torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64))


def test_half_written_and_altered_files(tmp_path):
    path = bank().save(tmp_path / "b.safetensors")
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.raises(BankCorruptError, match="truncated"):
        ReferenceBank.load(path)
    head = 8 + int.from_bytes(whole[:8], "little")
    flipped = bytearray(whole)
    for i in range(head, len(flipped)):
        flipped[i] ^= 1
    path.write_bytes(bytes(flipped))
    with pytest.raises((BankCorruptError, ValueError)):
        ReferenceBank.load(path)
    path.write_text("not a bank")
    with pytest.raises(BankCorruptError):
        ReferenceBank.load(path)


def test_mix_subset_concat():
    a, b = bank(seed=1, labels=["a"] * 4), bank(seed=2, labels=["b"] * 4)
    for fraction, ones in ((0.0, 0), (0.25, 1), (0.5, 2), (1.0, 4)):
        mixed = a.mix(b, fraction)
        assert mixed.labels.count("b") == ones and len(mixed) == 4
    assert torch.equal(a.concat(b).subset("b").latents, b.latents)
    weighted = a.with_weights([1.0, 0.0, 0.0, 1.0]).concat(b)
    torch.testing.assert_close(weighted.weights.sum(), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(weighted.weights[0] / weighted.weights[4], torch.tensor(2.0, dtype=torch.float64))
    index, distance = a.nearest(a.latents + 0.01)
    assert index.tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(distance, torch.full((4,), 0.01, dtype=torch.float64), rtol=1e-3, atol=1e-6)


def test_bad_banks():
    with pytest.raises(EmptyBankError):
        ReferenceBank.from_latents(torch.zeros(0, 3))
    with pytest.raises(EmptyBankError):
        bank().subset("missing")
    with pytest.raises(ValueError, match=r"got nan in reference 1 .* at \(0, 1\)"):
        x = torch.zeros(2, 3, 2)
        x[1, 0, 1] = float("nan")
        ReferenceBank.from_latents(x, names=["p.png", "q.png"])
    with pytest.raises(ValueError, match="weights"):
        bank().with_weights([1.0, -1.0, 1.0, 1.0])
    with pytest.raises(BankMismatchError):
        bank().concat(ReferenceBank.from_latents(torch.zeros(2, 5)))
    with pytest.raises(ValueError, match="fraction"):
        bank().mix(bank(), 1.5)


def test_bad_guidance():
    for wrong, name in (
        ({"strength": float("nan")}, "strength"),
        ({"window": (0.9, 0.1)}, "window: expected start <= end"), ({"topk": 0}, "topk"),
        ({"schedule": "belll"}, "did you mean 'bell'"), ({"metric": "cosine"}, "metric"), ({"time": "steps"}, "time"),
        ({"temperature": 0.0}, "temperature"), ({"mode": "x"}, "mode"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=name):
            ReferenceMeanGuidance(bank(), **wrong)
    for wrong, said in (
        ({"chunk": 0}, "chunk: expected an integer >= 1, got 0"), ({"region": torch.tensor([0.5, 2.0])}, "region: expected"),
        ({"region": torch.tensor([0.5, float("nan")])}, "region: expected weights in"),
        ({"bank": []}, "bank: expected a bank, or one a sample, got an empty list"),
        ({"region": torch.ones(2), "mode": "released"}, "region: expected none with mode 'released'"),
        ({"region": torch.ones(0)}, "region: expected weights in"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            ReferenceMeanGuidance(**{"bank": bank()} | wrong)
    with pytest.warns(UserWarning, match="topk: 99 is more than the 4"):
        assert ReferenceMeanGuidance(bank(), topk=99).topk == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ReferenceMeanGuidance(bank(2)).topk == 2  # the default asks for no more than there is


@pytest.mark.bad_input
def test_guidance_of_the_wrong_kind():
    for wrong, said in (
        ({"bank": "cats"}, "bank: expected a ReferenceBank or a list of them, got str"),
        ({"bank": torch.zeros(2, 3)}, "bank: expected a ReferenceBank or a list of them, got Tensor"),
        ({"bank": [torch.zeros(2, 3)]}, "got a list with Tensor"), ({"schedule": 3.0}, "schedule: expected a name or"),
        ({"strength": "0.5"}, "strength: expected a number, got '0.5'"), ({"topk": 2.5}, "topk: expected an integer"),
        ({"region": [1.0]}, "region: expected a tensor of weights, got list"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=said):
            ReferenceMeanGuidance(**{"bank": bank()} | wrong)
    for window in ((0.5,), None, 0.5):
        with pytest.raises(ValueError, match="window: expected two step fractions"):
            ReferenceMeanGuidance(bank(), window=window)


def test_extrapolation_is_allowed_with_a_note():
    with pytest.warns(ExtrapolationWarning, match=r"strength: 2 lets beta exceed 1 \(quadratic schedule\)"):
        g = ReferenceMeanGuidance(bank(), strength=2.0)
    with pytest.warns(ExtrapolationWarning, match="strength: -0.5 is negative"):
        ReferenceMeanGuidance(bank(), strength=-0.5)
    assert g.strength == 2.0 and g.settings()["note"].startswith("strength: 2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "note" not in ReferenceMeanGuidance(bank(), strength=1.0).settings()
    g = ReferenceMeanGuidance(bank(), strength=1.0, schedule=lambda t: 3 * t)
    assert g.active(1, 5, 0.8) == pytest.approx(0.6)
    with pytest.warns(ExtrapolationWarning, match=r"schedule: beta reached 1\.8"):
        assert g.active(2, 5, 0.4) == pytest.approx(1.8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        g.active(3, 5, 0.2)  # said once
    assert "1.8" in g.settings()["note"]


def test_every_kind_of_image(tmp_path):
    grey = Image.new("L", (8, 6), 100)
    assert open_image(grey).getpixel((0, 0)) == (100, 100, 100)
    assert open_image(Image.new("RGBA", (8, 6), (200, 0, 0, 0))).getpixel((0, 0)) == (0, 0, 0)
    assert open_image(Image.new("CMYK", (8, 6), (0, 0, 0, 0))).getpixel((0, 0)) == (255, 255, 255)
    deep = Image.fromarray(np.full((6, 8), 257 * 77, dtype=np.uint16))
    assert open_image(deep).getpixel((0, 0)) == (77, 77, 77)
    rotated = Image.new("RGB", (8, 6))
    exif = rotated.getexif()
    exif[0x0112] = 6
    rotated.save(tmp_path / "r.jpg", exif=exif)
    assert open_image(tmp_path / "r.jpg").size == (6, 8)
    fitted = np.asarray(fit_image(Image.new("RGB", (10, 10), (255, 255, 255)), 10, 20, "contain"))
    assert fitted[:, :5].max() == 0 and fitted[:, 5:15].min() == 255
    floats = np.full((6, 8), 0.4, dtype=np.float32)
    Image.fromarray(floats).save(tmp_path / "f.tiff")
    assert open_image(tmp_path / "f.tiff").getpixel((0, 0)) == (102, 102, 102)
    for wrong, said in (
        (np.full((4, 4, 3), 120.0), "pixels in .0, 1., got 120 to 120"), (np.full((4, 4), -0.5), "got -0.5 to -0.5"),
    ):  # fmt: skip
        with pytest.raises(ImageError, match=said):
            open_image(wrong)
    assert open_image(Image.fromarray(np.full((4, 4), 200, dtype=np.int32))).getpixel((0, 0)) == (200, 200, 200)
    assert open_image(Image.fromarray(np.full((4, 4), 257 * 9, dtype=np.int32))).getpixel((0, 0)) == (9, 9, 9)
    with pytest.raises(ImageError, match="8 or 16 bits, got 70000 to 70000"):
        open_image(Image.fromarray(np.full((4, 4), 70_000, dtype=np.int32)))
    floats[2, 5] = np.inf
    Image.fromarray(floats).save(tmp_path / "g.tiff")
    with pytest.raises(ImageError, match=r"images\[3\]: cannot read .*g\.tiff .*got inf at \(2, 5\)"):
        open_image(tmp_path / "g.tiff", "images[3]")
    with pytest.raises(ImageError, match=r"got nan at \(1, 2, 0\)"):
        x = np.zeros((4, 4, 3))
        x[1, 2, 0] = np.nan
        open_image(x)


def test_unreadable_images_and_resuming(tmp_path):
    pipe = tiny_pipeline("sd3")
    for i in range(6):
        Image.new("RGB", (40, 30), (i * 40, 10, 20)).save(tmp_path / f"{i}.png")
    (tmp_path / "6.png").write_bytes(b"nothing")
    with pytest.raises(ImageError, match=r"6\.png"):
        ReferenceBank.from_images(pipe, tmp_path, 32, 32)
    made = ReferenceBank.from_images(pipe, tmp_path, 33, 47, on_error="skip", cache=tmp_path / "parts")
    assert len(made) == 6 and len(made.provenance["skipped"]) == 1 and made.size == (32, 44)
    parts = sorted((tmp_path / "parts").iterdir())
    assert len(parts) == 2
    parts[0].unlink()  # as if interrupted there
    encode, seen = pipe.vae.encode, []
    pipe.vae.encode = lambda x: (seen.append(len(x)), encode(x))[1]
    again = ReferenceBank.from_images(pipe, tmp_path, 33, 47, on_error="skip", cache=tmp_path / "parts")
    assert len(seen) == 1 and torch.equal(again.latents, made.latents)
    with pytest.raises(EmptyBankError):
        ReferenceBank.from_images(pipe, [], 32, 32)


def test_latents_of_the_wrong_kind_are_refused():
    for x in (torch.zeros(1, 3, 2, dtype=torch.complex64), torch.zeros(1, 3, 2, dtype=torch.int64)):
        with pytest.raises(BankMismatchError, match="expected latents of floats"):
            bank().check_latents(x)
    with pytest.raises(BankMismatchError, match="on meta"):
        ReferenceBank(torch.zeros(2, 3, 2, device="meta")).check_latents(torch.zeros(1, 3, 2))
    for shape in ((1, 3, 3), (1, 1, 2), (1, 2)):  # shapes that torch would broadcast, too
        with pytest.raises(BankMismatchError, match="references have shape"):
            bank().check_latents(torch.zeros(shape))
    with pytest.raises(ValueError, match="latents: expected floats"):
        ReferenceBank(torch.zeros(2, 3, 2, dtype=torch.int64))
    half = ReferenceBank.from_latents(bank().latents.half())  # another precision is not another space
    half.check_latents(torch.zeros(1, 3, 2))
    assert half.ready().dtype == torch.float64 and half.ready().data_ptr() == half.ready().data_ptr()


def test_a_large_bank_keeps_no_copy(monkeypatch):
    from neurips26.reference_guidance import bank as module

    monkeypatch.setattr(module, "_READY", 23)
    assert (one := bank()).ready() is one.latents  # 24 numbers


def test_a_bank_is_frozen_and_its_numbers_are_finite():
    import dataclasses

    one = bank()
    one.ready()
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.latents = one.latents * 5
    assert one.digest != one.with_weights([1.0, 1.0, 1.0, 2.0]).digest != bank(seed=1).digest
    assert one.digest == bank().digest
    broken = one.latents.clone()
    broken[2, 1, 0] = torch.nan
    with pytest.raises(ValueError, match=r"got nan in reference 2 \(2\) at \(1, 0\)"):
        ReferenceMeanGuidance(ReferenceBank(broken), topk=2).mean(torch.zeros(1, 3, 2), 0.5)


def test_unknown_pipeline():
    with pytest.raises(UnknownLayoutError, match="Flux2KleinPipeline"):
        layout_for(object())


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads Linux's account of memory")
def test_a_mapped_bank_is_never_loaded(tmp_path):
    """Opening, the reference mean and the copy check of a bank of 96 MiB, in a process that watches its own memory."""
    path = tmp_path / "b.safetensors"
    save_file_of(path, 192, 64, 2048)
    code = """
import sys, threading, time, torch
from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance import bank as module
from neurips26.reference_guidance.posterior import reference_mean
module._NEAREST_BLOCK = 1 << 20
def anonymous():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon")) / 1024
x = torch.randn(1, 64, 2048)
reference_mean(x, x.repeat(3, 1, 1), 0.5)
before, peak, stop = anonymous(), 0.0, False
def watch():
    global peak
    while not stop:
        peak = max(peak, anonymous())
        time.sleep(0.001)
thread = threading.Thread(target=watch); thread.start()
bank = ReferenceBank.load(sys.argv[1])
reference_mean(x, bank.latents, 0.5, chunk=4)
reference_mean(x, bank.latents, 0.5, chunk=4, topk=2)
bank.nearest(x)
stop = True; thread.join()
print(peak - before)
"""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144"}
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, env=env, check=True)
    assert float(done.stdout) < 48, done.stdout  # half the bank; a chunk is 4 MiB in float64, with a few copies


def save_file_of(path, *shape):
    ReferenceBank.from_latents(torch.randn(*shape)).save(path)


def test_nearest_is_the_same_in_blocks(monkeypatch):
    from neurips26.reference_guidance import bank as module

    one, x = bank(9), torch.randn(5, 3, 2)
    whole = one.nearest(x)
    monkeypatch.setattr(module, "_NEAREST_BLOCK", 12)
    blocks = one.nearest(x)
    assert torch.equal(whole[0], blocks[0]) and torch.equal(whole[1], blocks[1])


def test_banks_of_another_grid_are_not_mixed():
    wide = bank(grid=(1, 3), size=(2, 6))
    tall = bank(grid=(3, 1), size=(6, 2))
    for join in (wide.concat, lambda other: wide.mix(other, 0.5)):
        with pytest.raises(
            BankMismatchError, match=r"other: expected a bank with the latent grid \(1, 3\), got \(3, 1\)"
        ):
            join(tall)
    wide.check_size(2, 6)
    with pytest.raises(BankMismatchError, match="made for pictures of 2x6 .height x width., asked for 6x2"):
        wide.check_size(6, 2)


def test_a_share_that_rounds_to_none_is_told():
    with pytest.warns(UserWarning, match="fraction: 0.05 of 4 references rounds to none of other"):
        assert len(bank().mix(bank(seed=1), 0.05)) == 4
    with pytest.warns(UserWarning, match="fraction: 0.95 of 4 references rounds to none of self"):
        bank().mix(bank(seed=1), 0.95)


@pytest.mark.bad_input
def test_what_to_keep_is_checked():
    one = bank(labels=["a", "b", "a", "c"])
    for keep, said in (
        ([True, False, True], "keep: expected 4 booleans, one a reference, got .3,."), ([0.9, 1.9], "keep: expected indices"),
        ([4], "keep: expected indices of 4 references, got .4."), (torch.zeros(1, 1, dtype=torch.long), "keep: expected"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            one.subset(keep)
    with pytest.raises(EmptyBankError, match=r"keep: expected one of the labels \['a', 'b', 'c'\], got 'z'"):
        one.subset("z")
    with pytest.raises(EmptyBankError, match="at least one reference to be left"):
        one.subset([])
    assert one.subset([-1]).labels == ["c"]


@pytest.mark.bad_input
def test_what_a_bank_is_made_of_is_checked(tmp_path):
    x = bank().latents
    listed = ReferenceBank.from_latents(
        x, weights=[1.0, 2.0, 3.0, 4.0], labels=np.array([1, 1, 2, 2]), names=[tmp_path] * 4
    )
    assert ReferenceBank.load(listed.save(tmp_path / "b.safetensors")).labels == ["1", "1", "2", "2"]
    assert len(listed.subset("1")) == 2
    with pytest.raises(TypeError, match="labels: expected a list of texts, one a reference, got one string"):
        ReferenceBank.from_latents(x, labels="abcd")
    with pytest.raises(TypeError, match="other: expected a ReferenceBank, got dict"):
        listed.concat({})
    with pytest.raises(TypeError, match="latents: expected a tensor"):
        ReferenceBank([[1.0]])
    with pytest.raises(IsADirectoryError, match="bank: expected a file to write, got the folder"):
        listed.save(tmp_path)
    with pytest.raises(BankCorruptError, match="a folder, not a safetensors file"):
        ReferenceBank.load(tmp_path)
    with pytest.raises(ValueError, match="x: expected finite numbers, got nan"):
        listed.nearest(torch.full((1, 3, 2), float("nan")))
    with pytest.raises(TypeError, match="prompts: expected a list of prompts, got one string"):
        ReferenceBank.from_prompts(tiny_pipeline("sd3"), "a cat", 0, 32, 32)


@pytest.mark.bad_input
def test_images_of_the_wrong_kind():
    pipe = tiny_pipeline("sd3")
    for one in (np.zeros((80, 120, 3), dtype=np.uint8), Image.new("RGB", (8, 8)), torch.zeros(3, 8, 8), None):
        with pytest.raises(TypeError, match="images: expected a folder or a list of images, got one"):
            ReferenceBank.from_images(pipe, one, 32, 32)
    for shape in ((3, 8, 9), (8, 8, 1), (8, 8, 5), (0, 4, 3)):
        with pytest.raises(ImageError, match="expected uint8 or float pixels"):
            open_image(np.zeros(shape, dtype=np.uint8))


def test_weights_and_labels_are_in_the_checksum(tmp_path):
    path = bank(weights=torch.tensor([1.0, 2, 3, 4])).save(tmp_path / "b.safetensors")
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, framework="pt") as file:
        meta, tensors = file.metadata(), {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118  not a dict
    for other in (tensors | {"weights": tensors["weights"].flip(0)}, tensors):
        changed = meta if other is not tensors else meta | {"header": meta["header"].replace('"2"', '"x"')}
        save_file(other, path, metadata=changed)
        with pytest.raises(BankCorruptError, match="does not match its checksum"):
            ReferenceBank.load(path)
    assert ReferenceBank.load(path, verify=False).names == ["0", "1", "x", "3"]


def test_other_files_are_listed_and_large_or_damaged_ones_do_not_stop_a_build(tmp_path, monkeypatch):
    pipe = tiny_pipeline("sd3")
    (tmp_path / "in").mkdir()
    for name in ("a.png", "b.gif", "large.png"):
        Image.new("RGB", (40, 30 if name != "large.png" else 90), (90, 10, 20)).save(tmp_path / "in" / name)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1500)
    made = ReferenceBank.from_images(pipe, tmp_path / "in", 32, 32, on_error="skip", cache=tmp_path / "parts")
    assert made.names == ["a.png"]
    assert [s["name"].rsplit("/")[-1] for s in made.provenance["skipped"]] == ["large.png", "b.gif"]
    assert (
        "exceeds limit" in made.provenance["skipped"][0]["error"] and ".webp" in made.provenance["skipped"][1]["error"]
    )
    (part,) = (tmp_path / "parts").iterdir()
    part.write_bytes(part.read_bytes()[:20])  # a disk that was full
    again = ReferenceBank.from_images(pipe, tmp_path / "in", 32, 32, on_error="skip", cache=tmp_path / "parts")
    assert torch.equal(again.latents, made.latents)
    (tmp_path / "none").mkdir()
    with pytest.raises(EmptyBankError, match=r"at least one readable image \(\.bmp, .*\), got 0 of which 0"):
        ReferenceBank.from_images(pipe, tmp_path / "none", 32, 32)
    with pytest.raises(NotADirectoryError, match="images: expected a folder of images, got .*absent"):
        ReferenceBank.from_images(pipe, tmp_path / "absent", 32, 32)


def test_half_precision_is_the_same_latent_space():
    images = [np.full((32, 32, 3), 0.4)]
    made = ReferenceBank.from_images(tiny_pipeline("sd3"), images, 32, 32)
    half = tiny_pipeline("sd3")
    half.vae.to(torch.bfloat16)
    made.check_pipe(half)
