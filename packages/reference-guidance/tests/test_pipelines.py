import warnings

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    FlowMatchLCMScheduler,
)

from neurips26.reference_guidance import (
    BankMismatchError,
    ReferenceBank,
    ReferenceGuidanceCallback,
    ReferenceGuidedFlowMatchEuler,
    ReferenceGuidedFlowMatchHeun,
    ReferenceMeanGuidance,
    UnsupportedSchedulerError,
    guide,
    guided_scheduler,
    reference_mean,
    register_layout,
)
from neurips26.reference_guidance.layouts import layout_for
from neurips26.reference_guidance.tiny import TINY, tiny_call, tiny_pipeline


@pytest.fixture(scope="module", params=list(TINY))
def family(request):
    return request.param, tiny_pipeline(request.param)


def seen(pipe, **call):
    """Latents as the scheduler leaves them after the last step."""
    got = {}

    def keep(_pipe, step, t, kwargs):
        got["latents"] = kwargs["latents"]
        return kwargs

    out = pipe(**call, callback_on_step_end=keep)
    return got["latents"], out.images


def some_bank(shape, m=3, seed=5):
    return ReferenceBank.from_latents(torch.randn(m, *shape, generator=torch.Generator().manual_seed(seed)))


def test_one_reference_at_strength_one_is_reached_exactly(family):
    name, pipe = family
    base, _ = seen(pipe, **tiny_call(name))
    bank = some_bank(base.shape[1:], m=1)
    guidance = ReferenceMeanGuidance(bank, strength=1.0, schedule="constant", window=(0.0, 1.0))
    for seed in (0, 3):
        with guide(pipe, guidance):
            got, _ = seen(pipe, **tiny_call(name, seed=seed))
        torch.testing.assert_close(got[0], bank.latents[0], rtol=1e-6, atol=2e-6)
    assert len(guidance.history) == 4 and guidance.history[0].sigma == pytest.approx(1.0)


@pytest.mark.parametrize("scale, images", [(1.0, 1), (3.0, 2)])
def test_strength_zero_is_bit_identical(family, scale, images):
    name, pipe = family
    if name in ("flux", "sd3"):
        images = 1  # diffusers does not repeat given embeddings there; the batch of two prompts does the same
    call = dict(guidance_scale=scale, num_images_per_prompt=images, prompts=2)
    latents, picture = seen(pipe, **tiny_call(name, **call))
    bank = some_bank(latents.shape[1:])
    for g in (
        ReferenceMeanGuidance(bank, strength=0.0, window=(0.0, 1.0)),
        ReferenceMeanGuidance(bank, strength=1.0, window=(0.9, 0.95)),
    ):
        with guide(pipe, g):
            got, image = seen(pipe, **tiny_call(name, **call))
        assert torch.equal(got, latents) and torch.equal(image, picture) and not g.history
    with guide(pipe, ReferenceMeanGuidance(bank, strength=0.7, window=(0.0, 1.0))):
        got, _ = seen(pipe, **tiny_call(name, **call))
    assert got.shape == latents.shape and not torch.equal(got, latents)


def test_encoding_is_the_pipelines_own(family):
    name, pipe = family
    pixels = torch.rand(2, 3, 32, 48, generator=torch.Generator().manual_seed(0)) * 2 - 1
    images = [((p.permute(1, 2, 0) + 1) / 2).numpy() for p in pixels]
    bank = ReferenceBank.from_images(pipe, images, 32, 48)
    quantised = torch.stack([torch.from_numpy((im * 255).round() / 127.5 - 1).permute(2, 0, 1) for im in images])
    with torch.no_grad():
        if name == "flux2-klein":
            own = pipe._pack_latents(pipe._encode_vae_image(quantised, None))
        else:
            z = pipe.vae.encode(quantised).latent_dist.mode()
            own = (z - pipe.vae.config.shift_factor) * pipe.vae.config.scaling_factor
            if name == "flux":
                own = pipe._pack_latents(own, 2, 4, *own.shape[2:])
    torch.testing.assert_close(bank.latents, own, rtol=1e-4, atol=1e-5)
    latents, _ = seen(pipe, **tiny_call(name))
    assert bank.latents.shape[1:] == latents.shape[1:]


