"""What encoders share on a GPU, one folder per operation: made as `docs/kernels.md` says."""
