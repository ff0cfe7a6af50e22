"""Operations of vocoders, one folder each, structured as in `docs/kernels.md`."""
