"""The phases of a step: functions over preallocated buffers. None synchronizes. docs/step.md has their order.

`late_phases` has the phases after the token point, `omni_ar.kernels.step` those with kernels of their own.

Shape legend: R rows of the batch, N rows of the stage, J positions of a row (its newest token and K drafts), T tokens, P chunks, V
vocabulary, E width of step vectors, G code groups, H width of a drafter's features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from omni.device import PhaseCategory
from omni.device.kernel_choice import runs_kernel
from omni.errors import ReturnedError, type_of
from omni.stage import method_name, returned_tensor
from omni_ar.attention import KVCache
from omni_ar.drafters import DraftChunks, Drafter, DraftRows, PagedDrafter
from omni_ar.kernels.sampling import fused_sample
from omni_ar.kernels.sampling.state import SamplingFlags
from omni_ar.kernels.step.draft_state import DraftState
from omni_ar.kernels.step.state import RowFields, RowState
from omni_ar.layers.vocabulary import cut_vocabularies
from omni_ar.model import ArModel, Batch, CodecModel, NextTokens, PromptTokens
from omni_ar.processors import NamedProcessor
from omni_ar.sampling.edits import StepEdits
from omni_ar.sampling.pack import SamplingStart, start_sampling
from omni_ar.sampling.sampler import sample, sample_drafted

NO_FEATURES = 2**40
"""`RowPages.first_N` of a row without features."""


def start_rows(state: RowState, rows_n: Tensor, fields_nC: Tensor, table_nM: Tensor, sampling: SamplingStart) -> None:
    """Sets the state of rows before their first chunk."""
    state.fields.index_copy_(0, rows_n, fields_nC)
    state.block_table.index_copy_(0, rows_n, table_nM)
    start_sampling(state.sampling, sampling)


def spread_rows(state: RowState, cache: KVCache, vocab: int, length: int) -> None:
    """Activates all rows, each with `length` tokens, a random newest token, and random keys and values in random blocks."""
    fields_NC = state.fields
    device, null_row = fields_NC.device, fields_NC.shape[0] - 1
    fields = RowFields[Tensor | int](
        last=torch.randint(vocab, (null_row,), device=device),
        length=length,
        delta=0,
        outputs=0,
        limit=2**31,
        active=1,
        row=torch.arange(null_row, device=device),
        counted=0,
    )
    for column, value in enumerate(fields):
        fields_NC[:null_row, column] = value
    # Excludes the null block: rows that share it would attend to the same keys.
    state.block_table[:null_row].random_(1, cache.key.shape[1])
    for pages in (cache.key, cache.value):
        pages.normal_()


def set_null_rows(rows_B: Tensor, null_row: int, advance_B: Tensor, steps_XB: Tensor) -> None:
    rows_B.fill_(null_row)
    advance_B.fill_(1)
    steps_XB.zero_()


def extend_tables(block_table: Tensor, grown_2k: Tensor) -> None:
    """Adds blocks to rows' tables. grown_2k: indices in the flattened table, and blocks."""
    block_table.view(-1).index_copy_(0, grown_2k[0], grown_2k[1])


def place_chunks(targets: Sequence[Tensor], uploaded: Sequence[Tensor]) -> None:
    """Copies the uploaded positions and slots of chunks' tokens into the forward's buffers, after those of decode rows."""
    for target, source in zip(targets, uploaded, strict=True):
        target.copy_(source)


def place_payload(payload_slots_R: Tensor, slots_R: Tensor | None) -> None:
    """Writes the payload slots of decode rows beside chunks. slots_R: None if no consumer needs their hidden states."""
    if slots_R is None:
        payload_slots_R.zero_()
    else:
        payload_slots_R.copy_(slots_R)


def restore_frames(
    model: CodecModel, saved: Sequence[Tensor], slots_n: Tensor, code_pages: Tensor, next_nD: Tensor
) -> None:
    """Copies the frames of replayed tokens back into their page slots, and computes their part of the input embeddings."""
    codes_nG = torch.cat(list(saved))
    code_pages.flatten(0, 1).index_copy_(0, slots_n, codes_nG)
    hint = "see CodecModel.next_width"
    given, code = model.embed_codes(codes_nG), model.embed_codes
    next_nD.copy_(returned_tensor(given, "embed_codes", code=code, shape=next_nD.shape, hint=hint))


