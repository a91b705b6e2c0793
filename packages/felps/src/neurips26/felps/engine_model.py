"""How long an engine step takes: a linear model, presets, and its calibration from measured steps.

``t = base + prefill_token * p + prefill_seq * s + decode_seq * d + decode_adapter * a + kv_token * k + sum of loads`` with
``p`` prompt tokens of ``s`` prompts processed in the step, ``d`` sequences of ``a`` different adapters decoded and ``k``
tokens of context they attend to. Loads stall the batch (once per miss), less the share ``overlap`` that hides behind
computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np
from scipy.optimize import nnls

from neurips26.shared.arrays import check_array, check_choice, check_real


@dataclass(frozen=True)
class EngineModel:
    """Coefficients in seconds (per step, token, sequence or load).

    Attributes:
        base: fixed cost of a step.
        prefill_token: per prompt token processed.
        prefill_seq: per prompt that takes part in the step.
        decode_seq: per sequence that gets one token.
        decode_adapter: per adapter among these sequences, for engines that compute their adapters one after another (PEFT
            does; the kernels of GPU servers take all at once).
        kv_token: per token of context read by the decoding sequences.
        load: per adapter load.
        load_per_rank: additional load cost per unit of LoRA rank.
        overlap: share of a load hidden behind computation, 0 to 1.
        decode_batch: seconds of decoding 1, 2, ... sequences together (more: as the last), instead of ``decode_seq``. On a CPU
            two or three sequences can take longer than four, because the matrix kernels change with the batch.
        source: where the numbers come from.
    """

    base: float
    prefill_token: float
    decode_seq: float
    kv_token: float
    load: float
    prefill_seq: float = 0.0
    load_per_rank: float = 0.0
    overlap: float = 0.0
    decode_adapter: float = 0.0
    decode_batch: tuple[float, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name == "decode_batch":
                for seconds in value:
                    check_real(seconds, name, minimum=0.0, inclusive=False)
            elif name != "source":
                check_real(value, name, minimum=0.0, maximum=1.0 if name == "overlap" else None)
        if self.base + self.decode_seq <= 0 and not self.decode_batch:
            raise ValueError("base: expected a step to take time (base + decode_seq > 0), got 0")

    @classmethod
    def preset(cls, name: str) -> EngineModel:
        """One of ``PRESETS``."""
        return PRESETS[check_choice(name, "preset", PRESETS)]

    def step(
        self, prefill_tokens: float, prefill_seqs: int, decode_seqs: int, kv_tokens: float, decode_adapters: int = 0
    ) -> float:
        """Seconds of one step without loads."""
        batch = self.decode_batch
        return (
            self.base
            + self.prefill_token * prefill_tokens
            + self.prefill_seq * prefill_seqs
            + (batch[min(decode_seqs, len(batch)) - 1] if batch and decode_seqs else self.decode_seq * decode_seqs)
            + self.decode_adapter * decode_adapters
            + self.kv_token * kv_tokens
        )

    def load_seconds(self, rank: float = 0.0) -> float:
        """Seconds the batch stands still for one adapter load."""
        return (self.load + self.load_per_rank * rank) * (1.0 - self.overlap)

    def with_(self, **changes: float) -> EngineModel:
        """A copy with other coefficients."""
        return replace(self, **changes)


PRESETS: dict[str, EngineModel] = {
    "a10g-llama-7b": EngineModel(
        base=0.0204,
        prefill_token=215e-6,
        decode_seq=213e-6,
        kv_token=1.56e-6,
        load=0.1,
        source="fit_cost_profile on the VTC artifact's measured cost profile (llama-7b, A10G); load: 320 MB at 3.2 GB/s",
    ),
    "a100-llama-7b": EngineModel(
        base=0.012,
        prefill_token=70e-6,
        decode_seq=60e-6,
        kv_token=0.4e-6,
        load=0.1,
        source="assumed from a roofline, not measured: 13.5 GB of weights at 1.5 TB/s + 3 ms; 13.4 GFLOP a prompt token at "
        "60 % of 312 TFLOP/s; 0.5 MB of keys and values a token at 1.3 TB/s; load: 320 MB at 3.2 GB/s",
    ),
    "vllm-cpu-small": EngineModel(
        base=8.7e-3,
        prefill_token=374e-6,
        prefill_seq=222e-6,
        decode_seq=293e-6,
        kv_token=3.15e-6,
        load=1.4e-3,
        source="least squares on 2,403 steps of vLLM 0.32 on one core (CPU seconds; a Llama of four layers and width 256, "
        "adapters of rank 16), three windows of the arena trace's first 200 s",
    ),
}


def fit_cost_profile(profile: Mapping[str, Mapping[str, list[float]]], load: float = 0.1) -> EngineModel:
    """Fit a model to a cost profile of the VTC artifact.

    Args:
        profile: input tokens -> output tokens -> [batch size, prefill seconds per request, decode seconds per request].
        load: seconds of an adapter load, which such a profile does not contain.
    """
    rows = []
    try:
        for tokens, by in profile.items():
            for emitted, (batch, prefill, decode) in by.items():
                rows.append((int(tokens), int(emitted), float(batch), float(prefill), float(decode)))
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            "profile: expected input tokens -> output tokens -> [batch size, prefill seconds, decode seconds], "
            f"got something else ({error})"
        ) from None
    if not rows:
        raise ValueError("profile: expected at least one measured point, got none")
    prompt, output, batch, prefill, decode = check_array(rows, "profile", shape=("points", 5), dtype=np.float64).T
    if min(prompt.min(), output.min(), batch.min(), decode.min()) <= 0:
        raise ValueError("profile: expected positive tokens, batch sizes and decode seconds, got a value that is not")
    prefill_token = float(np.sum(prefill * prompt) / np.sum(prompt * prompt))
    # A step of the batch: `output` steps, contexts growing from prompt to prompt + output. Relative errors count equally.
    step = decode * batch / output
    columns = np.stack([np.ones_like(batch), batch, batch * (prompt + output / 2)], axis=1)
    base, per_seq, per_kv = nnls(columns / step[:, None], np.ones_like(step))[0]
    return EngineModel(
        float(base), prefill_token, float(per_seq), float(per_kv), load, source="fitted to a cost profile"
    )


@dataclass(frozen=True)
class Step:
    """What one engine step did and how long it took; ``loads`` is the number of adapters loaded, ``decode_adapters`` that of
    different ones among the decoded sequences (the base model is none).
    """

    prefill_tokens: int
    prefill_seqs: int
    decode_seqs: int
    kv_tokens: int
    loads: int
    seconds: float
    load_seconds: float = 0.0
    decode_adapters: int = 0


def calibrate(steps: Iterable[Step], by_batch: bool = False) -> EngineModel:
    """Fit all coefficients to measured steps by non-negative least squares.

    Loads are timed apart (``load_seconds``); at least one step with a load is needed to know their cost.

    Args:
        steps: what was measured.
        by_batch: fit ``decode_batch``, one time for each number of sequences, instead of ``base`` and ``decode_seq`` (sizes that
            never occurred lie on the line between their neighbours).
    """
    steps = list(steps)
    if len(steps) < 5:
        raise ValueError(f"steps: expected at least 5 measured steps, got {len(steps)}")
    seconds = check_array([s.seconds - s.load_seconds for s in steps], "steps.seconds", shape=("n",))
    if (seconds <= 0).any():
        raise ValueError(f"steps.seconds: expected positive times beside loads, got {seconds.min()}")
    together = np.array([s.decode_seqs for s in steps])
    sizes = np.unique(together[together > 0])
    shared = np.array([[s.prefill_tokens, s.prefill_seqs, s.kv_tokens, s.decode_adapters] for s in steps])
    decode = together[:, None] == sizes if by_batch else np.stack([np.ones_like(together), together], axis=1)
    columns = np.concatenate([shared, decode], axis=1).astype(float)
    scale = np.maximum(columns.max(axis=0), 1.0)
    # The makespan is what has to come out: absolute errors, so that long steps count for their length.
    per_token, per_prompt, per_kv, per_adapter, *rest = map(float, nnls(columns / scale, seconds)[0] / scale)
    base, per_seq, batch = 0.0, 0.0, ()
    if by_batch and len(sizes):
        every = np.interp(np.arange(1, sizes[-1] + 1), sizes, rest)
        batch = tuple(max(float(t), 1e-9) for t in every)
    elif not by_batch:
        base, per_seq = rest
    loads = sum(s.loads for s in steps)
    load = sum(s.load_seconds for s in steps) / loads if loads else 0.0
    return EngineModel(
        max(base, 1e-9),
        per_token,
        per_seq,
        per_kv,
        load,
        per_prompt,
        decode_adapter=per_adapter,
        decode_batch=batch,
        source=f"calibrated on {len(steps)} measured steps",
    )
