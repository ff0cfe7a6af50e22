"""Operations of an autoregressive stage, one folder each.

A folder's `__init__.py` has the public functions, which call the kernel where it runs and the reference elsewhere.
`reference.py` is the operation in plain torch, for the CPU and as the reference of tests. `kernel.py`, or modules named
for its parts, is the operation in Triton. Two folders differ: `attention` has a `decode_kernel` and a `prefill_kernel`,
and the reference of `sampling` is `omni_ar.sampling`, which calls the kernels where they run.
"""
