"""Allocation of rows and blocks to requests, sharing through the prefix cache, and preemption."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from omni_ar.run.blocks.pool import BlockPool, BlockTable, PrefixKeys
from omni_ar.run.blocks.reclaim import Reclaimer, Spiller
from omni_ar.run.limits import Limits
from omni_ar.run.plan import NewBlock, PrefillChunk, StepPlan
from omni_ar.run.request import ArRequest, Row

Failure = tuple[str, str, Exception]
"""A request's id, the failed activity, and the error."""

MOVING = "moving its payload"


class RowTable:
    """Allocates rows. A request keeps its row from its first start to its end."""

    def __init__(self, num_rows: int) -> None:
        self._free = list(range(num_rows - 1, -1, -1))
        self._generations = [0] * num_rows

    @property
    def used(self) -> int:
        return len(self._generations) - len(self._free)

    @property
    def available(self) -> int:
        return len(self._free)

    def allocate(self) -> Row:
        index = self._free.pop()
        return Row(index, self._generations[index])

    def release(self, row: Row) -> None:
        """Frees the row for another request. Steps in flight may still write its state; the next owner's first step sets it up."""
        self._generations[row.index] += 1
        self._free.append(row.index)


class Allocator:
    """Allocates rows and blocks, and preempts requests. The scheduler decides which requests, and when."""

    def __init__(
        self,
        rows: RowTable,
        pool: BlockPool,
        reclaimer: Reclaimer,
        spiller: Spiller,
        *,
        limits: Limits,
        code_pages: Tensor | None,
        prefix_cache: bool,
        conditioned: bool,
        paged_drafts: bool = False,
        looks_ahead: bool = False,
    ) -> None:
        """conditioned: whether decode steps have inputs besides the token. paged_drafts: whether a drafter has keys and values of
        its own. looks_ahead: whether those of a token depend on the next token too (`PagedDrafter.feature_shape`)."""
        self.prompt_tokens = self.cached_tokens = self.preemptions = 0
        """Totals since start: tokens, and preemptions of requests."""
        self.failures: list[Failure] = []
        """Requests that cannot continue, for the worker to report."""
        self._refused: tuple[str, int, int, int] | None = None
        self._rows = rows
        self._pool = pool
        self._reclaimer = reclaimer
        self._spiller = spiller
        self._size = limits.block_size
        self._max_blocks = limits.max_blocks
        self._code_pages = code_pages
        self._prefix_cache = prefix_cache
        self._caches_outputs = not conditioned and code_pages is None
        # The frame that a token begins is stored in the token's slot before the token itself is in the KV cache.
        self._extra_slots = 0 if code_pages is None else 1
        self._drafts = limits.drafts
        self._drafts_late = limits.drafts_late
        # Late drafts of a row's next step are made before the host allocates that step's blocks.
        self._late_draft_tokens = limits.drafts if paged_drafts and limits.drafts_late else 0
        self._paged_drafts = paged_drafts
        self._looks_ahead = looks_ahead

    @property
    def capacity(self) -> int:
        return self._pool.capacity

    @property
    def rows_left(self) -> int:
        return self._rows.available

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._size)

    def allocate(self, request: ArRequest, victims: Sequence[ArRequest], headroom: int) -> bool:
        """Gives a request its row, and blocks for all tokens up to the next one it samples. Returns whether they were available.
        headroom: blocks to leave for others. victims: requests that may be preempted for it, in that order."""
        state = (request.id, self._pool.available, self._pool.cached, headroom)
        if (state == self._refused and not victims) or (request.row is None and not self._rows.available):
            return False
        shared = self._match(request)
        tokens = request.prefill_end + self._extra_slots
        if self._late_draft_tokens:
            tokens = min(tokens + self._late_draft_tokens, request.length + request.max_tokens)
        need = self.blocks_for(tokens) - len(shared)
        if not self._ensure_available(need, victims, headroom):
            self._pool.release(shared)
            # Avoids hashing and matching a long prompt again until the state has changed.
            self._refused = None if victims or self._reclaimer.waiting else state
            return False
        request.row = request.row or self._rows.allocate()
        request.table = BlockTable.of(request.id, shared + self._pool.allocate(need), self._max_blocks)
        request.num_computed_tokens = len(shared) * self._size
        request.published_blocks = len(shared)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = request.num_computed_tokens
            self.prompt_tokens += request.length
            self.cached_tokens += request.num_computed_tokens
        return True

    def extend(self, request: ArRequest, victims: Sequence[ArRequest]) -> tuple[NewBlock, ...] | None:
        """Allocates blocks for the request's next decode step, drafts included. Returns None if they are not available."""
        table = request.held_table
        tokens = request.num_computed_tokens + 1 + self._extra_slots
        if self._drafts:
            # Drafts beyond the limit are not verified, although the upper bound counts more tokens in flight.
            tokens = min(tokens + self._drafts + self._late_draft_tokens, request.length + request.max_tokens)
        need = self.blocks_for(tokens) - table.count
        if need <= 0:
            return ()
        if not self._ensure_available(need, victims, 0):
            return None
        first = table.count
        for block in self._pool.allocate(need):
            table.append(block)
        return tuple(NewBlock(request, index) for index in range(first, table.count))

    def extend_early(self, requests: Sequence[ArRequest]) -> list[NewBlock]:
        """Allocates a block for each request that will need one soon, while blank blocks are plentiful. A new block is the only
        upload of a steady decode step: allocating many together leaves one such step instead of many."""
        new_blocks: list[NewBlock] = []
        for request in requests if self._pool.blank >= 2 * len(requests) else ():
            table = request.held_table
            soon = min(request.num_computed_tokens + self._size, request.length + request.max_tokens)
            if self.blocks_for(soon) > table.count:
                table.append(self._pool.allocate(1)[0])
                new_blocks.append(NewBlock(request, table.count - 1))
        return new_blocks

    def preempt(self, request: ArRequest) -> bool:
        """Takes the request's blocks; it will run again from its beginning. Returns False if that is not possible now. Its steps in
        flight continue in the old blocks, which are free after them. A request whose frames cannot be saved joins `failures`."""
        table = request.held_table
        if self._code_pages is not None and request.num_scheduled_outputs and request.saved_codes is None:
            if not self._spiller.ready:
                return False
            # Includes the tokens in flight: the host reads them before the request starts again.
            positions = request.length + np.arange(request.num_scheduled_outputs)
            try:
                request.saved_codes = self._spiller.save(self._code_pages, table.slots(positions, self._size))
            except Exception as error:
                self.failures.append((request.id, MOVING, error))
        request.reset_for_recompute()
        self._reclaimer.add_table(table)
        self.preemptions += 1
        return True

    def launched(self, plan: StepPlan) -> None:
        """The plan's step is on the device: later steps on the stream may share the blocks that it fills."""
        for chunk in plan.prompts:
            self._note_hidden(chunk)
        if self._prefix_cache:
            if self._paged_drafts and not plan.runs_drafter(self._drafts_late):
                _note_gap(plan.decodes)
            for request in plan.requests:
                tokens, limit = request.num_computed_tokens, request.drafter_tokens
                if (tokens if limit is None else min(tokens, limit)) // self._size <= request.published_blocks:
                    continue  # no new full block, as in most steps
                try:
                    self._publish(request)
                except Exception as error:
                    self.failures.append((request.id, "caching its prefix", error))

    def _match(self, request: ArRequest) -> list[int]:
        if not self._prefix_cache or request.scores_prompt:
            return []  # cached positions are not run, so they have no log-probabilities
        # The newest token always runs: the next one is sampled from its hidden state.
        keys = self._keys(request, (request.prefill_end - 1) // self._size)
        return self._pool.match(keys, request.payload_offsets(len(keys), self._size))

    def _keys(self, request: ArRequest, count: int) -> list[bytes]:
        assert request.prompt is not None
        if request.keys is None:
            request.keys = PrefixKeys(request.prompt, request.cache_salt, self._size, outputs=self._caches_outputs)
        keys = request.keys.first(count, request.outputs)
        if not self._looks_ahead:
            return keys
        ids, length, outputs = request.prompt.columns[0], request.length, request.outputs
        ends = range(self._size, self._size * (len(keys) + 1), self._size)
        behind = [int(ids[end] if end < length else outputs[end - length]) for end in ends]
        return [key + token.to_bytes(8, "little", signed=True) for key, token in zip(keys, behind, strict=True)]

    def _ensure_available(self, need: int, victims: Sequence[ArRequest], headroom: int) -> bool:
        if self._pool.available >= need + headroom:
            return True
        tables = [*self._reclaimer.tables, *(victim.held_table for victim in victims)]
        if self._pool.available + self._pool.sole(table.blocks for table in tables) < need + headroom:
            return False
        left = list(reversed(victims))
        while self._pool.available < need + headroom:
            if self._reclaimer.progressing:
                return False  # blocks will become free without a preemption
            moved, failures = self._reclaimer.spill_unreleased()
            self.failures += [(owner, MOVING, error) for owner, error in failures]
            if moved:
                continue
            if not left or not self.preempt(left.pop()):
                return False
        return True

    def _note_hidden(self, chunk: PrefillChunk) -> None:
        request = chunk.request
        if not request.wants_hidden:
            return
        assert request.prompt is not None
        positions = request.prompt.payload_positions
        first, last = np.searchsorted(positions, (chunk.start, chunk.start + chunk.length))
        for position in positions[first:last].tolist():
            self._pool.store(int(request.held_table.ids[position // self._size]), 1 << position % self._size)

    def _publish(self, request: ArRequest) -> None:
        known = min(request.num_computed_tokens, request.length + len(request.outputs))
        full = known - self._looks_ahead
        if request.drafter_tokens is not None:
            # Drafts of others that share later blocks would be made of what their earlier owners left.
            full = min(full, request.drafter_tokens)
        full //= self._size
        if full <= request.published_blocks:
            return
        keys = self._keys(request, full)
        for index in range(request.published_blocks, len(keys)):
            self._pool.cache(int(request.held_table.ids[index]), keys[index])
        request.published_blocks = full


def _note_gap(decodes: Sequence[ArRequest]) -> None:
    """Of rows whose newest token was run without the drafter. Before that token, the drafter has not run the last of several
    accepted drafts, and a head has lost the features that its next pass would have begun with."""
    for request in decodes:
        if request.drafter_tokens is None:
            request.drafter_tokens = request.length + request.num_scheduled_outputs - 3
