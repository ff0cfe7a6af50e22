"""Structs to bytes and back: msgpack, with arrays and tensors as raw bytes in the message or in shared memory."""

import mmap
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Generic, TypeVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from omni.errors import error_text
from omni.ipc.memory import OutputRing, aligned, create_memory, map_memory
from omni.utils.struct_types import STRUCT_TYPES

_ARRAY, _TENSOR, _STRUCT = 1, 2, 3
"""Codes of msgpack extension types."""

INLINE_BYTES = 4096
"""Arrays up to this size travel inside the message: copying them costs less than a mapping."""

MessageT = TypeVar("MessageT")
StructT = TypeVar("StructT", bound=msgspec.Struct)


class Typed(Generic[StructT]):
    """A struct that is sent with the name of its type, for fields that hold structs of plugins. The type must be an attribute of
    a module that the other process can import."""

    __slots__ = ("value",)

    def __init__(self, value: StructT) -> None:
        self.value = value


class _Array(msgspec.Struct, frozen=True, array_like=True):
    """dtype: numpy's or torch's name. One of: data, the bytes; offset into the message's memory; position in the ring."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes = b""
    offset: int | None = None
    position: int | None = None


class _Struct(msgspec.Struct, frozen=True, array_like=True):
    module: str
    name: str
    body: msgspec.Raw


@dataclass(slots=True)
class _Memory:
    """Arrays of one message that go to shared memory, with their offsets."""

    arrays: list[tuple[int, NDArray[np.uint8]]] = field(default_factory=list)
    size: int = 0

    def add(self, data: NDArray[np.uint8]) -> int:
        offset = self.size
        self.arrays.append((offset, data))
        self.size += aligned(len(data))
        return offset

    def create(self) -> int:
        descriptor, mapping = create_memory(self.size, "omni-message")
        shared = np.frombuffer(mapping, np.uint8)
        for offset, data in self.arrays:
            shared[offset : offset + len(data)] = data
        return descriptor


class Codec(Generic[MessageT]):
    """Encodes and decodes the messages of a channel.

    messages: the union of their types. ring: shared memory for large arrays of one direction, written by the process that encodes
    them and read by the other; None without one. Arrays of all other messages, and those that do not fit now, get memory of their
    own.

    Decoded arrays and tensors are writable. Arrays in the message's own memory share it, and free it with the last of them.

    `encode` and `decode` are for one thread at a time each.
    """

    def __init__(
        self, messages: object, ring: OutputRing | None = None, inline_bytes: int | None = INLINE_BYTES
    ) -> None:
        """inline_bytes: arrays up to this size travel inside the message; None: all."""
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._encode_object)
        with STRUCT_TYPES:
            self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(
                messages, ext_hook=self._decode_extension, dec_hook=_already_made
            )
        self.ring = ring
        self._inline_bytes = inline_bytes
        self._memory = _Memory()
        self._mapping: mmap.mmap | None = None
        self._struct_decoder = cache(self._make_decoder)

    def encode(self, message: MessageT) -> tuple[bytes, int | None]:
        """The message's bytes, and a descriptor of its memory, which the caller closes.

        Raises TypeError for values that cannot be sent, such as tensors of a GPU.
        """
        try:
            body = self._encoder.encode(message)
            return body, self._memory.create() if self._memory.arrays else None
        finally:
            self._memory = _Memory()  # it holds arrays

    def decode(self, body: bytes, memory: int | None) -> MessageT:
        """Returns the message. memory: the descriptor of its shared memory, which is closed here."""
        self._mapping = map_memory(memory) if memory is not None else None
        try:
            return self._decoder.decode(body)
        finally:
            self._mapping = None

    def _encode_object(self, value: object) -> object:
        match value:
            case np.ndarray():
                return self._extension(_ARRAY, value.dtype.str, value.shape, _bytes_of(value))
            case np.generic():
                return value.item()
            case torch.Tensor():
                if value.device.type != "cpu":
                    raise TypeError(f"a tensor on {value.device} cannot be sent to another process: move it to the CPU")
                name = str(value.dtype).removeprefix("torch.")
                # torch views no empty tensor as another type.
                flat = value.detach().contiguous().reshape(-1) if value.numel() else torch.empty(0, dtype=torch.uint8)
                return self._extension(_TENSOR, name, tuple(value.shape), flat.view(torch.uint8).numpy())
            case Typed():
                return self._encode_struct(value.value)
        raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__} cannot be sent to another process")

    def _extension(self, code: int, dtype: str, shape: tuple[int, ...], data: NDArray[np.uint8]) -> msgspec.msgpack.Ext:
        array = _Array(dtype, shape)
        if self._inline_bytes is None or len(data) <= self._inline_bytes:
            array = _Array(dtype, shape, data.tobytes())
        elif self.ring is not None and (position := self.ring.write(data)) is not None:
            array = _Array(dtype, shape, position=position)
        else:
            array = _Array(dtype, shape, offset=self._memory.add(data))
        return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(array))

    def _encode_struct(self, value: msgspec.Struct) -> msgspec.msgpack.Ext:
        kind = type(value)
        if "<" in kind.__qualname__ or kind.__module__ == "__main__":
            problem = f"{kind.__module__}.{kind.__qualname__} cannot be imported by another process"
            raise TypeError(f"{problem}: define it at the top of a module")
        body = msgspec.Raw(self._encoder.encode(value))
        return msgspec.msgpack.Ext(_STRUCT, msgspec.msgpack.encode(_Struct(kind.__module__, kind.__qualname__, body)))

    def _decode_extension(self, code: int, data: memoryview) -> object:
        if code == _STRUCT:
            struct = _STRUCTS.decode(data)
            try:
                return Typed(self._struct_decoder(struct.module, struct.name).decode(struct.body))
            except Exception as error:
                raise TypeError(f"a {struct.module}.{struct.name} cannot be received: {error_text(error)}") from error
        array = _ARRAYS.decode(data)
        raw = self._raw(array, code == _TENSOR)
        if code == _ARRAY:
            return raw.view(np.dtype(array.dtype)).reshape(array.shape)
        dtype = getattr(torch, array.dtype)
        return (
            torch.from_numpy(raw).view(dtype).reshape(array.shape)
            if len(raw)
            else torch.empty(array.shape, dtype=dtype)
        )

    def _raw(self, array: _Array, tensor: bool) -> NDArray[np.uint8]:
        dtype = torch.empty(0, dtype=getattr(torch, array.dtype)) if tensor else np.dtype(array.dtype)
        size = int(np.prod(array.shape, dtype=np.int64)) * int(dtype.itemsize)
        if array.position is not None:
            assert self.ring is not None
            return self.ring.read(array.position, size)
        if array.offset is not None:
            if self._mapping is None:
                raise ValueError("the memory of the message is missing")
            return np.frombuffer(self._mapping, np.uint8, size, array.offset)
        return np.frombuffer(bytearray(array.data), np.uint8)

    def _make_decoder(self, module: str, name: str) -> "msgspec.msgpack.Decoder[msgspec.Struct]":
        kind: object = import_module(module)
        for part in name.split("."):
            kind = vars(kind)[part]
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            raise TypeError(f"{module}:{name} is not a msgspec.Struct")
        with STRUCT_TYPES:
            return msgspec.msgpack.Decoder(kind, ext_hook=self._decode_extension, dec_hook=_already_made)


_ARRAYS = msgspec.msgpack.Decoder(_Array)
_STRUCTS = msgspec.msgpack.Decoder(_Struct)


def _bytes_of(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Raises TypeError for arrays of Python objects."""
    if array.dtype.hasobject:
        raise TypeError("an array of Python objects cannot be sent to another process")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _already_made(kind: type, value: object) -> object:
    """Decodes fields of types that msgspec does not know: `_decode_extension` has made the value."""
    return value
