"""Frank-LoRA: federated LoRA with a frozen, resampled A and learning rates that follow the client's rank."""

from neurips26.frank_lora.choices import Choices
from neurips26.frank_lora.export import save_as_peft
from neurips26.frank_lora.method import FrankLoRA, rank_factor
from neurips26.frank_lora.sampler import sample_a
from neurips26.frank_lora.snr import measure_snr, optimal_lr, snr_theory

__all__ = [
    "Choices",
    "FrankLoRA",
    "measure_snr",
    "optimal_lr",
    "rank_factor",
    "sample_a",
    "save_as_peft",
    "snr_theory",
]
