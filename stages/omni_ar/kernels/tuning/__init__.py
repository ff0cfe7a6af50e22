"""Measured launch settings, shipped with the package; no kernel is tuned at start."""

from omni_ar.kernels.tuning.table import Config, cached_lookup, replace, shipped, tuned

__all__ = ["Config", "cached_lookup", "replace", "shipped", "tuned"]
