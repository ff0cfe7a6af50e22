"""What an autoregressive stage computes on a GPU, one folder per operation.

In the `__init__.py` of each folder are the functions that callers use, which take the kernel where it runs and the reference
elsewhere; `reference.py` is the operation in plain torch, which the CPU runs and tests compare with; `kernel.py`, or modules named
for their parts, the same in Triton. Two folders differ: `attention` has a `decode_kernel` and a `prefill_kernel`, and the reference
of `sampling` is `omni_ar.sampling`, which itself calls the kernels where they run.
"""