def test_flux2_latents_lead_back_to_the_mode_of_the_vae():
    pipe = tiny_pipeline("flux2-klein")
    pixels = torch.rand(2, 3, 32, 48, generator=torch.Generator().manual_seed(0)) * 2 - 1
    layout = layout_for(pipe)
    with torch.no_grad():
        z = pipe.vae.encode(pixels).latent_dist.mode()
        packed = layout.pack(layout.encode(pipe, pixels))
    spatial = layout.unpack(packed, (z.shape[2] // 2, z.shape[3] // 2))
    bn = pipe.vae.bn
    std = (bn.running_var + pipe.vae.config.batch_norm_eps).sqrt().view(1, -1, 1, 1)
    again = torch.nn.functional.pixel_shuffle(spatial * std + bn.running_mean.view(1, -1, 1, 1), 2)
    torch.testing.assert_close(again, z, rtol=1e-6, atol=1e-6)


def test_odd_sizes_follow_the_pipelines_rounding(family):
    name, pipe = family
    if name in ("sd3", "z-image"):
        with pytest.raises(ValueError, match="divisible|multiple"):  # these refuse them themselves
            pipe(**tiny_call(name, height=35, width=53))
    size = (36, 52) if name in ("sd3", "z-image") else (35, 53)
    bank = ReferenceBank.from_images(pipe, [torch.rand(*size, 3).numpy()], *size)
    with guide(pipe, ReferenceMeanGuidance(bank, strength=1.0, schedule="constant", window=(0.0, 1.0), topk=1)):
        latents, _ = seen(pipe, **tiny_call(name, height=size[0], width=size[1]))
    torch.testing.assert_close(latents, bank.latents, rtol=1e-5, atol=1e-5)


def test_decoding_inverts_the_layout(family):
    name, pipe = family
    layout = layout_for(pipe)
    pixels = torch.rand(1, 3, 32, 48) * 2 - 1
    with torch.no_grad():
        spatial = layout.encode(pipe, pixels)
        z = pipe.vae.encode(pixels).latent_dist.mode()
        again = pipe.vae.decode(z, return_dict=False)[0]
        torch.testing.assert_close(layout.decode(pipe, spatial), again, rtol=1e-4, atol=1e-5)
        packed = layout.pack(spatial)
        torch.testing.assert_close(layout.unpack(packed, (spatial.shape[2], spatial.shape[3])), spatial)


def test_scheduler_is_restored_also_on_error(family):
    name, pipe = family
    own = pipe.scheduler
    latents, _ = seen(pipe, **tiny_call(name))
    g = ReferenceMeanGuidance(some_bank(latents.shape[1:]))
    with pytest.raises(RuntimeError, match="inside"), guide(pipe, g):
        assert isinstance(pipe.scheduler, ReferenceGuidedFlowMatchEuler)
        raise RuntimeError("inside")
    assert pipe.scheduler is own
    with guide(pipe, g):
        first, _ = seen(pipe, **tiny_call(name))
        second, _ = seen(pipe, **tiny_call(name))  # a second call starts from the same state
    assert torch.equal(first, second)


def test_released_mode_equals_the_callback_and_an_independent_replay(family):
    name, pipe = family
    latents, _ = seen(pipe, **tiny_call(name, num_inference_steps=6))
    bank = some_bank(latents.shape[1:])
    for mode in ("released", "released_first"):
        g = ReferenceMeanGuidance(bank, strength=0.5, schedule="bell", window=(0.15, 0.95), topk=2, mode=mode)
        trace = []
        callback = ReferenceGuidanceCallback(g)

        def record(p, i, t, kwargs, callback=callback, trace=trace):
            before = kwargs["latents"].clone()
            out = callback(p, i, t, kwargs)
            trace.append((before, out["latents"].clone()))
            return out

        pipe(**tiny_call(name, num_inference_steps=6), callback_on_step_end=record)
        with guide(pipe, g):
            inside, _ = seen(pipe, **tiny_call(name, num_inference_steps=6))
        assert torch.equal(inside, trace[-1][1])
        previous = None
        for i, (x, after) in enumerate(trace):  # replay of the published arithmetic
            t = i / 5
            if not 0.15 <= t <= 0.95:
                assert torch.equal(x, after)
                continue
            d, flat = bank.latents.flatten(1), x.flatten(1)
            logits = -(flat[:, None] - t * d[None]).square().mean(-1) / (2 * ((1 - t) ** 2 + 1e-8))
            values, index = logits.topk(2)
            mu = (values.softmax(-1)[..., None] * d[index]).sum(1)
            velocity = ((mu - flat) / (1 - t)).view_as(x)
            dt = (i + 1) / 5 - t
            if mode == "released" and previous is not None:
                velocity = velocity - (x - previous) / dt
            previous = x
            torch.testing.assert_close(after, x + 4 * 0.5 * t * (1 - t) * velocity * dt, rtol=1e-5, atol=1e-5)


def test_the_callback_is_for_the_released_modes():
    g = ReferenceMeanGuidance(some_bank((4, 3)))
    with pytest.raises(ValueError, match="guidance: expected mode 'released' or 'released_first', got 'in_step'"):
        ReferenceGuidanceCallback(g)
    one, two = tiny_pipeline("sd3"), tiny_pipeline("sd3", seed=1)
    bank = ReferenceBank.from_images(one, [torch.rand(32, 48, 3).numpy()], 32, 48)
    callback = ReferenceGuidanceCallback(ReferenceMeanGuidance(bank, topk=1, mode="released"))
    with pytest.raises(BankMismatchError, match="digest"):
        two(**tiny_call("sd3"), callback_on_step_end=callback)


def test_the_path_of_a_step_is_the_reference_mean():
    weighted = some_bank((4, 3), m=6).with_weights([1.0, 2.0, 3.0, 1.0, 1.0, 5.0])
    x = torch.randn(5, 4, 3)
    for options in ({"topk": 2}, {"topk": None}, {"metric": "sum", "topk": 4}, {"temperature": 3.0, "topk": 1}):
        g = ReferenceMeanGuidance(weighted, **options)
        k = options["topk"]
        mu, entropy, top1 = g.mean(x, 0.4)
        expected, stats = reference_mean(
            x, weighted.latents, 0.4, metric=g.metric, temperature=g.temperature, topk=k, log_prior=weighted.log_prior,
            chunk=2,
        )  # fmt: skip
        torch.testing.assert_close(mu, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(entropy, stats.entropy)
        torch.testing.assert_close(top1, stats.top1)


def test_guidance_that_never_acts_is_told(family):
    name, pipe = family
    latents, _ = seen(pipe, **tiny_call(name))
    bank = some_bank(latents.shape[1:])
    for window in ((0.9, 0.95), (0.0, 0.95)):
        steps = 4 if window[0] else 1
        g = ReferenceMeanGuidance(bank, window=window, topk=2)
        with guide(pipe, g), pytest.warns(UserWarning, match=f"none of the {steps} steps lies between"):
            pipe(**tiny_call(name, num_inference_steps=steps))
        assert not g.history


def test_numbers_that_are_not_finite_are_told():
    g = ReferenceMeanGuidance(some_bank((4, 3)), window=(0.0, 1.0))
    x = torch.randn(2, 4, 3)
    x[1, 2, 0] = torch.nan
    with pytest.raises(ValueError, match=r"x: expected finite numbers, got nan at index \(1, 2, 0\)"):
        g.correct(torch.randn(2, 4, 3), x, 0.5, 0, 4)
    g = ReferenceMeanGuidance(some_bank((4, 3)), schedule=lambda t: float("nan"), window=(0.0, 1.0))
    with pytest.raises(ValueError, match="schedule: expected finite numbers, got beta nan at step 0 of 4"):
        g.correct(torch.randn(2, 4, 3), torch.randn(2, 4, 3), 0.5, 0, 4)


def scheduler_run(scheduler, velocity, x, steps=5):
    scheduler.set_timesteps(steps)
    for t in scheduler.timesteps:
        x = scheduler.step(velocity(x), t, x, return_dict=False)[0]
    return x


def test_guided_heun_equals_guided_euler_when_the_flow_is_straight():
    bank = some_bank((4, 3), m=1)
    x, v = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    g = ReferenceMeanGuidance(bank, strength=1.0, schedule="constant", window=(0.0, 1.0))
    euler = scheduler_run(guided_scheduler(FlowMatchEulerDiscreteScheduler(), g), lambda x: v, x)
    assert len(g.history) == 5
    heun = scheduler_run(guided_scheduler(FlowMatchHeunDiscreteScheduler(), g), lambda x: v, x)
    assert len(g.history) == 9  # both stages of four steps and the last
    torch.testing.assert_close(euler, bank.latents.expand(2, 4, 3), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(heun, euler, rtol=1e-4, atol=1e-4)
    plain = [
        scheduler_run(s, lambda x: v, x) for s in (FlowMatchEulerDiscreteScheduler(), FlowMatchHeunDiscreteScheduler())
    ]
    torch.testing.assert_close(*plain, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="s_churn"):
        s = guided_scheduler(FlowMatchHeunDiscreteScheduler(), g)
        s.set_timesteps(3)
        s.step(v, s.timesteps[0], x, s_churn=0.5)


def test_heun_corrects_each_stage_at_its_own_level():
    bank = some_bank((4, 3))
    g = ReferenceMeanGuidance(bank, strength=0.5, schedule="constant", window=(0.0, 1.0), topk=None)
    s = guided_scheduler(FlowMatchHeunDiscreteScheduler(shift=2.0), g)
    x = torch.randn(2, 4, 3)
    scheduler_run(s, lambda x: 0.3 * x, x, 3)
    levels = [h.sigma for h in g.history]
    assert levels == pytest.approx(
        [1.0, float(s.sigmas[1]), float(s.sigmas[1]), float(s.sigmas[3]), float(s.sigmas[3])]
    )


def test_stochastic_sampling_lcm_and_per_token_times_reach_the_reference():
    bank = some_bank((4, 3), m=1)
    g = ReferenceMeanGuidance(bank, strength=1.0, schedule="constant", window=(0.0, 1.0))
    for s in (FlowMatchEulerDiscreteScheduler(stochastic_sampling=True), FlowMatchLCMScheduler()):
        got = scheduler_run(guided_scheduler(s, g), lambda x: 0.1 * x, torch.randn(2, 4, 3), 4)
        torch.testing.assert_close(got, bank.latents.expand(2, 4, 3), rtol=1e-5, atol=1e-5)
    s = guided_scheduler(FlowMatchEulerDiscreteScheduler(), g)
    s.set_timesteps(4)
    times = torch.tensor([[1.0, 250.75, 250.75, 0.0]]).expand(2, 4) * torch.tensor([1000.0, 1, 1, 1])
    times = torch.where(times > 500, times, times)
    x = torch.randn(2, 4, 3)
    level = (times / 1000)[..., None]
    out = s.step(0.1 * x, s.timesteps[-1], x, per_token_timesteps=times, return_dict=False)[0]
    assert torch.equal(out[:, 3], x[:, 3])  # a clean token stays
    lower = torch.tensor([max([float(q) for q in s.sigmas if q < l - 1e-6], default=0.0) for l in level[0, :, 0]])[
        :, None
    ]
    mu = bank.latents
    # diffusers' own sign for per-token steps is kept: x + (sigma - sigma') v
    v = torch.where(level > 0, (x - mu) / level.clamp_min(1e-9), 0.1 * x)
    torch.testing.assert_close(out, x + (level - lower) * v, rtol=1e-4, atol=1e-4)


def test_tokens_with_levels_of_their_own_have_strengths_of_their_own():
    bank, x, v = some_bank((4, 3), m=1), torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    level = torch.tensor([0.9, 0.5, 0.2, 0.0])[:, None].expand(2, 4, 1)
    for schedule, beta in (("quadratic", 0.5 * level**2), (lambda t: 1.0 - t, 0.5 * level)):
        g = ReferenceMeanGuidance(bank, strength=0.5, schedule=schedule, topk=1, window=(0.0, 1.0))
        mean = x - level * v
        shift = torch.where(level > 0, (bank.latents - mean) / level.clamp_min(1e-6), torch.zeros_like(x))
        torch.testing.assert_close(g.correct(v, x, level, 1, 5), v - beta * shift, rtol=1e-4, atol=1e-5)
        assert g.history[0].beta == pytest.approx(float(beta.mean()), rel=1e-5)
    g = ReferenceMeanGuidance(bank, strength=0.5, topk=1, window=(0.0, 0.2))
    assert g.correct(v, x, level, 4, 5) is v  # outside the window


def test_the_clock_of_the_released_modes_stands_in_the_settings():
    for mode, clock in (("in_step", "sigma"), ("released", "step_fraction"), ("released_first", "step_fraction")):
        g = ReferenceMeanGuidance(some_bank((4, 3)), topk=2, mode=mode)
        assert g.settings()["time"] == clock
        assert g.clock(1, 5, 0.9) == pytest.approx(0.1 if clock == "sigma" else 0.25)


def test_qwen_image_encodes_and_packs_as_its_own_image_to_image():
    from types import SimpleNamespace

    from diffusers import AutoencoderKLQwenImage, QwenImageImg2ImgPipeline

    torch.manual_seed(0)
    vae = AutoencoderKLQwenImage(
        base_dim=8, z_dim=4, dim_mult=[1, 1], num_res_blocks=1, temperal_downsample=[False],
        latents_mean=[0.1, -0.2, 0.3, 0.0], latents_std=[1.5, 2.0, 0.5, 1.0],
    ).eval()  # fmt: skip
    pipe = type("QwenImagePipeline", (SimpleNamespace,), {})(vae=vae, vae_scale_factor=2)
    pixels = [torch.rand(16, 24, 3, generator=torch.Generator().manual_seed(i)).numpy() for i in range(2)]
    bank = ReferenceBank.from_images(pipe, pixels, 16, 24)
    own = QwenImageImg2ImgPipeline.__new__(QwenImageImg2ImgPipeline)
    object.__setattr__(own, "vae", vae)
    x = torch.stack([torch.from_numpy((p * 255).round() / 127.5 - 1).permute(2, 0, 1) for p in pixels])
    with torch.no_grad():
        mode = vae.encode(x[:, :, None]).latent_dist.mode()
        vae_as_mode = SimpleNamespace(config=vae.config, encode=lambda _: SimpleNamespace(latents=mode))
        object.__setattr__(own, "vae", vae_as_mode)
        theirs = own._pack_latents(own._encode_vae_image(x[:, :, None], None), 2, 4, 8, 12)
        torch.testing.assert_close(bank.latents, theirs, rtol=1e-4, atol=1e-5)
        layout = layout_for(pipe)
        again = layout.decode(pipe, layout.unpack(bank.latents, bank.grid))
        torch.testing.assert_close(again, vae.decode(mode, return_dict=False)[0][:, :, 0], rtol=1e-4, atol=1e-4)


def test_a_bank_of_another_orientation_is_refused():
    for name in ("flux2-klein", "flux"):
        pipe = tiny_pipeline(name)
        bank = ReferenceBank.from_images(pipe, [torch.rand(32, 48, 3).numpy()], 32, 48)
        with guide(pipe, ReferenceMeanGuidance(bank)):
            pipe(**tiny_call(name, height=35, width=50))  # the pipeline rounds it to 32x48
            with pytest.raises(BankMismatchError, match="made for pictures of 32x48 .height x width., asked for 48x32"):
                pipe(**tiny_call(name, height=48, width=32))
        assert "prepare_latents" not in vars(pipe)
        pipe(**tiny_call(name, height=48, width=32))


def test_a_scheduler_replaced_inside_is_told():
    pipe = tiny_pipeline("sd3")
    own, bank = pipe.scheduler, some_bank((4, 16, 24))
    with (
        pytest.warns(UserWarning, match="its scheduler was replaced inside guide"),
        guide(pipe, ReferenceMeanGuidance(bank)),
    ):
        pipe.scheduler = FlowMatchEulerDiscreteScheduler.from_config(pipe.scheduler.config)
    assert pipe.scheduler is own


def test_bf16_latents_keep_their_dtype():
    bank = some_bank((4, 3), m=1)
    g = ReferenceMeanGuidance(bank, strength=1.0, schedule="constant", window=(0.0, 1.0))
    x = torch.randn(2, 4, 3).bfloat16()
    got = scheduler_run(guided_scheduler(FlowMatchEulerDiscreteScheduler(), g), lambda x: 0.1 * x, x, 4)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), bank.latents.expand(2, 4, 3), rtol=2e-2, atol=2e-2)


def test_schedulers_that_are_refused():
    g = ReferenceMeanGuidance(some_bank((4, 3)))
    with pytest.raises(UnsupportedSchedulerError, match="invert_sigmas"):
        guided_scheduler(FlowMatchEulerDiscreteScheduler(invert_sigmas=True), g)
    with pytest.raises(UnsupportedSchedulerError, match="DDIMScheduler"):
        guided_scheduler(DDIMScheduler(), g)
    from diffusers import DPMSolverMultistepScheduler, UniPCMultistepScheduler

    for multistep in (UniPCMultistepScheduler, DPMSolverMultistepScheduler):
        said = rf"expected one of FlowMatchEulerDiscreteScheduler, .*FlowMatchLCMScheduler, got {multistep.__name__}"
        with pytest.raises(UnsupportedSchedulerError, match=said):
            guided_scheduler(multistep(use_flow_sigmas=True, prediction_type="flow_prediction"), g)
    plain = ReferenceGuidedFlowMatchHeun.from_config(FlowMatchHeunDiscreteScheduler().config)
    x = torch.randn(1, 2, 2)
    assert torch.equal(
        scheduler_run(plain, lambda x: x, x), scheduler_run(FlowMatchHeunDiscreteScheduler(), lambda x: x, x)
    )


def test_one_bank_a_sample_and_a_region():
    left, right = some_bank((4, 3), m=1, seed=1), some_bank((4, 3), m=1, seed=2)
    g = ReferenceMeanGuidance([left, right], strength=1.0, schedule="constant", window=(0.0, 1.0))
    x = torch.randn(2, 4, 3)
    got = scheduler_run(guided_scheduler(FlowMatchEulerDiscreteScheduler(), g), lambda x: 0.1 * x, x)
    torch.testing.assert_close(got, torch.cat([left.latents, right.latents]), rtol=1e-5, atol=1e-5)
    with pytest.raises(BankMismatchError, match=r"one a sample \(3\)"):
        scheduler_run(guided_scheduler(FlowMatchEulerDiscreteScheduler(), g), lambda x: x, torch.randn(3, 4, 3))
    region = torch.tensor([1.0, 0.0, 1.0, 0.0])[:, None]
    g = ReferenceMeanGuidance(left, strength=1.0, schedule="constant", window=(0.0, 1.0), region=region)
    got = scheduler_run(guided_scheduler(FlowMatchEulerDiscreteScheduler(), g), lambda x: 0.1 * x, x)
    base = scheduler_run(FlowMatchEulerDiscreteScheduler(), lambda x: 0.1 * x, x)
    assert torch.equal(got[:, 1::2], base[:, 1::2])
    torch.testing.assert_close(got[:, ::2], left.latents[:, ::2].expand(2, 2, 3), rtol=1e-5, atol=1e-5)


def test_region_of_another_shape_is_refused():
    g = ReferenceMeanGuidance(some_bank((4, 3)), window=(0.0, 1.0), region=torch.ones(5, 1))
    with pytest.raises(
        BankMismatchError, match=r"region: expected a shape that broadcasts to \(2, 4, 3\), got \(5, 1\)"
    ):
        scheduler_run(guided_scheduler(FlowMatchEulerDiscreteScheduler(), g), lambda x: x, torch.randn(2, 4, 3))


@pytest.mark.bad_input
def test_guide_of_the_wrong_kind():
    with pytest.raises(TypeError, match="guidance: expected a ReferenceMeanGuidance, got ReferenceBank"):
        with guide(tiny_pipeline("sd3"), some_bank((4, 3))):
            pass
    with pytest.raises(TypeError, match="guidance: expected a ReferenceMeanGuidance, got str"):
        guided_scheduler(FlowMatchEulerDiscreteScheduler(), "x")
    with pytest.raises(TypeError, match="layout: expected a Layout, got NoneType"):
        register_layout("Mine", None)
    with pytest.raises(TypeError, match="pipe: expected a diffusers pipeline with a scheduler, got str"):
        with guide("tiny:sd3", ReferenceMeanGuidance(some_bank((4, 3)))):
            pass


def test_bank_of_another_pipeline_is_refused():
    one, two = tiny_pipeline("sd3"), tiny_pipeline("sd3", seed=1)
    bank = ReferenceBank.from_images(one, [torch.rand(32, 48, 3).numpy()], 32, 48)
    with pytest.raises(BankMismatchError, match="digest"), guide(two, ReferenceMeanGuidance(bank)):
        pass
    with pytest.raises(BankMismatchError, match="another resolution"), guide(one, ReferenceMeanGuidance(bank)):
        one(**tiny_call("sd3", height=48, width=48))
    with pytest.warns(UserWarning, match="latents resized"):
        larger = bank.resized(one, 48, 48)
    with guide(one, ReferenceMeanGuidance(larger)):
        assert one(**tiny_call("sd3", height=48, width=48)).images.shape[-2:] == (48, 48)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bank.resized(one, 32, 48) is bank


def test_reference_images_of_an_edit_do_not_enter_the_latents():
    from PIL import Image

    pipe = tiny_pipeline("flux2-klein")
    image = Image.new("RGB", (96, 64), (200, 30, 90))
    bank = ReferenceBank.from_images(pipe, [image], 64, 96)
    g = ReferenceMeanGuidance(bank, strength=1.0, schedule="constant", window=(0.0, 1.0))
    with guide(pipe, g):
        got, _ = seen(pipe, image=image, **tiny_call("flux2-klein", height=64, width=96))
    torch.testing.assert_close(got, bank.latents, rtol=1e-5, atol=1e-5)


def test_offloaded_and_sliced_pipelines():
    pipe = tiny_pipeline("sd3")
    pipe.vae.enable_slicing()
    bank = ReferenceBank.from_prompts(
        pipe, [{k: v for k, v in tiny_call("sd3").items() if "embeds" in k}] * 2, 3, 32, 48, num_inference_steps=2
    )
    assert len(bank) == 2 and bank.provenance["seed"] == 3
    assert not torch.equal(bank.latents[0], bank.latents[1])  # seeds 1003 and 1004
    with guide(pipe, ReferenceMeanGuidance(bank)):
        assert torch.isfinite(pipe(**tiny_call("sd3")).images).all()


def test_weights_offloaded_to_the_cpu_by_accelerate():
    from accelerate import cpu_offload

    plain, pipe = tiny_pipeline("sd3"), tiny_pipeline("sd3")
    for part in (pipe.vae, pipe.transformer):
        cpu_offload(part, execution_device=torch.device("cpu"))
    assert all(p.is_meta for p in pipe.vae.parameters())
    images = [torch.rand(32, 48, 3, generator=torch.Generator().manual_seed(i)).numpy() for i in range(3)]
    here, there = (ReferenceBank.from_images(p, images, 32, 48) for p in (plain, pipe))
    assert here.fingerprint == there.fingerprint and torch.equal(here.latents, there.latents)
    pictures = []
    for p in (plain, pipe):
        with guide(p, ReferenceMeanGuidance(here, strength=1.0, topk=2)):
            pictures.append(p(**tiny_call("sd3")).images)
    assert torch.equal(*pictures)


def test_tiled_decoding_under_guidance():
    pipe = tiny_pipeline("sd3")
    pipe.vae.enable_tiling()
    bank = ReferenceBank.from_images(pipe, [torch.rand(64, 80, 3).numpy()], 64, 80)
    with guide(pipe, ReferenceMeanGuidance(bank, strength=1.0, schedule="constant", window=(0.0, 1.0))):
        got, images = seen(pipe, **tiny_call("sd3", height=64, width=80))
    torch.testing.assert_close(got, bank.latents, rtol=1e-5, atol=1e-5)
    assert images.shape[-2:] == (64, 80)