@dataclass(frozen=True, slots=True)
class SavedHiddenStates:
    """Hidden states that outlive the forward. last_R: batch index of each sampled row's last token; None if the batch is exactly
    these. hidden_RD: buffer for their hidden states. scored_s, scored_sD: batch indexes of prompt tokens to be scored, and the
    buffer for their hidden states; None if there are none."""

    last_R: Tensor | None
    hidden_RD: Tensor
    scored_s: Tensor | None = None
    scored_sD: Tensor | None = None


class InputEmbeddings:
    """Input embeddings `[T, D]`, passed from one phase to the next."""

    __slots__ = ("_buffer_TD", "_x_TD")

    def __init__(self, buffer_TD: Tensor | None = None) -> None:
        """buffer_TD: their buffer if the forward is captured and the embedding is not."""
        self._buffer_TD = buffer_TD
        self._x_TD: Tensor | None = None

    def put(self, parts: Sequence[Tensor], model: ArModel) -> None:
        """Concatenates the parts, and fills the rest of a buffer with zeros. Raises ReturnedError for embeddings
        that differ from the model's shape, which would otherwise be converted silently."""
        if self._buffer_TD is None:
            self._x_TD = parts[0] if len(parts) == 1 else torch.cat(list(parts))
            return
        rest_TD = self._buffer_TD
        for part in parts:
            if part.shape[1] != rest_TD.shape[1] or part.dtype != rest_TD.dtype:
                given, wanted = f"{part.dtype} of width {part.shape[1]}", f"{rest_TD.dtype} of {rest_TD.shape[1]}"
                problem = (
                    f"{type(model).__name__} gave {given} as input embeddings, not {wanted}: see ArShape.input_width"
                )
                raise ReturnedError(problem, model.embed_prompt)
            rest_TD[: part.shape[0]].copy_(part)
            rest_TD = rest_TD[part.shape[0] :]
        # Equal rows take the same experts, so padding activates few of them.
        rest_TD.zero_()

    def take(self) -> Tensor:
        """Returns the embeddings and drops the reference to them, unless they are in a buffer."""
        if self._buffer_TD is not None:
            return self._buffer_TD
        x_TD, self._x_TD = self._x_TD, None
        assert x_TD is not None
        return x_TD


@dataclass(frozen=True, slots=True)
class NextInputs:
    """Generated tokens to be embedded, and the conditioning of the steps whose inputs they are. steps_XR: int64, the step columns,
    then, with a `step_width`, the index of each step's vector in `RowState.conditioning`."""

    ids_R: Tensor
    steps_XR: Tensor
    codes_RD: Tensor

    def tokens(self, conditioning: Tensor) -> NextTokens:
        """The inputs of `embed_next`. Called inside a phase."""
        if not conditioning.shape[1]:
            return NextTokens(self.ids_R, self.steps_XR, self.codes_RD, conditioning.expand(self.ids_R.shape[0], 0))
        vectors_RE = conditioning.index_select(0, self.steps_XR[-1])
        return NextTokens(self.ids_R, self.steps_XR[:-1], self.codes_RD, vectors_RE)


def embed_inputs(
    model: ArModel,
    nexts: Sequence[NextInputs],
    prompts: PromptTokens | None,
    conditioning: Tensor,
    out: InputEmbeddings,
) -> None:
    """Computes the batch's input embeddings. Raises ReturnedError if there is not one for each token: padding would hide it."""
    parts = [
        _embeddings(model, "embed_next", model.embed_next(inputs.tokens(conditioning)), inputs.ids_R.shape[0])
        for inputs in nexts
    ]
    if prompts is not None:
        parts.append(_embeddings(model, "embed_prompt", model.embed_prompt(prompts), prompts.columns_CT.shape[1]))
    out.put(parts, model)


def _embeddings(model: ArModel, function: Literal["embed_next", "embed_prompt"], given: object, tokens: int) -> Tensor:
    code = model.embed_next if function == "embed_next" else model.embed_prompt
    name = method_name(code, function)
    if not isinstance(given, Tensor):
        problem = f"{name} gave {type_of(given)} for {tokens} tokens: return one embedding for each"
        raise ReturnedError(problem, code)
    if given.ndim != 2 or given.shape[0] != tokens:
        problem = f"{name} gave {list(given.shape)} for {tokens} tokens: return one embedding for each"
        raise ReturnedError(problem, code)
    return given


