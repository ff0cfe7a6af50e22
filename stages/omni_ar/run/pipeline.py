"""Transfers between layer ranges (pipeline parallelism): hidden states to the next range, and tokens from the last range, which
samples them, back to the others. Each has a communicator of its own, and streams, so the main stream waits for neither until a
phase reads the arrived tensors. Tokens leave from the main stream: nothing is enqueued after such a transfer that would wait for it
(`Communicator.post`).

| buffer | written by | read by | free again |
|---|---|---|---|
| `PipelineBoundary.received`, `.sent` | `take_hidden`, `run_forward` | `run_forward`, `copy_tensor` | stream order |
| slot for hidden states to come | the transfer, on its stream | `take_hidden`, main stream | the event after it |
| slot for hidden states to send | `copy_tensor`, main stream | the transfer, on its stream | the event after it |
| slot for tokens to send | `gather_columns` or `gather_codes`, main stream | the transfer | as `TokenSender` says |
| slot for tokens to come | the transfer, on its stream | `accept_received`, main stream | the event after it |
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from omni.device import Launch
from omni.parallel import PipelineRank
from omni_ar.kernels.step.draft_state import DRAFT_FIELDS
from omni_ar.kernels.step.state import FIELD_INDEX, ROW_FIELDS, RowState
from omni_ar.layers.decoder import decoder_of
from omni_ar.model import CodecModel, PipelineBoundary
from omni_ar.processors import NamedProcessor
from omni_ar.run.phases import set_counter
from omni_ar.run.source import LocalTokens, TokenSource
from omni_ar.run.state import Resources, next_width
from omni_ar.run.step import StepContext, TokenHandoff
from omni_ar.run.transfer_slots import Slot, SlotRing, TransferEvent, post_tensors, receive_tensors, send_tensors

_SLOTS = 2
"""Two slots for hidden states: one is transferred while the other is read or written."""


def fill_random(slots: Sequence[Tensor]) -> None:
    for slot in slots:
        slot.normal_()


def take_hidden(arrivals: TransferEvent, slot_NTD: Tensor, received_NTD: Tensor) -> None:
    """Copies hidden states that have arrived into the buffer that `forward` reads, which a captured one cannot change."""
    arrivals.wait()
    received_NTD.copy_(slot_NTD)


def copy_tensor(source: Tensor, target: Tensor) -> None:
    target.copy_(source)


class TokenMessage(NamedTuple):
    """The state of a step's rows after it.

    columns_RC: int64, their `RowState.fields`; at a stage with a drafter then their `DraftState.fields`, and the drafts of their
    next step. codes_RD: their `RowState.next_codes`; `[R, 0]` for a model without codes.
    """

    columns_RC: Tensor
    codes_RD: Tensor

    @classmethod
    def of(cls, slot: tuple[Tensor, ...], count: int) -> "TokenMessage":
        """The part of a slot that a step of `count` sampled rows uses."""
        return cls(*(tensor[:count] for tensor in slot))

    @property
    def fields_RF(self) -> Tensor:
        return self.columns_RC[:, :ROW_FIELDS]

    @property
    def draft_fields_RF(self) -> Tensor:
        return self.columns_RC[:, ROW_FIELDS : ROW_FIELDS + DRAFT_FIELDS]

    @property
    def drafts_RK(self) -> Tensor:
        return self.columns_RC[:, ROW_FIELDS + DRAFT_FIELDS :]

    @property
    def sent(self) -> list[Tensor]:
        """Returns the tensors that are not empty."""
        return [tensor for tensor in self if tensor.numel()]


def gather_columns(state: RowState, rows_R: Tensor, slots_SRC: Tensor, next_1: Tensor) -> None:
    """Writes the message of a step without codes into the next of S slots. The device counts them, so that a captured graph has no
    such argument."""
    columns = [state.fields] if state.drafts is None else [state.fields, state.drafts.fields, state.drafts.drafts]
    columns_RC = torch.cat([each.index_select(0, rows_R) for each in columns], 1)
    slots_SRC.index_copy_(0, next_1, columns_RC[None])
    next_1.add_(1).remainder_(slots_SRC.shape[0])


def gather_codes(state: RowState, rows_R: Tensor, message: TokenMessage) -> None:
    """Writes the message of a step with codes."""
    torch.index_select(state.fields, 0, rows_R, out=message.columns_RC)
    torch.index_select(state.next_codes, 0, rows_R, out=message.codes_RD)


def void_tokens(state: RowState, null_row: int, message: TokenMessage) -> None:
    """Writes a message that changes no row, in place of the tokens of a failed step."""
    message.fields_RF.copy_(state.fields[null_row])
    message.fields_RF[:, FIELD_INDEX.row].fill_(null_row)
    message.draft_fields_RF.zero_()
    message.drafts_RK.zero_()
    message.codes_RD.copy_(state.next_codes[null_row])


def accept_received(state: RowState, arrivals: TransferEvent, message: TokenMessage) -> None:
    """Stores received tokens as the newest tokens of their rows. A message holds the whole state of its rows, and messages are
    accepted in order. A late message for a row that has a new owner is harmless: the first message of the new owner overwrites the
    state before it is read."""
    arrivals.wait()
    rows_R = message.fields_RF[:, FIELD_INDEX.row]
    state.fields.index_copy_(0, rows_R, message.fields_RF)
    if message.codes_RD.shape[1]:
        state.next_codes.index_copy_(0, rows_R, message.codes_RD)
    if state.drafts is not None:
        state.drafts.fields.index_copy_(0, rows_R, message.draft_fields_RF)
        state.drafts.drafts.index_copy_(0, rows_R, message.drafts_RK)


class HiddenTransfers:
    """The boundaries of this rank's layer range to those before and after."""

    def __init__(self, stage: Resources, pipeline: PipelineRank, feature_layers: Sequence[int] = ()) -> None:
        """feature_layers: `FeatureShape.layers` of the stage's drafter."""
        self._stage, self._pipeline = stage, pipeline
        decoder, kept = decoder_of(stage.model), (*stage.limits.hidden_layers, *feature_layers)
        self._received_layers = decoder.carried(kept, decoder.held.start)
        self._sent_layers = decoder.carried(kept, decoder.held.stop)
        streams = [stage.device.stream(f"{stage.name}-{way}", priority=stage.priority) for way in ("receive", "send")]
        self._receiving, self._sending = streams

        def buffers(layers: Sequence[int], slots: int) -> list[Tensor]:
            shape = (1 + len(layers), stage.limits.step_tokens, decoder.width)
            return [stage.device.zeros(shape, stage.dtype) for _ in range(slots)]

        self._received: Tensor | None = None
        self._sent: Tensor | None = None
        if not pipeline.first:
            self._received, *slots = buffers(self._received_layers, 1 + _SLOTS)
            self._arriving = SlotRing(stage.device, [(slot,) for slot in slots], self._receiving, stage.stream)
        if not pipeline.last:
            self._sent, *slots = buffers(self._sent_layers, 1 + _SLOTS)
            self._leaving = SlotRing(stage.device, [(slot,) for slot in slots], stage.stream, self._sending)

    def boundary(self, tokens: int) -> PipelineBoundary:
        """Returns the boundary of a forward of this number of tokens. Each call returns the same memory, so the forward can be
        captured."""
        received, sent = (None if each is None else each[:, :tokens] for each in (self._received, self._sent))
        return PipelineBoundary(received, sent, self._received_layers, self._sent_layers)

    def spread(self) -> None:
        """Fills the slots for hidden states to come with random values."""
        if self._received is not None:
            self._stage.device.launch(self._stage.stream, fill_random, self._arriving.tensors)

    def receive(self, tokens: int) -> None:
        """Launches the transfer of a step's hidden states into the buffer of its boundary."""
        received, stage = self._received, self._stage
        if received is None:
            return
        arrivals = TransferEvent()

        def transfer(slot: tuple[Tensor, ...]) -> None:
            given = (self._pipeline.hidden, self._pipeline.position - 1, _entries(slot[0], tokens), arrivals)
            stage.device.launch(self._receiving, receive_tensors, *given)

        def take(slot: tuple[Tensor, ...]) -> None:
            stage.device.wait_remote(stage.stream, arrivals)
            stage.device.launch(stage.stream, take_hidden, arrivals, slot[0][:, :tokens], received[:, :tokens])

        self._arriving.drain(self._arriving.fill(transfer), take)

    def send(self, tokens: int) -> None:
        """Launches the transfer of the forward's results in the buffer of its boundary."""
        sent, stage = self._sent, self._stage
        if sent is None:
            return

        def copy(slot: tuple[Tensor, ...]) -> None:
            stage.device.launch(stage.stream, copy_tensor, sent[:, :tokens], slot[0][:, :tokens])

        def transfer(slot: tuple[Tensor, ...]) -> None:
            given = (self._pipeline.hidden, [self._pipeline.position + 1], _entries(slot[0], tokens))
            stage.device.launch(self._sending, send_tensors, *given)

        self._leaving.drain(self._leaving.fill(copy), transfer)


