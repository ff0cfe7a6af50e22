"""Operations shared by encoders, one folder each, structured as in `docs/kernels.md`."""
