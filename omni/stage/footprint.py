"""A stage's demand for device memory."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of device memory, and the range of pages (KV blocks, or another unit of which a kind holds as many as fit).

    weights: parameters and buffers. fixed: other allocations, independent of the number of pages.
    page_bytes: of one page; 0 for a kind without pages. fewest_pages: the minimum for a request of full length.
    most_pages: the maximum that the stage can use; at least `fewest_pages`. chosen_pages: the user's number, or None.
    """

    weights: int = 0
    fixed: int = 0
    page_bytes: int = 0
    fewest_pages: int = 0
    most_pages: int = 0
    chosen_pages: int | None = None


def module_bytes(module: nn.Module) -> int:
    """Bytes of a module's parameters and buffers, tied ones counted once."""
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return sum(tensor.nbytes for tensor in tensors.values())