class TokenSender:
    """Sends the tokens of each step from the rank with the last layer range to the others.

    With S layer ranges, there are S slots, which need no events. A slot is filled again S messages later, when a step is sampled.
    Each other rank accepts the slot's earlier tokens before it runs its layers of that step (`ReceivedTokens.begin`), and the step
    is sampled from hidden states of these layers.

    A message without codes is written by launches in a captured graph (`gathering`): those of sampling, or with a drafter those of
    its drafts. Codes, which can end rows too, are made later: with them, the message is written by a launch of its own."""

    def __init__(self, stage: Resources, pipeline: PipelineRank) -> None:
        self._stage, self._pipeline = stage, pipeline
        self._slots = _token_slots(stage, pipeline.size)
        self._others = range(pipeline.position)
        self._next = 0
        """The slot of the next message."""
        self._next_1 = stage.device.zeros((1,), torch.int64)
        """The same, as the device counts."""
        self._has_codes = isinstance(stage.model, CodecModel)
        self._messages: dict[tuple[int, int], TokenMessage] = {}
        """Messages by slot and number of rows: a view takes the host longer to make than to find."""

    def gathering(self, rows_R: Tensor) -> list[Launch]:
        if self._has_codes:
            return []
        return [Launch.of(gather_columns, self._stage.rows, rows_R, self._slots[0][:, : rows_R.shape[0]], self._next_1)]

    def count_again(self) -> None:
        if not self._has_codes:
            self._stage.device.launch(self._stage.stream, set_counter, self._next_1, self._next)

    def transfer(self, step: int, rows_R: Tensor | None, count: int) -> None:
        """Launches the transfer of a step's tokens. rows_R: its `count` sampled rows; None if it failed."""
        stage, message = self._stage, self._message(self._next, count)
        self._next = (self._next + 1) % self._pipeline.size
        if rows_R is None:
            stage.device.launch(stage.stream, void_tokens, stage.rows, stage.limits.null_row, message)
        elif self._has_codes:
            stage.device.launch(stage.stream, gather_codes, stage.rows, rows_R, message)
        sent = message.sent if self._has_codes else (message.columns_RC,)
        stage.device.launch(stage.stream, post_tensors, self._pipeline.tokens, self._others, sent)

    def _message(self, slot: int, count: int) -> TokenMessage:
        message = self._messages.get((slot, count))
        if message is None:
            message = TokenMessage.of(tuple(tensor[slot] for tensor in self._slots), count)
            self._messages[slot, count] = message
        return message


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """Tokens of a step that are not the rows' newest yet."""

    step: int
    count: int
    slot: Slot
    arrivals: TransferEvent

    def done(self) -> bool:
        """Whether the tokens are known to have arrived."""
        return self.slot.filled.done() and self.arrivals.done()

    def arrived(self) -> bool:
        """See `PendingReceive.arrived`."""
        return self.slot.filled.done() and self.arrivals.arrived()


