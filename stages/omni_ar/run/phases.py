"""The phases of a step: functions over preallocated buffers, launched in this order. None of them synchronizes.

Shape legend: R rows of the batch, K ids of a row (one, and as many more as are drafted), T tokens, S sampling words, V vocabulary,
W handoff words, G code groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omni_ar.model import ArModel, Batch, CodecModel, NextTokens, PromptTokens
from omni_ar.processors import NamedProcessor
from omni_ar.run.state import (
    ACTIVE,
    DELTA,
    FULL,
    LAST,
    LENGTH,
    OUTPUTS,
    RUNNING,
    STOPPED,
    RowState,
    StepBuffers,
)
from omni_ar.sampling import (
    SamplingFlags,
    SamplingStart,
    StepEdits,
    draw,
    observe,
    sample,
    start_sampling,
    top_logprobs,
)


def start_rows(state: RowState, rows_n: Tensor, words_nC: Tensor, table_nM: Tensor, sampling: SamplingStart) -> None:
    """Sets up the state of rows, as it is before their first chunk."""
    state.words.index_copy_(0, rows_n, words_nC)
    state.block_table.index_copy_(0, rows_n, table_nM)
    start_sampling(state.sampling, sampling)


def extend_tables(block_table: Tensor, grown_2k: Tensor) -> None:
    """Adds blocks to rows' tables. grown_2k: place in the flattened table, block."""
    block_table.view(-1).index_copy_(0, grown_2k[0], grown_2k[1])


