"""Launch settings that were measured, shipped with the package: nothing is tuned at start."""

from omni_ar.kernels.tuning.table import tuned

__all__ = ["tuned"]
