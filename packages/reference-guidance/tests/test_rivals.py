"""What a reference set competes with on a pipeline: diffusers' own use of pictures, copies, averages and words."""

import numpy as np
import pytest
import torch
from PIL import Image

from neurips26.reference_guidance import BankMismatchError, ReferenceBank, rivals
from neurips26.reference_guidance.grid import run_grid
from neurips26.reference_guidance.layouts import layout_for
from neurips26.reference_guidance.tiny import TINY, tiny_call, tiny_pipeline

SIZE = {"height": 64, "width": 96}


@pytest.fixture(scope="module", params=list(TINY))
def family(request):
    pipe = tiny_pipeline(request.param)
    g = np.random.default_rng(0)
    return request.param, pipe, ReferenceBank.from_images(pipe, [g.random((64, 96, 3)) for _ in range(3)], 64, 96)


def call(name, steps=5):
    return tiny_call(name, num_inference_steps=steps, output_type="pil", **SIZE)


def test_a_reference_is_decoded_as_the_vae_does(family):
    _, pipe, bank = family
    with torch.no_grad():
        spatial = layout_for(pipe).unpack(bank.latents[1:2], bank.grid)
        pixels = (layout_for(pipe).decode(pipe, spatial)[0].clamp(-1, 1) + 1) * 127.5
    shown = np.asarray(rivals.reference_picture(pipe, bank, 1))
    assert np.array_equal(shown, pixels.round().byte().permute(1, 2, 0).numpy()) and shown.shape == (64, 96, 3)
    with pytest.raises(BankMismatchError, match="grid: this bank does not know"):
        rivals.reference_picture(pipe, ReferenceBank.from_latents(bank.latents), 0)


def test_image_to_image_runs_the_last_steps_from_the_picture(family):
    name, pipe, bank = family
    scheduler, pictures = pipe.scheduler, [rivals.reference_picture(pipe, bank, i) for i in range(2)]

    def edited(picture, strength):
        steps = []

        def count(_pipe, step, t, kwargs):
            steps.append(float(t))
            return kwargs

        out = rivals.image_to_image(pipe, picture, strength, **call(name), callback_on_step_end=count)
        assert out.size == (96, 64)
        return np.asarray(out), steps

    runs = {s: edited(pictures[0], s) for s in (0.2, 0.6, 1.0)}
    assert [len(steps) for _, steps in runs.values()] == [1, 3, 5]
    assert runs[0.2][1] == runs[1.0][1][-1:]  # the last of the same noise levels
    assert (edited(pictures[1], 0.2)[0] != runs[0.2][0]).any() and pipe.scheduler is scheduler


def test_image_conditioning_is_flux2s_alone(family):
    name, pipe, bank = family
    pictures = [rivals.reference_picture(pipe, bank, i) for i in range(2)]
    if name != "flux2-klein":
        with pytest.raises(ValueError, match=r"expected one that takes pictures \(image=\), got"):
            rivals.conditioned(pipe, pictures, **call(name))
        return
    plain = np.asarray(pipe(**call(name)).images[0])
    one, both = (np.asarray(rivals.conditioned(pipe, p, **call(name))) for p in (pictures[:1], pictures))
    assert (one != plain).any() and (both != one).any()
    assert np.array_equal(one, np.asarray(pipe(image=pictures[0], **call(name)).images[0]))


def test_a_pipeline_without_image_to_image_is_told():
    with pytest.raises(ValueError, match="expected one with an image-to-image pipeline .*, got SimpleNamespace"):
        from types import SimpleNamespace

        rivals.image_to_image(SimpleNamespace(), Image.new("RGB", (8, 8)), 0.5)


def test_rivals_are_drawn_beside_each_row_and_kept(family, tmp_path):
    name, pipe, bank = family
    row = {
        "bank": bank, "strength": 0.5, "schedule": "quadratic", "window": (0.0, 0.95), "topk": 2, "mode": "in_step",
        "steps": 2, "guidance_scale": 1.0, "seed": 4, "call": {k: v for k, v in call(name, 2).items() if k != "generator"},
    }  # fmt: skip
    (found,) = run_grid(pipe, row | SIZE, [{}], tmp_path, with_rivals=True)["rows"]
    expected = {"copy", "latent average", *(f"image to image {s:g}" for s in rivals.STRENGTHS)}
    if name == "flux2-klein":
        expected |= {"image conditioning"}
    assert set(found["rivals"]) == expected and found["base distance"] > 0
    shown = np.asarray(Image.open(tmp_path / found["rivals"]["copy"]["picture"]))
    assert np.array_equal(shown, np.asarray(rivals.reference_picture(pipe, bank, 4 % 3)))
    for rival in found["rivals"].values():
        assert rival["distance"] > 0 and (tmp_path / rival["picture"]).exists()
    written = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*.png")}
    assert run_grid(pipe, row | SIZE, [{}], tmp_path, with_rivals=True)["rows"] == [found]
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("*.png")} == written