class ReceivedTokens:
    """The token source of a rank without the last layer range. The receive of a step's tokens is launched with the step. They
    become the rows' newest when a later step needs them, or as many messages later as there are layer ranges."""

    gives_logits = False
    ready = True

    def __init__(self, stage: Resources, pipeline: PipelineRank) -> None:
        self._stage, self._pipeline = stage, pipeline
        self._stream = stage.device.stream(f"{stage.name}-tokens", priority=stage.priority)
        self._arriving: deque[PendingTokens] = deque()
        slots = zip(*_token_slots(stage, pipeline.size + 1), strict=True)
        self._ring = SlotRing(stage.device, list(slots), self._stream, stage.stream)

    @property
    def awaited(self) -> PendingTokens | None:
        """The oldest tokens that are not known to have arrived; None if all are."""
        return next((one for one in self._arriving if not one.done()), None)

    def capture(self, rows_B: Tensor, advance_B: Tensor, drafts: int) -> None:
        pass

    def begin(self, newest_input: int) -> None:
        while self._arriving and (self._arriving[0].step <= newest_input or len(self._arriving) >= self._pipeline.size):
            self._accept(self._arriving.popleft())

    def sample(self, context: StepContext, frames: Callable[[StepContext], None] | None = None) -> TokenHandoff | None:
        return None

    def transfer(self, step: int, rows_R: Tensor | None, count: int) -> None:
        """Launches the transfer of the tokens of a step, which samples `count` rows."""
        arrivals = TransferEvent()

        def receive(slot: tuple[Tensor, ...]) -> None:
            given = (self._pipeline.tokens, self._pipeline.size - 1, TokenMessage.of(slot, count).sent, arrivals)
            self._stage.device.launch(self._stream, receive_tensors, *given)

        self._arriving.append(PendingTokens(step, count, self._ring.fill(receive), arrivals))

    def forget(self) -> None:
        """No effect: a failed step's tokens come as a message that changes no row."""

    def _accept(self, one: PendingTokens) -> None:
        def accept(slot: tuple[Tensor, ...]) -> None:
            message, stage = TokenMessage.of(slot, one.count), self._stage
            stage.device.wait_remote(stage.stream, one.arrivals)
            stage.device.launch(stage.stream, accept_received, stage.rows, one.arrivals, message)

        self._ring.drain(one.slot, accept)


