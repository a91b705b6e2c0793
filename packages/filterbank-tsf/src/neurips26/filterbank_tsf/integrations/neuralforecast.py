"""The filter bank as a neuralforecast model (extra ``nixtla``)."""

from __future__ import annotations

from typing import Any

import torch
from neuralforecast.common._base_model import BaseModel
from neuralforecast.losses.pytorch import MSE

from ..choices import DEFAULTS
from ..nn import FilterBank as _Bank


class FilterBank(BaseModel):
    """Channel-independent filter bank for ``NeuralForecast(models=[FilterBank(h=..., input_size=...)])``.

    Args:
        h: horizon.
        input_size: look-back.
        n_filters, kernel_size, stride, rank, core, norm: see :class:`neurips26.filterbank_tsf.nn.FilterBank`.
        kwargs: everything neuralforecast's models take (``max_steps``, ``learning_rate``, ``scaler_type`` ...).
    """

    EXOGENOUS_FUTR = False
    EXOGENOUS_HIST = False
    EXOGENOUS_STAT = False
    MULTIVARIATE = False
    RECURRENT = False

    def __init__(
        self,
        h: int,
        input_size: int,
        n_filters: int = 8,
        kernel_size: int = 24,
        stride: int | None = None,
        rank: int = 12,
        core: str = DEFAULTS.core,
        norm: str = DEFAULTS.norm,
        loss: Any = None,
        valid_loss: Any = None,
        max_steps: int = 1000,
        learning_rate: float = 1e-3,
        num_lr_decays: int = -1,
        early_stop_patience_steps: int = -1,
        val_check_steps: int = 100,
        batch_size: int = 32,
        valid_batch_size: int | None = None,
        windows_batch_size: int = 1024,
        inference_windows_batch_size: int = 1024,
        start_padding_enabled: bool = False,
        step_size: int = 1,
        scaler_type: str = "identity",
        random_seed: int = 1,
        drop_last_loader: bool = False,
        alias: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            h=h,
            input_size=input_size,
            loss=MSE() if loss is None else loss,
            valid_loss=valid_loss,
            max_steps=max_steps,
            learning_rate=learning_rate,
            num_lr_decays=num_lr_decays,
            early_stop_patience_steps=early_stop_patience_steps,
            val_check_steps=val_check_steps,
            batch_size=batch_size,
            valid_batch_size=valid_batch_size,
            windows_batch_size=windows_batch_size,
            inference_windows_batch_size=inference_windows_batch_size,
            start_padding_enabled=start_padding_enabled,
            step_size=step_size,
            scaler_type=scaler_type,
            random_seed=random_seed,
            drop_last_loader=drop_last_loader,
            alias=alias,
            **kwargs,
        )
        outputs = self.loss.outputsize_multiplier
        if outputs != 1:
            raise ValueError(
                f"loss: the filter bank forecasts one value a step, {type(self.loss).__name__} needs {outputs}"
            )
        size = min(kernel_size, input_size)
        self.bank = _Bank(input_size, h, n_filters, size, stride, rank=rank, core=core, norm=norm, seed=random_seed)

    def forward(self, windows_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Forecast ``(B, h, 1)`` from ``insample_y`` ``(B, L, 1)``."""
        return self.bank(windows_batch["insample_y"].squeeze(-1)).unsqueeze(-1)
