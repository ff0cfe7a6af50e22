"""Payloads of the checks. Each end makes the same values from a description, so none of them travels beside the connector.

A tensor is a view of a contiguous base with random bytes. The base is written and spoiled in phases, as a whole.
"""

import math

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device, Event, Stream
from omni.payload import PageSlice

DTYPES = (
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "bool",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "complex64",
    "complex128",
)
BLOCK = 16
"""Rows of a page."""


class TensorOf(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor.

    layout: `plain`; `strided` (every second column); `transposed`; `expanded` (rows share one memory); `overlapping` (row
    n + 1 begins at the second element of row n, shape `[n, 2]`); `pages`, a page slice of `[n, width]`.
    """

    name: str = "x"
    dtype: str = "float32"
    shape: tuple[int, ...] = (6, 3)
    layout: str = "plain"

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = vars(torch)[self.dtype]
        return dtype

    @property
    def base_shape(self) -> tuple[int, ...]:
        match self.layout:
            case "strided":
                return self.shape[0], 2 * self.shape[1]
            case "transposed":
                return self.shape[1], self.shape[0]
            case "expanded":
                return 1, self.shape[1]
            case "overlapping":
                return (self.shape[0] + 1,)
            case "pages":
                return -(-self.shape[0] // BLOCK) + 2, BLOCK, self.shape[1]
        return self.shape

    def view(self, base: Tensor) -> Tensor:
        match self.layout:
            case "strided":
                return base[:, ::2]
            case "transposed":
                return base.t()
            case "expanded":
                return base.expand(self.shape)
            case "overlapping":
                return base.as_strided(self.shape, (1, 1))
        return base

    def slots(self, place: int = 0) -> NDArray[np.int64]:
        """Slots of a page slice. place: how often its rows have moved."""
        blocks, block, _ = self.base_shape
        return np.random.default_rng([place, 7]).permutation(blocks * block)[: self.shape[0]].astype(np.int64)


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """Meta of the checks' payloads: all that is needed to make their tensors."""

    number: int
    tensors: tuple[TensorOf, ...] = ()
    text: str = ""

    def host_values(self, index: int) -> Tensor:
        """The base of a tensor that is not a page slice, or the gathered rows of one: contiguous, on the host."""
        tensor = self.tensors[index]
        shape = tensor.shape if tensor.layout == "pages" else tensor.base_shape
        raw = np.random.default_rng([self.number, index])
        data = np.frombuffer(bytearray(raw.bytes(math.prod(shape) * tensor.torch_dtype.itemsize)), np.uint8)
        if tensor.dtype == "bool":
            data &= 1
        # torch views no empty tensor as another type.
        empty = torch.empty(shape, dtype=tensor.torch_dtype)
        return torch.from_numpy(data).view(tensor.torch_dtype).view(shape) if data.size else empty

    def expected(self, index: int) -> NDArray[np.uint8]:
        """The bytes that the consumer reads."""
        return bytes_of(self.tensors[index].view(self.host_values(index))).numpy()


def bytes_of(tensor: Tensor) -> Tensor:
    """A copy of the tensor's elements, uint8 `[n]`, or a view of them."""
    if not tensor.numel():
        return torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return tensor.contiguous().reshape(-1).view(torch.uint8)


class Memory:
    """The producer's memory of one tensor.

    base: the present place; of a page slice, its pages.
    """

    def __init__(self, device: Device, stream: Stream, meta: Meta, index: int) -> None:
        self._device = device
        self._stream = stream
        self._values = meta.host_values(index)
        self._place = 0
        self.kind = meta.tensors[index]
        self.base = self._allocate()
        self.tensor: Tensor | WatchedSlice = (
            WatchedSlice(self.base, self.kind.slots()) if self.kind.layout == "pages" else self.kind.view(self.base)
        )

    def _allocate(self) -> Tensor:
        return self._device.empty(self.kind.base_shape, self.kind.torch_dtype, self._stream)

    def fill(self) -> None:
        """Writes the right values."""
        slots = self.kind.slots(self._place) if self.kind.layout == "pages" else None
        self._device.launch(self._stream, fill, self.base, self._values, slots)

    def spoil(self) -> None:
        """Writes other values than the right ones. Once per `fill`."""
        self.fill()
        self._device.launch(self._stream, spoil, self.base)

    def move(self) -> tuple[Tensor, NDArray[np.int64]]:
        """Allocates a new place for the rows of a page slice, which is not filled. Returns the new place."""
        self._place += 1
        self.base = self._allocate()
        return self.base, self.kind.slots(self._place)


class WatchedSlice(PageSlice):
    """reports: number of gathers that were reported."""

    __slots__ = ("reports",)

    def __init__(self, pages: Tensor, slots: NDArray[np.int64]) -> None:
        super().__init__(pages, slots)
        self.reports = 0

    def gathered(self, until: Event) -> None:
        self.reports += 1
        super().gathered(until)


def fill(base: Tensor, values: Tensor, slots: NDArray[np.int64] | None) -> None:
    if slots is None:
        base.copy_(values)
        return
    base.zero_()
    base.flatten(0, 1)[torch.from_numpy(slots).to(base.device)] = values.to(base.device)


def spoil(base: Tensor) -> None:
    if not base.numel():
        return
    if base.dtype is torch.bool:
        base.logical_not_()
    else:
        base.view(-1).view(torch.uint8).bitwise_not_()


def fetch(host: Tensor, tensor: Tensor | PageSlice) -> None:
    """Copies the bytes of a tensor, or of the rows of a page slice at their present place, to the host."""
    if isinstance(tensor, PageSlice):
        tensor = tensor.rows(torch.from_numpy(tensor.slots).to(tensor.pages.device))
    host.copy_(bytes_of(tensor))