def token_source(
    stage: Resources, processors: Sequence[NamedProcessor], pipeline: PipelineRank | None
) -> tuple[TokenSource, TokenSender | ReceivedTokens | None]:
    """The source of this rank, and the transfer of tokens between layer ranges if there are several."""
    if pipeline is None:
        return LocalTokens(stage, processors), None
    if pipeline.last:
        sender = TokenSender(stage, pipeline)
        return LocalTokens(stage, processors, sender), sender
    source = ReceivedTokens(stage, pipeline)
    return source, source


def _token_slots(stage: Resources, slots: int) -> tuple[Tensor, ...]:
    """Allocates the slots of a ring: the tensors of a `TokenMessage` of all rows, with the slot as their first dimension."""
    rows, zeros = stage.limits.rows, stage.device.zeros
    columns = ROW_FIELDS + (DRAFT_FIELDS + stage.limits.drafts if stage.limits.drafts else 0)
    shapes = ((columns, torch.int64), (next_width(stage.model), stage.dtype))
    return tuple(zeros((slots, rows, width), dtype) for width, dtype in shapes)


def _entries(slot_NTD: Tensor, tokens: int) -> list[Tensor]:
    """The contiguous parts of a slot for hidden states."""
    return list(slot_NTD[:, :tokens].unbind(0))
