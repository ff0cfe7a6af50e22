"""Functions that kernels of several stage kinds call."""
