"""Rows of a paged cache whose keys and values are known, and attention over them by brute force in float64.

Shape legend: T tokens, Q query tokens of one row, L keys, H query heads, K key and value heads, D head width.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from omni_ar.attention import AttentionFeatures, AttentionMetadata, KVCache, PrefillRow

LAYERS, LAYER = 2, 1
PLAIN = AttentionFeatures()


class PagedRows:
    """A cache of noise, and rows whose true keys and values are kept beside it in order."""

    def __init__(
        self, seed, kv_heads=2, group=3, head_dim=8, block_size=4, blocks=64, dtype=torch.float32, device="cpu"
    ):
        self.generator = torch.Generator(device).manual_seed(seed)
        self.kv_heads, self.heads, self.head_dim = kv_heads, kv_heads * group, head_dim
        self.block_size, self.dtype, self.device = block_size, dtype, device
        allocate = lambda shape, dtype: self.random(*shape).to(dtype)  # noqa: E731
        self.cache = KVCache.allocate(allocate, LAYERS, blocks, block_size, kv_heads, head_dim, dtype)
        self.free = (torch.randperm(blocks - 1, generator=self.generator, device=device) + 1).tolist()

    def random(self, *shape):
        return torch.randn(shape, generator=self.generator, device=self.device)

    def integers(self, values):
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def take_row(self, length):
        """A block table for `length` keys, a slot for each, and the keys and values `[2, length, K, D]`."""
        table = [self.free.pop() for _ in range(-(-length // self.block_size))]
        position = torch.arange(length, device=self.device)
        slots = self.integers(table)[position // self.block_size] * self.block_size + position % self.block_size
        return table, slots, self.random(2, length, self.kv_heads, self.head_dim).to(self.dtype)

    def write(self, slots, kv):
        self.cache.write(LAYER, kv[0], kv[1], slots)

    def queries(self, tokens):
        return self.random(tokens, self.heads, self.head_dim).to(self.dtype)

    def features(self, names: str, window: int = 5) -> AttentionFeatures:
        """Features by their names, with values that change every result."""
        made = {
            # Twice the default at any width: fp32 rounds larger scores by more than the results may differ.
            "scale": 2 * self.head_dim**-0.5,
            "softcap": 1.5,
            "alibi_slopes": torch.rand(self.heads, generator=self.generator, device=self.device) * 0.2,
            "window": window,
            "sinks": self.random(self.heads).to(self.dtype) + 1,
        }
        return AttentionFeatures(**{name: made[name] for name in names.split()})

    def poison(self, kept_slots: Sequence[Tensor]) -> None:
        """Makes everything NaN but what stands in these slots."""
        kept = torch.cat(list(kept_slots))
        for pages in (self.cache.key, self.cache.value):
            flat = pages[LAYER].flatten(0, 1)
            values = flat[kept].clone()
            flat.fill_(float("nan"))
            flat[kept] = values


def dense(q_QHD: Tensor, kv: Tensor, context: int, features: AttentionFeatures = PLAIN) -> Tensor:
    """Query i attends to keys 0 to context + i, or as many as the window holds. In float64."""
    q, (keys, values) = q_QHD.double(), kv.double()
    scale = q.shape[2] ** -0.5 if features.scale is None else features.scale
    by_key_head = (-1, q.shape[1] // keys.shape[1], 1, 1)
    scores = torch.einsum("qkgd,lkd->kgql", q.unflatten(1, by_key_head[:2]), keys) * scale
    position_L = torch.arange(keys.shape[0], device=q.device)
    position_Q1 = context + torch.arange(q.shape[0], device=q.device)[:, None]
    seen_QL = position_L <= position_Q1
    if features.softcap is not None:
        scores = torch.tanh(scores / features.softcap) * features.softcap
    if features.alibi_slopes is not None:
        scores = scores - features.alibi_slopes.double().view(by_key_head) * (position_Q1 - position_L)
    if features.window is not None:
        seen_QL &= position_L + features.window > position_Q1
    weights = torch.exp(scores).masked_fill(~seen_QL, 0.0)
    total = weights.sum(-1, keepdim=True)
    if features.sinks is not None:
        total = total + torch.exp(features.sinks.double()).view(by_key_head)
    return torch.einsum("kgql,lkd->qkgd", weights / total, values).flatten(1, 2)


def mixed_batch(
    world: PagedRows,
    decode_lengths: Sequence[int],
    prefills: Sequence[tuple[int, int]],
    *,
    spare_columns: int = 0,
    spare: tuple[int, int] | None = None,
    poison: Callable[[Sequence[Tensor]], None] | None = None,
    features: AttentionFeatures = PLAIN,
) -> tuple[Tensor, AttentionMetadata, Tensor]:
    """Writes one batch into the cache. prefills: (context, query) lengths. Returns queries, metadata and the expected result.

    poison: called with the slots of all rows. With a window, the slots that it has left are not among them.

    Rows of length 0 have a null block table, as those have that pad a batch. spare: further prefill rows and tokens that a captured
    batch is padded to; None if it is not captured.
    """
    spare_rows, spare_tokens = spare or (0, 0)
    decodes = [world.take_row(length) for length in decode_lengths]
    prompts = [world.take_row(context + query) for context, query in prefills]
    written = [(slots, kv) for _, slots, kv in decodes + prompts]
    for slots, kv in written:
        world.write(slots, kv)
    if poison is not None:
        ends = [*decode_lengths, *(context + 1 for context, _ in prefills)]
        kept = [max(end - features.window, 0) if features.window is not None else 0 for end in ends]
        poison([slots[begin:] for (slots, _), begin in zip(written, kept, strict=True)])
    columns = max((len(table) for table, _, _ in decodes + prompts), default=0) + spare_columns
    tables = [table + [0] * (columns - len(table)) for table, _, _ in prompts + decodes]
    table_NM = world.integers(tables).view(len(tables), columns)
    rows, start = [], len(decodes)
    for index, (context, query) in enumerate(prefills):
        rows.append(PrefillRow(start, query, context, table_NM[index]))
        start += query
    slots_T = [slots[-1:] if len(slots) else world.integers([0]) for _, slots, _ in decodes]
    slots_T += [slots[context:] for (_, slots, _), (context, _) in zip(prompts, prefills, strict=True)]
    slots_T.append(world.integers([0] * spare_tokens))
    meta = AttentionMetadata(
        slots_T=torch.cat(slots_T),
        num_decode=len(decodes),
        decode_block_table_RM=table_NM[len(prompts) :],
        decode_lengths_R=world.integers(list(decode_lengths)),
        decode_max_length=max(decode_lengths, default=0) + spare_columns * world.block_size,
        prefills=tuple(rows) if spare is None else (),
        block_table_NM=table_NM,
        prefill_rows_P4=world.integers(
            [[i, row.start, row.query_length, row.context_length] for i, row in enumerate(rows)]
            + [[0] * 4] * spare_rows
        ).view(-1, 4),
    )
    q = torch.cat([world.queries(start), world.queries(spare_tokens) * float("nan")])
    expected = [
        dense(q[i : i + 1], kv, len(slots) - 1, features)
        if len(slots)
        else torch.zeros_like(q[i : i + 1], dtype=torch.float64)
        for i, (_, slots, kv) in enumerate(decodes)
    ]
    expected += [
        dense(q[row.start : row.start + row.query_length], kv, row.context_length, features)
        for row, (_, _, kv) in zip(rows, prompts, strict=True)
    ]
    expected.append(torch.zeros(spare_tokens, *q.shape[1:], dtype=torch.float64, device=q.device))
    return q, meta, torch.cat(expected)


def positions_batch(
    world: PagedRows,
    lengths_RJ: Sequence[Sequence[int]],
    *,
    poison: Callable[[Sequence[Tensor]], None] | None = None,
    features: AttentionFeatures = PLAIN,
) -> tuple[Tensor, AttentionMetadata, Tensor]:
    """Writes a batch of rows with several positions each into the cache: their lengths, 0 for padding. The tables of all positions
    but the first are out of range."""
    rows, positions = [world.take_row(max(lengths)) for lengths in lengths_RJ], len(lengths_RJ[0])
    for _, slots, kv in rows:
        world.write(slots, kv)
    if poison is not None:
        # What the windows of all positions have left is not among them.
        shortest = [min(filter(None, lengths), default=0) for lengths in lengths_RJ]
        kept = [max(length - features.window, 0) if features.window is not None else 0 for length in shortest]
        poison([slots[begin:] for (_, slots, _), begin in zip(rows, kept, strict=True)])
    columns = max(len(table) for table, _, _ in rows)
    tables = [
        table + [0] * (columns - len(table)) if position == 0 else [2**40] * columns
        for table, _, _ in rows
        for position in range(positions)
    ]
    lengths = [length for row in lengths_RJ for length in row]
    meta = AttentionMetadata(
        slots_T=world.integers([0] * len(lengths)),
        num_decode=len(lengths),
        decode_block_table_RM=world.integers(tables),
        decode_lengths_R=world.integers(lengths),
        decode_max_length=max(lengths),
        decode_positions=positions,
    )
    q = world.queries(len(lengths))
    expected = [
        dense(q[i : i + 1], rows[i // positions][2][:, :length], length - 1, features)
        if length
        else torch.zeros_like(q[i : i + 1], dtype=torch.float64)
        for i, length in enumerate(lengths)
    ]
    return q, meta, torch.cat(expected)


TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def check_attention(ours: Tensor, expected: Tensor) -> None:
    """Within the rounding of the result, and close in all: one wrong key would show."""
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=tolerance)
    if expected.any():
        assert (ours - expected).norm() / expected.norm() < tolerance / 2