def run_forward(model: ArModel, embedded: InputEmbeddings, batch: Batch, kept: SavedHiddenStates | None) -> None:
    """Runs the backbone and keeps the needed hidden states; without the last layer range, where `kept` is None, there are none.
    Raises ReturnedError if they differ from the model's shape, and RuntimeError if it has not stored those of a kept layer."""
    if kept is None:
        model(embedded.take(), batch)
        return
    shape, hint = (batch.positions_PT.shape[1], kept.hidden_RD.shape[1]), "see ArShape.hidden_width"
    hidden_TD = returned_tensor(
        model(embedded.take(), batch),
        "forward",
        code=model.forward,
        shape=shape,
        dtype=kept.hidden_RD.dtype,
        hint=hint,
    )
    if batch.layers is not None:
        batch.layers.check()
    keep_hidden(hidden_TD, kept)


def keep_hidden(hidden_TD: Tensor, kept: SavedHiddenStates) -> None:
    """Keeps the hidden states that sampling and scoring need. A phase of its own where the forward was captured."""
    if kept.last_R is None:
        kept.hidden_RD.copy_(hidden_TD)
    else:
        torch.index_select(hidden_TD, 0, kept.last_R, out=kept.hidden_RD)
    if kept.scored_s is not None:
        torch.index_select(hidden_TD, 0, kept.scored_s, out=kept.scored_sD)


def compute_logits(model: ArModel, hidden_RD: Tensor, logits_RV: Tensor) -> None:
    """Computes logits. Raises ReturnedError if they differ from the model's shape: rounding or repeating them would be silent."""
    hint = "see ArShape.vocab_size and logits_dtype"
    given = model.logits(hidden_RD)
    if isinstance(given, Tensor) and given.shape[-1:] < logits_RV.shape[-1:] and (parts := cut_vocabularies(model)):
        held = " and ".join(f"{name}.weight" for name in parts)
        hint = f"with tensor_parallel a rank holds some rows of {held}: call the module, as `self.lm_head(x)`, instead"
    shape, dtype = logits_RV.shape, logits_RV.dtype
    logits_RV.copy_(returned_tensor(given, "logits", code=model.logits, shape=shape, dtype=dtype, hint=hint))


def mark_nan(logits_RV: Tensor, ids_R: Tensor, token: int) -> None:
    """Writes `token` for each row whose logits hold NaN or positive infinity. Negative infinity excludes an id."""
    ids_R.masked_fill_(~(logits_RV < torch.inf).all(-1), token)


def sample_rows(
    state: RowState,
    logits_RV: Tensor,
    rows_R: Tensor,
    flags: SamplingFlags,
    edits: StepEdits | None,
    processors: Sequence[NamedProcessor],
    ids_R: Tensor,
) -> None:
    """Draws a token per row; -1 where no id is possible."""
    if edits is None and not flags.processors and runs_kernel(logits_RV):
        # The kernel gathers the rows' positions itself, and writes the ids to their place.
        fused_sample(logits_RV, state.sampling, rows_R, state.columns.outputs, by_row=True, out_R=ids_R)
        return
    position_R = state.columns.outputs.index_select(0, rows_R)
    ids_R.copy_(sample(logits_RV, state.sampling, rows_R, position_R, flags, edits=edits, processors=processors))


def sample_positions(
    state: RowState,
    logits_XV: Tensor,
    rows_R: Tensor,
    flags: SamplingFlags,
    edits: StepEdits | None,
    processors: Sequence[NamedProcessor],
    sampled_RJ: Tensor,
) -> None:
    """Draws the id of each position of each row, as plain decoding would after the drafts before it: a draw depends on its position
    in the output alone. -1 where no id is possible."""
    assert state.drafts is not None
    if edits is None and not flags.processors and runs_kernel(logits_XV):
        given, out_X = (logits_XV, state.sampling, rows_R, state.columns.outputs), sampled_RJ.view(-1)
        fused_sample(*given, by_row=True, out_R=out_X, drafts_NK=state.drafts.drafts)
        return
    drafts_RK = state.drafts.drafts.index_select(0, rows_R)
    position_R = state.columns.outputs.index_select(0, rows_R)
    work = (flags, edits, processors)
    sampled_X = sample_drafted(logits_XV, state.sampling, rows_R, position_R, drafts_RK, *work)
    sampled_RJ.copy_(sampled_X.view_as(sampled_RJ))


def draft_tokens(drafter: Drafter, rows: DraftRows) -> None:
    drafter.draft(rows)


def fill_draft_costs(costs_N: Tensor, costs: Sequence[int]) -> None:
    """Sets `DraftState.costs`, before the first step. A copy of all elements from the host would wait for it."""
    for index, cost in enumerate(costs):
        costs_N[index].fill_(cost)


def drop_drafts(drafts: DraftState, rows_R: Tensor) -> None:
    drafts.columns.proposed.index_fill_(0, rows_R, 0)


