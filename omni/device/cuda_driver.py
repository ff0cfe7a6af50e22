"""The calls of the CUDA driver that torch does not offer: memory outside of torch's allocator, and its handles.

Memory of torch's allocator cannot be shared if its segments are expandable, and its handles are of whole segments.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * HANDLE_BYTES),)


class CudaError(RuntimeError):
    """A call of the driver failed."""


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _memcpy() -> Any:
    """Declares the types of its arguments, so that calls can pass plain numbers: it is called for every payload."""
    function = _driver().cuMemcpyAsync
    function.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
    return function


def _call(name: str, *arguments: object) -> None:
    _check(name, _driver()[name](*arguments))


def _check(name: str, code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver()["cuGetErrorString"](code, ctypes.byref(text))
        raise CudaError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")


@contextmanager
def _on(device: int) -> Iterator[None]:
    """While entered, the driver's calls are for a device, in the context that torch uses."""
    context = ctypes.c_void_p()
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call("cuCtxPushCurrent_v2", context)
    try:
        yield
    finally:
        _call("cuCtxPopCurrent_v2", ctypes.byref(context))
        _call("cuDevicePrimaryCtxRelease_v2", device)


def allocate(device: int, nbytes: int) -> int:
    """The address of new memory. Raises CudaError."""
    pointer = ctypes.c_uint64()
    with _on(device):
        _call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
    return pointer.value


def free(device: int, pointer: int) -> None:
    with _on(device):
        _call("cuMemFree_v2", ctypes.c_uint64(pointer))


def export(device: int, pointer: int) -> bytes:
    """The handle of memory from `allocate`."""
    handle = _Handle()
    with _on(device):
        _call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(pointer))
    return ctypes.string_at(ctypes.byref(handle), HANDLE_BYTES)


def open_handle(device: int, handle: bytes) -> int:
    """The address, for work on `device`, of another process's memory. Raises CudaError."""
    pointer = ctypes.c_uint64()
    passed = _Handle.from_buffer_copy(handle)
    with _on(device):
        _call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), passed, ctypes.c_uint(_LAZY_PEER_ACCESS))
    return pointer.value


def close_handle(device: int, pointer: int) -> None:
    with _on(device):
        _call("cuIpcCloseMemHandle", ctypes.c_uint64(pointer))


def copy(into: Tensor, source: int, stream: int) -> None:
    """Enqueues a copy of `len(into)` bytes from an address, of this or another device, to `into` (uint8)."""
    _check("cuMemcpyAsync", _memcpy()(into.data_ptr(), source, len(into), stream))


class _CudaArray:
    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {"data": (pointer, False), "shape": (nbytes,), "typestr": "|u1", "version": 2}


def as_tensor(pointer: int, nbytes: int, device: torch.device) -> Tensor:
    """The memory at an address of `device`, uint8 `[nbytes]`. The tensor does not own it."""
    return torch.as_tensor(_CudaArray(pointer, nbytes), device=device)
