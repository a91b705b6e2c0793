"""Bridges to other forecasting libraries; each needs its extra."""
