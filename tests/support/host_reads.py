"""What is copied from a device to the host."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_COPIES = {"copy_": 1, "_to_copy": 0, "to": 0}
"""By name, which argument is the source. Other operators work on one device."""


class HostReads(TorchDispatchMode):
    """While entered, remembers the sources of all copies from the device to the host, of this thread. Where graphs are captured, it
    is entered before.

    Where the CPU stands in for the device, host memory is what numpy shares, as it does that of a `HostSlot`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sources: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import its compiler only to keep away from this class.
        return False

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        made = func(*args, **(kwargs or {}))
        place = _COPIES.get(func.overloadpacket.__name__)
        if place is not None and _to_host(args[place], made):
            self.sources.append(args[place])
        return made

    def saw(self, tensor: Tensor) -> bool:
        """Whether anything of the tensor's storage was copied."""
        place = tensor.untyped_storage().data_ptr()
        return any(source.untyped_storage().data_ptr() == place for source in self.sources)

    def floats(self, width: int) -> list[Tensor]:
        """Sources of numbers in rows of this width."""
        return [source for source in self.sources if source.is_floating_point() and source.shape[-1:] == (width,)]


def _to_host(source: Tensor, target: Tensor) -> bool:
    if source.is_cuda or target.is_cuda:
        return source.is_cuda and target.is_cpu
    return source.untyped_storage().resizable() and not target.untyped_storage().resizable()
