"""The phases of a step: functions over preallocated buffers, launched in this order. None of them synchronizes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omni_ar.model import ArModel, Batch, CodecModel, NextTokens, PromptTokens
from omni_ar.run.state import FULL, RUNNING, STOPPED, RowState, StepBuffers
from omni_ar.sampling import SamplingFlags, gumbel, sample, warp


@dataclass(frozen=True, slots=True)
class Start:
    """Rows that begin, or begin again, packed. ints_nK: columns as in `START_INTS`; floats_nK: float64 bits, as in `START_FLOATS`.

    seen_2k, suppressed_2k: (row, id) pairs.
    """

    ints_nK: Tensor
    floats_nK: Tensor
    stops_nS: Tensor
    table_nM: Tensor
    seen_2k: Tensor
    suppressed_2k: Tensor


START_INTS = ("row", "position_delta", "num_outputs", "limit", "top_k", "seed", "sample_index")
START_FLOATS = ("temperature", "top_p", "penalty")


def start_rows(state: RowState, new: Start) -> None:
    """Sets up the state of rows, as it is before their first chunk."""
    rows, delta, num_outputs, limit, top_k, seed, sample_index = new.ints_nK.unbind(1)
    temperature, top_p, penalty = new.floats_nK.view(torch.float64).unbind(1)
    sampling = state.sampling
    for values, column in (
        (state.position_delta, delta),
        (state.num_outputs, num_outputs),
        (state.limits, limit),
        (state.stop_ids, new.stops_nS),
        (state.block_table, new.table_nM),
        (sampling.top_k, top_k),
        (sampling.seed, seed),
        (sampling.sample_index, sample_index),
        (sampling.temperature, temperature),
        (sampling.top_p, top_p),
        (sampling.penalty, penalty),
    ):
        values.index_copy_(0, rows, column.to(values.dtype))
    for cleared in (state.lengths, sampling.seen, sampling.suppressed):
        cleared.index_fill_(0, rows, 0)
    state.active.index_fill_(0, rows, True)
    sampling.seen.index_put_((new.seen_2k[0], new.seen_2k[1]), state.true)
    sampling.suppressed.index_put_((new.suppressed_2k[0], new.suppressed_2k[1]), state.true)


def extend_tables(block_table: Tensor, grown_2k: Tensor) -> None:
    """Adds blocks to rows' tables. grown_2k: place in the flattened table, block."""
    block_table.view(-1).index_copy_(0, grown_2k[0], grown_2k[1])


