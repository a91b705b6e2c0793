"""Tiny pipelines with random weights, built from configurations alone: for tests, timings and trying the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from neurips26.shared.arrays import check_choice

__all__ = ["TINY", "save_tiny_klein", "tiny_call", "tiny_pipeline"]

_VAE = {
    "block_out_channels": (8, 8), "layers_per_block": 1, "norm_num_groups": 4, "latent_channels": 4,
    "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2, "sample_size": 32,
}  # fmt: skip


def _kl(**extra: Any) -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        **_VAE, scaling_factor=1.5, shift_factor=0.1, use_quant_conv=False, use_post_quant_conv=False, **extra
    )


def _flux2() -> Any:
    from diffusers import (
        AutoencoderKLFlux2,
        FlowMatchEulerDiscreteScheduler,
        Flux2KleinPipeline,
        Flux2Transformer2DModel,
    )

    transformer = Flux2Transformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=24, timestep_guidance_channels=16, axes_dims_rope=(4, 4, 4, 4), guidance_embeds=False,
    )  # fmt: skip
    vae = AutoencoderKLFlux2(**_VAE)
    vae.bn.running_mean.normal_()
    vae.bn.running_var.uniform_(0.5, 2.0)
    return Flux2KleinPipeline(
        FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0),
        vae,
        None,
        None,
        transformer,
        is_distilled=False,
    )


def _flux() -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    transformer = FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=24, pooled_projection_dim=20, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0)
    return FluxPipeline(scheduler, _kl(), None, None, None, None, transformer)


def _sd3() -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline

    transformer = SD3Transformer2DModel(
        sample_size=32, patch_size=1, in_channels=4, num_layers=1, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=24, caption_projection_dim=32, pooled_projection_dim=20, out_channels=4, pos_embed_max_size=48,
    )  # fmt: skip
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    return StableDiffusion3Pipeline(transformer, scheduler, _kl(), None, None, None, None, None, None)


def _z_image() -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel

    transformer = ZImageTransformer2DModel(
        in_channels=4, dim=32, n_layers=1, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=24,
        axes_dims=[4, 6, 6], axes_lens=[64, 64, 64],
    )  # fmt: skip
    with torch.no_grad():  # two pad tokens are allocated without values
        for p in transformer.parameters():
            if not torch.isfinite(p).all() or p.abs().max() > 1e3:
                p.zero_()
        transformer.x_pad_token.normal_(std=0.02)
        transformer.cap_pad_token.normal_(std=0.02)
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0)
    return ZImagePipeline(scheduler, _kl(), None, None, transformer)


TINY: dict[str, Callable[[], Any]] = {"flux2-klein": _flux2, "flux": _flux, "sd3": _sd3, "z-image": _z_image}


def tiny_pipeline(name: str, seed: int = 0) -> Any:
    """A pipeline of this family with random weights; nothing is downloaded."""
    check_choice(name, "name", TINY)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pipe = TINY[name]()
    pipe.set_progress_bar_config(disable=True)
    for part in pipe.components.values():
        if isinstance(part, torch.nn.Module):
            part.eval()
    return pipe


def _byte_tokenizer() -> Any:
    """A tokenizer of single bytes with the chat template the pipeline asks for."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import Qwen2TokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({c: i for i, c in enumerate([*letters, "<|endoftext|>"])}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = Qwen2TokenizerFast(tokenizer_object=core, pad_token="<|endoftext|>", eos_token="<|endoftext|>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return tokenizer


def save_tiny_klein(folder: str | Path, seed: int = 0) -> Path:
    """Write a tiny, complete Flux2Klein pipeline (tokenizer, text encoder, transformer, VAE) with random weights.

    ``DiffusionPipeline.from_pretrained(folder)`` loads it like a released one, and it takes prompts.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    pipe = tiny_pipeline("flux2-klein", seed)
    # the pipeline reads hidden states 9, 18 and 27: three times 8 numbers are the 24 of its transformer
    config = Qwen3Config(
        vocab_size=257, hidden_size=8, intermediate_size=16, num_hidden_layers=28, num_attention_heads=2,
        num_key_value_heads=1, head_dim=4, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = Qwen3ForCausalLM(config).eval()
        for p in encoder.parameters():  # away from the tiny initial scale, so that prompts differ
            p.data.mul_(5.0) if p.ndim > 1 else None
    pipe.register_modules(text_encoder=encoder, tokenizer=_byte_tokenizer())
    pipe.save_pretrained(folder)
    return Path(folder)


def tiny_call(name: str, prompts: int = 1, seed: int = 0, guidance_scale: float = 1.0, **call: Any) -> dict[str, Any]:
    """Arguments of a call of the tiny pipeline: prompt embeddings in place of a text encoder, a seeded generator."""
    check_choice(name, "name", TINY)
    g = torch.Generator().manual_seed(seed + 77)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g)

    call = {"num_inference_steps": 4, "height": 32, "width": 48, "output_type": "pt"} | call
    call |= {"generator": torch.Generator().manual_seed(seed)}
    embeds, negative = draw(prompts, 7, 24), draw(prompts, 7, 24)
    if name == "z-image":
        call |= {"prompt_embeds": list(embeds), "guidance_scale": guidance_scale - 1.0}
        return call | ({"negative_prompt_embeds": list(negative)} if guidance_scale > 1 else {})
    call |= {"prompt_embeds": embeds}
    if name in ("flux", "sd3"):
        call |= {"pooled_prompt_embeds": draw(prompts, 20)}
    if name == "flux":
        cfg = {"negative_prompt_embeds": negative, "negative_pooled_prompt_embeds": draw(prompts, 20)}
        return call | ({"true_cfg_scale": guidance_scale} | cfg if guidance_scale > 1 else {})
    call |= {"guidance_scale": guidance_scale}
    if name == "sd3":
        return call | {"negative_prompt_embeds": negative, "negative_pooled_prompt_embeds": draw(prompts, 20)}
    return call | ({"negative_prompt_embeds": negative} if guidance_scale > 1 else {})