def follow_tokens(drafter: PagedDrafter, rows: DraftRows) -> None:
    drafter.follow(rows)


def prefill_drafts(drafter: PagedDrafter, chunks: DraftChunks, states_TX: Tensor | None) -> None:
    """Runs the drafter over chunks. states_TX: hidden states of the batch, of which it makes `chunks.features_TH`."""
    if states_TX is not None:
        assert chunks.features_TH is not None
        chunks.features_TH.copy_(drafter.features(states_TX))
    drafter.prefill(chunks)


def keep_features(
    drafter: PagedDrafter, states_TX: Tensor, rows_R: Tensor, length_N: Tensor, kept_NJH: Tensor, first_N: Tensor
) -> None:
    """Keeps the features of all positions of the rows, before they are accepted. length_N: index of the first of them."""
    features_RJH = drafter.features(states_TX).view(rows_R.shape[0], *kept_NJH.shape[1:])
    kept_NJH.index_copy_(0, rows_R, features_RJH)
    first_N.index_copy_(0, rows_R, length_N.index_select(0, rows_R))


def drop_features(rows_R: Tensor, first_N: Tensor) -> None:
    """Marks the rows as having no features: no token index reaches `NO_FEATURES`."""
    first_N.index_fill_(0, rows_R, NO_FEATURES)


def keep_chunk_features(
    features_TH: Tensor,
    rows_R: Tensor,
    length_N: Tensor,
    rows_P4: Tensor,
    null_row: int,
    kept_NJH: Tensor,
    first_N: Tensor,
) -> None:
    """Keeps the features of the decode rows' tokens and of the last token of each chunk. rows_P4: as in `DraftChunks`."""
    row_P, start_P, length_P, context_P = rows_P4.unbind(1)
    rows_X = torch.cat([rows_R, row_P.where(length_P > 0, null_row)])
    last_P = features_TH.index_select(0, (start_P + length_P - 1).clamp(min=0))
    kept_NJH[:, 0].index_copy_(0, rows_X, torch.cat([features_TH[: rows_R.shape[0]], last_P]))
    first_N.index_copy_(0, rows_X, torch.cat([length_N.index_select(0, rows_R), context_P + length_P - 1]))


def start_drafts(drafts: DraftState, rows_n: Tensor, fields_nC: Tensor, text_nL: Tensor) -> None:
    """Sets the drafts' state of rows before their first chunk. text_nL: their tokens, then -1."""
    drafts.fields.index_copy_(0, rows_n, fields_nC)
    drafts.text.index_fill_(0, rows_n, -1)
    drafts.text[:, : text_nL.shape[1]].index_copy_(0, rows_n, text_nL.to(drafts.text.dtype))


def set_counter(counter: Tensor, number: int) -> None:
    counter.fill_(number)


HAND_OVER = "hand_tokens_over"
"""The name of the token point, for `Device.moment`: the moment at which a step's tokens are complete."""

_BY_CATEGORY = {
    PhaseCategory.PREPROCESS: (
        *("start_rows", "extend_tables", "prepare_decodes", "place_chunks", "restore_frames"),
        *("set_null_rows", "set_counter", "embed_inputs", "place_payload", "take_inputs"),
        "copy_inputs",
        *("start_drafts", "fill_draft_costs", "draft_tokens", "drop_drafts", "prepare_drafts", "follow_tokens"),
        *("take_hidden", "accept_received", "spread_rows", "fill_random"),
    ),
    PhaseCategory.TRANSFER: (
        *(
            "receive_tensors",
            "send_tensors",
            "post_tensors",
            "copy_tensor",
            "gather_columns",
            "gather_codes",
            "void_tokens",
        ),
        "send_inputs",
    ),
    PhaseCategory.FORWARD: (
        *("run_forward", "keep_hidden"),
        *("prefill_drafts", "keep_features", "keep_chunk_features", "drop_features"),
    ),
    PhaseCategory.LOGITS: ("compute_logits",),
    PhaseCategory.SAMPLE: ("sample_rows", "sample_positions", "mark_nan", "accept_tokens", "accept_drafts"),
    PhaseCategory.TOKEN_POINT: (HAND_OVER,),
    PhaseCategory.CODES: ("predict_codes",),
    PhaseCategory.POSTPROCESS: ("post_update", "record_drafts"),
    PhaseCategory.SCORES: ("score_tokens", "score_prompt", "copy_scores"),
}
CATEGORIES = {phase: category for category, phases in _BY_CATEGORY.items() for phase in phases}