def prepare_decodes(state: RowState, rows_R: Tensor, block_size: int, out: StepBuffers, max_blocks: int) -> None:
    """Inputs of decode rows, from device state alone: token, position, slot, keys to attend."""
    count = rows_R.shape[0]
    kept = state.lengths.index_select(0, rows_R)
    table = state.block_table.index_select(0, rows_R)
    block = table.gather(1, (kept // block_size)[:, None]).squeeze(1)
    # A stopped row writes to the null block's slots.
    slots = (block * block_size + kept % block_size) * state.active.index_select(0, rows_R)
    out.codes_ND[:count].copy_(state.next_codes.index_select(0, rows_R))
    out.ids_N[:count].copy_(state.last_sampled.index_select(0, rows_R))
    out.lengths_N[:count].copy_(kept + 1)
    out.table_NM[:count, :max_blocks].copy_(table[:, :max_blocks])
    out.slots_T[:count].copy_(slots)
    out.positions_PT[:, :count].copy_(kept + state.position_delta.index_select(0, rows_R))


def place_chunks(positions_PT: Tensor, slots_T: Tensor, chunk_positions_PT: Tensor, chunk_slots_T: Tensor) -> None:
    """Appends the chunks' positions and slots to the decode rows'."""
    positions_PT.copy_(chunk_positions_PT)
    slots_T.copy_(chunk_slots_T)


def restore_frames(
    model: CodecModel, saved: Sequence[Tensor], slots_n: Tensor, code_pages: Tensor, next_nD: Tensor
) -> None:
    """Puts the frames of replayed tokens back into the tokens' page slots, and makes their part of the input embeddings."""
    codes_nG = torch.cat(list(saved))
    code_pages.flatten(0, 1).index_copy_(0, slots_n, codes_nG)
    next_nD.copy_(model.embed_codes(codes_nG))


def run_forward(
    model: ArModel,
    nexts: Sequence[NextTokens],
    prompts: PromptTokens | None,
    batch: Batch,
    last_R: Tensor,
    hidden_RD: Tensor,
) -> None:
    """Embeds the batch, runs the backbone and keeps the hidden state of each sampled row's last token."""
    parts = [model.embed_next(tokens) for tokens in nexts]
    if prompts is not None:
        parts.append(model.embed_prompt(prompts))
    hidden_TD = model(parts[0] if len(parts) == 1 else torch.cat(parts), batch)
    torch.index_select(hidden_TD, 0, last_R, out=hidden_RD)


def compute_logits(model: ArModel, hidden_RD: Tensor, logits_RV: Tensor) -> None:
    logits_RV.copy_(model.logits(hidden_RD))


def sample_rows(state: RowState, logits_RV: Tensor, rows_R: Tensor, flags: SamplingFlags, handoff_R2: Tensor) -> None:
    """Samples a token per row, evaluates stops, and leaves both where the next step and the token copy find them."""
    position_R = state.num_outputs.index_select(0, rows_R)
    ids_R = sample(logits_RV, state.sampling, rows_R, position_R, flags)
    outputs_R = position_R + 1
    stopped_R = (state.stop_ids.index_select(0, rows_R) == ids_R[:, None]).any(1)
    full_R = outputs_R >= state.limits.index_select(0, rows_R)
    status_R = torch.where(stopped_R, STOPPED, torch.where(full_R, FULL, RUNNING))
    state.last_sampled.index_copy_(0, rows_R, ids_R)
    state.num_outputs.index_copy_(0, rows_R, outputs_R)
    state.active.index_copy_(0, rows_R, (status_R == RUNNING) & state.active.index_select(0, rows_R))
    handoff_R2[:, 0].copy_(ids_R)
    handoff_R2[:, 1].copy_(status_R)
    if flags.any_penalty:
        state.sampling.seen.index_put_((rows_R, ids_R), state.true)


def copy_tokens(host_R2: Tensor, handoff_R2: Tensor) -> None:
    host_R2.copy_(handoff_R2, non_blocking=True)


def post_update(state: RowState, rows_R: Tensor, advance_R: Tensor) -> None:
    """Counts the tokens that this step put into the KV cache."""
    state.lengths.index_add_(0, rows_R, advance_R)


def predict_codes(
    model: CodecModel,
    state: RowState,
    hidden_RD: Tensor,
    rows_R: Tensor,
    handoff_R2: Tensor,
    any_random: bool,
    block_size: int,
    code_pages: Tensor,
) -> None:
    """The frame that each sampled token begins, into the page slot of that token, and its part of the next input."""
    # The position counts this step's token already, so it is one past the one that sampling drew with.
    position_R = state.num_outputs.index_select(0, rows_R) - 1
    frame = model.predict_codes(hidden_RD, handoff_R2[:, 0], _RowDraw(state, rows_R, position_R, any_random))
    at_R = state.lengths.index_select(0, rows_R)
    block_R = state.block_table.index_select(0, rows_R).gather(1, (at_R // block_size)[:, None]).squeeze(1)
    # The token that ends a request has no frame.
    slots_R = (block_R * block_size + at_R % block_size) * (handoff_R2[:, 1] == RUNNING)
    code_pages.flatten(0, 1).index_copy_(0, slots_R, frame.codes_RG)
    state.next_codes.index_copy_(0, rows_R, frame.next_RD)


@dataclass(frozen=True, slots=True)
class _RowDraw:
    """Draws codes with the rows' own seeds; greedy rows stay greedy in every group."""

    state: RowState
    rows_R: Tensor
    position_R: Tensor
    any_random: bool

    def __call__(self, logits_RV: Tensor, group: int, *, top_k: int, top_p: float) -> Tensor:
        greedy_R = logits_RV.argmax(-1)
        if not self.any_random:
            return greedy_R
        sampling = self.state.sampling
        ones_R = torch.ones_like(self.rows_R, dtype=torch.float64)
        top_k_R = torch.full_like(self.rows_R, top_k)
        warped_RV = warp(logits_RV.float(), ones_R.float(), top_k_R, ones_R * top_p)
        seed_R, sample_R = (t.index_select(0, self.rows_R) for t in (sampling.seed, sampling.sample_index))
        noise_RV = gumbel(seed_R, sample_R, self.position_R, group, 0, logits_RV.shape[1])
        random_R = (warped_RV + noise_RV).argmax(-1)
        return torch.where(sampling.temperature.index_select(0, self.rows_R) == 0, greedy_R, random_R)