def prepare_decodes(state: RowState, rows_R: Tensor, block_size: int, out: StepBuffers, max_blocks: int) -> None:
    """Inputs of decode rows, from device state alone: token, position, slot, keys to attend."""
    count = rows_R.shape[0]
    words_RC = state.words.index_select(0, rows_R)
    kept, active = words_RC[:, LENGTH], words_RC[:, ACTIVE]
    table = state.block_table.index_select(0, rows_R)
    block = table.gather(1, (kept // block_size)[:, None]).squeeze(1)
    if state.next_codes.shape[1]:
        torch.index_select(state.next_codes, 0, rows_R, out=out.codes_ND[:count])
    out.ids_N[:count].copy_(words_RC[:, LAST])
    # A stopped row writes to the null block's slots, and attends to what it has.
    torch.add(kept, active, out=out.lengths_N[:count])
    torch.mul(block * block_size + kept % block_size, active, out=out.slots_T[:count])
    out.table_NM[:count, :max_blocks].copy_(table[:, :max_blocks])
    out.positions_PT[:, :count].copy_(kept + words_RC[:, DELTA])


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


@dataclass(frozen=True, slots=True)
class Kept:
    """Hidden states that outlive the forward.

    last_R: index into the batch of each sampled row's last token, and `hidden_RD` where its state goes.
    scored_s: index of prompt tokens that are to be scored, and `scored_sD` where theirs go; None if there are none.
    """

    last_R: Tensor
    hidden_RD: Tensor
    scored_s: Tensor | None = None
    scored_sD: Tensor | None = None


def run_forward(
    model: ArModel, nexts: Sequence[NextTokens], prompts: PromptTokens | None, batch: Batch, kept: Kept
) -> None:
    """Embeds the batch, runs the backbone and keeps the hidden states that sampling needs."""
    parts = [model.embed_next(tokens) for tokens in nexts]
    if prompts is not None:
        parts.append(model.embed_prompt(prompts))
    hidden_TD = model(parts[0] if len(parts) == 1 else torch.cat(parts), batch)
    torch.index_select(hidden_TD, 0, kept.last_R, out=kept.hidden_RD)
    if kept.scored_s is not None:
        torch.index_select(hidden_TD, 0, kept.scored_s, out=kept.scored_sD)


def compute_logits(model: ArModel, hidden_RD: Tensor, logits_RV: Tensor) -> None:
    logits_RV.copy_(model.logits(hidden_RD))


def sample_rows(
    state: RowState,
    logits_RV: Tensor,
    rows_R: Tensor,
    flags: SamplingFlags,
    edits: StepEdits | None,
    processors: Sequence[NamedProcessor],
    ids_R: Tensor,
) -> None:
    """Draws a token per row; -1 where none is possible."""
    position_R = state.column(OUTPUTS).index_select(0, rows_R)
    ids_R.copy_(sample(logits_RV, state.sampling, rows_R, position_R, flags, edits, processors))


def accept_tokens(state: RowState, rows_R: Tensor, out_RW: Tensor, offered_R: Tensor | None = None) -> None:
    """Takes sampled tokens as the rows' newest, evaluates stops, and leaves both where the next step and the token copy find them.

    out_RW: the last K words are the ids; status and count of the accepted ones are written before them. Accepted are those up to
    the first that ends the row. A row that was over before accepts none. offered_R: how many of a row's K ids count, at least 1;
    None if all do.
    """
    words_RC = state.words.index_select(0, rows_R)
    last_R, _, _, outputs_R, limit_R, active_R, _, _ = words_RC.unbind(1)
    status_R, count_R, *ids = out_RW.unbind(1)
    stop_RS = state.sampling.stop_ids.index_select(0, rows_R)
    if len(ids) == 1:
        count_R.copy_(active_R)
        last_R.copy_(ids[0])
    else:
        torch.mul(_accepted(outputs_R, limit_R, stop_RS, out_RW[:, 2:], offered_R), active_R, out=count_R)
        last_R.copy_(out_RW[:, 2:].gather(1, (count_R[:, None] - 1).clamp(min=0)).squeeze(1))
    outputs_R.add_(count_R)
    # Stop ids are padded with -1: a row for which nothing was possible stops too.
    stopped_R = (stop_RS == last_R[:, None]).any(1)
    status_R.copy_(torch.where(stopped_R, STOPPED, (outputs_R >= limit_R) * FULL))
    active_R.mul_(status_R == RUNNING)
    last_R.clamp_(min=0)
    state.words.index_copy_(0, rows_R, words_RC)
    slot = state.counter % state.handoff.shape[0]
    state.handoff[:, : rows_R.shape[0]].index_copy_(0, slot, out_RW[None])
    state.counter.add_(1)


def _accepted(outputs_R: Tensor, limit_R: Tensor, stop_RS: Tensor, ids_RK: Tensor, offered_R: Tensor | None) -> Tensor:
    """How many ids of each row count: up to the first that is a stop id, or the last that the row has room for."""
    place_K = torch.arange(1, ids_RK.shape[1] + 1, device=ids_RK.device)
    over_RK = (ids_RK[:, :, None] == stop_RS[:, None]).any(2) | (outputs_R[:, None] + place_K >= limit_R[:, None])
    if offered_R is not None:
        over_RK = over_RK | (place_K >= offered_R[:, None])
    # The first place at which the row is over; the last one if it never is.
    return torch.where(over_RK, place_K, ids_RK.shape[1]).amin(1)


def set_counter(counter: Tensor, turn: int) -> None:
    """The handoff slot of the next step is `turn`."""
    counter.fill_(turn)


def copy_tokens(host_RW: Tensor, handoff_RW: Tensor) -> None:
    host_RW.copy_(handoff_RW, non_blocking=True)


def post_update(
    state: RowState, rows_R: Tensor, accepted_RW: Tensor, advance_R: Tensor, drafts: int, flags: SamplingFlags
) -> None:
    """Counts the tokens that this step put into the KV cache, and those that the row has said.

    advance_R: tokens that the forward ran for each row. drafts: how many of them, at the end, were drafts; those that were not
    accepted are taken back.
    """
    count_R = accepted_RW[:, 1]
    if drafts:
        live_R = count_R > 0
        kept_R = (advance_R - (1 + drafts - count_R)) * live_R
    else:
        kept_R = advance_R * count_R
    state.column(LENGTH).index_add_(0, rows_R, kept_R)
    observe(state.sampling, rows_R, accepted_RW[:, 2:], count_R, flags)


def score_tokens(logits_RV: Tensor, accepted_RW: Tensor, count: int, scores_RW: Tensor) -> None:
    """Log-probabilities of the tokens that were sampled, and of the `count` likeliest."""
    _write_scores(logits_RV, accepted_RW[:, 2].clamp(min=0), count, scores_RW)


def score_prompt(model: ArModel, hidden_sD: Tensor, ids_s: Tensor, count: int, at_once: int, scores_sW: Tensor) -> None:
    """Log-probabilities of prompt tokens, each from the hidden state before it. at_once: tokens whose logits there is room for."""
    for start in range(0, hidden_sD.shape[0], at_once):
        part = slice(start, start + at_once)
        _write_scores(model.logits(hidden_sD[part]).float(), ids_s[part], count, scores_sW[part])


def copy_scores(host_TW: Tensor, scores_TW: Tensor) -> None:
    host_TW.copy_(scores_TW, non_blocking=True)


def _write_scores(logits_RV: Tensor, ids_R: Tensor, count: int, scores_RW: Tensor) -> None:
    ids, logprobs, ranks = top_logprobs(logits_RV, ids_R, count)
    width = 1 + count
    scores_RW[:, 0] = ranks
    scores_RW[:, 1 : 1 + width] = ids
    scores_RW[:, 1 + width : 1 + 2 * width] = logprobs.double().view(torch.int64)


def predict_codes(
    model: CodecModel,
    state: RowState,
    hidden_RD: Tensor,
    rows_R: Tensor,
    any_random: bool,
    block_size: int,
    code_pages: Tensor,
) -> None:
    """The frame that each sampled token begins, into the page slot of that token, and its part of the next input."""
    words_RC = state.words.index_select(0, rows_R)
    # The count has this step's token already, so it is one past the position that sampling drew with.
    position_R, at_R = words_RC[:, OUTPUTS] - 1, words_RC[:, LENGTH]

    def draw_code(logits_RV: Tensor, group: int, *, top_k: int, top_p: float) -> Tensor:
        return draw(logits_RV, state.sampling, rows_R, position_R, group, top_k, top_p, any_random)

    frame = model.predict_codes(hidden_RD, words_RC[:, LAST], draw_code)
    block_R = state.block_table.index_select(0, rows_R).gather(1, (at_R // block_size)[:, None]).squeeze(1)
    # The token that ends a row has no frame, and what the row is left with nobody reads.
    slots_R = (block_R * block_size + at_R % block_size) * words_RC[:, ACTIVE]
    code_pages.flatten(0, 1).index_copy_(0, slots_R, frame.codes_RG)
    state.next_codes.index_copy_(0, rows_R, frame.next_RD)
