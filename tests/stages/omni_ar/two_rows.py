"""Two requests in one paged cache, fed in any pieces; and published weights of modules that keep some of them stacked.

Shape legend: T tokens.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from omni.checkpoint import stacked_destinations
from omni_ar.attention import AttentionMetadata, KVCache, PrefillRow

BLOCK = 4


class TwoRows:
    """The cache, and where the tokens of its rows lie. A row holds up to 16 tokens."""

    def __init__(self, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32) -> None:
        zeros = lambda shape, dtype: torch.zeros(shape, dtype=dtype)  # noqa: E731
        self.cache = KVCache.allocate(zeros, layers, 20, BLOCK, kv_heads, head_dim, dtype)
        self.tables = torch.tensor([[7, 3, 12, 5], [2, 9, 1, 14]])
        self.lengths = [0, 0]

    def place(self, pieces: Sequence[tuple[int, int, bool]]) -> tuple[Tensor, AttentionMetadata]:
        """pieces: the next tokens, as (row, number, whether it is a decode), decodes first. Returns their positions `[T]` and the
        batch's metadata."""
        decodes = [row for row, _, is_decode in pieces if is_decode]
        positions: list[Tensor] = []
        slots, prefills = [], []
        for row, count, is_decode in pieces:
            position = self.lengths[row] + torch.arange(count)
            slots.append(self.tables[row][position // BLOCK] * BLOCK + position % BLOCK)
            if not is_decode:
                start = sum(len(p) for p in positions)
                prefills.append(PrefillRow(start, count, self.lengths[row], self.tables[row]))
            positions.append(position)
            self.lengths[row] += count
        lengths = [self.lengths[row] for row in decodes]
        table, longest = self.tables[decodes], max(lengths, default=0)
        meta = AttentionMetadata(torch.cat(slots), len(decodes), table, torch.tensor(lengths), longest, tuple(prefills))
        return torch.cat(positions), meta


def load_published(module: nn.Module, published: Mapping[str, Tensor]) -> None:
    """Fills all parameters of `module` from those of the published module, which has each matrix on its own."""
    stacked = stacked_destinations(module)
    targets = dict(module.named_parameters())
    filled = dict.fromkeys(targets, 0)
    with torch.no_grad():
        for name, weight in published.items():
            parameter, index = (stacked[name].parameter, stacked[name].index) if name in stacked else (name, ())
            targets[parameter][index].copy_(weight)
            filled[parameter] += weight.numel()
    assert filled == {name: target.numel() for name, target in targets.items()}
