"""What a stage takes of its device's memory."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of device memory, and the pages (KV blocks, or whatever a kind has as many of as there is room for).

    weights: parameters and buffers. fixed: what the stage allocates besides, however many pages it gets.
    page_bytes: of one page; 0 for a kind without pages. fewest_pages: with fewer, a request of full length could not run.
    most_pages: more would never be used; at least `fewest_pages`. chosen_pages: as many as the user asked for, or None.
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
