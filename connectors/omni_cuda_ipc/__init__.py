"""Connector `"cuda_ipc"`: payloads between two processes of a host, from GPU memory to GPU memory.

docs/public.md lists the public names; others may change in any version.
"""
