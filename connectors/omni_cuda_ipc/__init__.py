"""Connector `"cuda_ipc"`: payloads between two processes of a host, from GPU memory to GPU memory."""
