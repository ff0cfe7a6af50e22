"""Operations of denoisers and renderers, one folder each, structured as in `docs/kernels.md`."""
