"""Sources of the rows' next tokens."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from omni.device import Graph, Launch, SharedRing
from omni.device.graphs import CapturedGraphs
from omni_ar.kernels.sampling.state import EVERYTHING, SamplingFlags
from omni_ar.kernels.step.dispatch import accept_tokens, post_update
from omni_ar.kernels.step.drafts import accept_drafts, record_drafts
from omni_ar.kernels.step.handoff import IDS
from omni_ar.processors import NamedProcessor
from omni_ar.run.captured_decodes import graph_name
from omni_ar.run.phases import HAND_OVER, compute_logits, mark_nan, sample_positions, sample_rows, set_counter
from omni_ar.run.state import NOT_FINITE, Resources
from omni_ar.run.step import StepContext, TokenHandoff
from omni_ar.sampling.edits import StepEdits


class TokenSource(Protocol):
    """Writes the rows' newest tokens on the device, and hands them to the host.

    `LocalTokens` samples them. `ReceivedTokens` receives them from the rank with the last layer range.
    """

    @property
    def ready(self) -> bool:
        """Whether a step can be launched now without host memory that is still in use."""

    @property
    def gives_logits(self) -> bool:
        """Whether `sample` leaves the step's values in `StepBuffers.logits_NV` and `accepted_NW`, for log-probabilities."""

    def capture(self, rows_B: Tensor, advance_B: Tensor, drafts: int) -> None:
        """Captures the launches of `sample`, if any, for a batch of B rows, with this number of drafts each. At start, with null
        rows.

        A step whose `StepLaunch.padded_rows` is B has its rows and their advances in these tensors, padded with null rows.
        """

    def begin(self, newest_input: int) -> None:
        """Called before the inputs of a step are launched: makes the tokens of all steps up to and including this one the rows'
        newest."""

    def sample(self, context: StepContext, frames: Callable[[StepContext], None] | None = None) -> TokenHandoff | None:
        """Launches the sampling of the step's rows from `context.hidden_RD`, and hands the tokens over; None if another rank does.
        frames: launches the work between sampling and handoff, where frames can end a request."""

    def forget(self) -> None:
        """Drops the pending tokens of the newest step, which failed half-way; its rows start again."""


class TokenGathering(Protocol):
    """Gathers the state of the sampled rows for other ranks."""

    def gathering(self, rows_R: Tensor) -> list[Launch]:
        """Its launches, which follow those of sampling, or those of drafts at a stage with a drafter."""

    def count_again(self) -> None:
        """Corrects the device's count of these launches: a capture may have run them, and a failed step may not have."""


class LocalTokens:
    """Samples locally. `accept_tokens` writes the tokens directly into host memory, so the token point is an event that waits for
    no later work on the main stream. A copy would cost three more host calls per step. `post_update`, the rows' counts, precedes
    the token point, and so does `gather_columns` where tokens alone are sent to other ranks: the token is a few microseconds
    later, but the host launches a single graph."""

    gives_logits = True

    def __init__(
        self, stage: Resources, processors: Sequence[NamedProcessor] = (), sender: TokenGathering | None = None
    ) -> None:
        """sender: of the tokens, to ranks with other layers."""
        self._stage = stage
        self._processors = processors
        self._sender = sender
        # The key is the number of drafts.
        self._graphs = CapturedGraphs[int, Graph](stage.name)
        # Its slots follow `RowState.counter`, which the device counts.
        self._handoffs = SharedRing(stage.device, stage.stream, stage.rows.handoff)

    @property
    def ready(self) -> bool:
        return self._handoffs.ready

    def capture(self, rows_B: Tensor, advance_B: Tensor, drafts: int) -> None:
        size, stage = rows_B.shape[0], self._stage
        sampling = self._launches(rows_B, advance_B, drafts, EVERYTHING, None)
        name = graph_name(f"{stage.name}-sample", size, drafts)
        self._graphs.add(drafts, size, stage.device.capture(stage.stream, name, sampling))
        self._set_counter()  # capturing may have run steps

    def begin(self, newest_input: int) -> None:
        self._handoffs.begin()

    def sample(self, context: StepContext, frames: Callable[[StepContext], None] | None = None) -> TokenHandoff:
        graph = self._captured(context)
        if graph is not None:
            self._stage.device.replay(self._stage.stream, graph)
        else:
            step = context.launch
            sampling = self._launches(context.rows_R, context.advance_R, step.drafts, step.flags, context.edits)
            self._stage.device.enqueue(self._stage.stream, sampling)
        if frames is not None:
            frames(context)
        self._stage.device.moment(self._stage.stream, HAND_OVER)
        sent = self._handoffs.send()
        return TokenHandoff(host=sent.slot, ready=sent.ready, made=sent.made)

    def _captured(self, context: StepContext) -> Graph | None:
        """The captured graph of the step's batch; None for a step with logits processors or edits, which are rare."""
        step = context.launch
        if step.padded_rows is None:
            return None
        if context.edits is not None or step.flags.processors:
            self._graphs.log_uncaptured("sampling steps with logits processors or structured outputs")
            return None
        return self._graphs.find(step.drafts, step.padded_rows)[1]

    def _launches(
        self, rows_R: Tensor, advance_R: Tensor, drafts: int, flags: SamplingFlags, edits: StepEdits | None
    ) -> list[Launch]:
        sampling = self._sampling(rows_R, advance_R, drafts, flags, edits)
        if self._sender is not None and not self._stage.limits.drafts:
            sampling += self._sender.gathering(rows_R)
        return sampling

    def _sampling(
        self, rows_R: Tensor, advance_R: Tensor, drafts: int, flags: SamplingFlags, edits: StepEdits | None
    ) -> list[Launch]:
        if self._stage.limits.drafts:
            return self._sampling_drafts(rows_R, advance_R, 1 + drafts, flags, edits)
        stage, count, state, buffers = self._stage, rows_R.shape[0], self._stage.rows, self._stage.buffers
        hidden_RD, logits_RV, accepted_RW = (
            all_rows[:count] for all_rows in (buffers.hidden, buffers.logits_NV, buffers.accepted_NW)
        )
        ids_R = accepted_RW[:, IDS]
        check = [Launch.of(mark_nan, logits_RV, ids_R, NOT_FINITE)] if stage.limits.check_logits else []
        return [
            Launch.of(compute_logits, stage.model, hidden_RD, logits_RV),
            Launch.of(sample_rows, state, logits_RV, rows_R, flags, edits, self._processors, ids_R),
            *check,
            Launch.of(accept_tokens, state, rows_R, accepted_RW),
            Launch.of(post_update, state, rows_R, accepted_RW, advance_R, flags),
        ]

    def _sampling_drafts(
        self, rows_R: Tensor, advance_R: Tensor, positions: int, flags: SamplingFlags, edits: StepEdits | None
    ) -> list[Launch]:
        """The launches at a stage with a drafter. positions: of each row."""
        stage, rows, state, buffers = self._stage, rows_R.shape[0], self._stage.rows, self._stage.buffers
        count, accepted_RW = rows * positions, buffers.accepted_NW[:rows]
        hidden_XD, logits_XV, sampled_X = (
            each[:count] for each in (buffers.hidden, buffers.logits_NV, buffers.sampled_N)
        )
        sampled_RJ, work = sampled_X.view(rows, positions), (flags, edits, self._processors)
        if positions == 1:
            draw = Launch.of(sample_rows, state, logits_XV, rows_R, *work, sampled_X)
        else:
            draw = Launch.of(sample_positions, state, logits_XV, rows_R, *work, sampled_RJ)
        check = [Launch.of(mark_nan, logits_XV, sampled_X, NOT_FINITE)] if stage.limits.check_logits else []
        return [
            Launch.of(compute_logits, stage.model, hidden_XD, logits_XV),
            draw,
            *check,
            Launch.of(accept_drafts, state, rows_R, sampled_RJ, accepted_RW),
            Launch.of(record_drafts, state, rows_R, accepted_RW, positions, advance_R, flags),
        ]

    def forget(self) -> None:
        self._handoffs.forget()  # its rows start again, which overwrites their state
        self._set_counter()  # the device may have counted the step

    def _set_counter(self) -> None:
        self._stage.device.launch(self._stage.stream, set_counter, self._stage.rows.counter, self._handoffs.next_slot)
        if self._sender is not None:
            self._sender.count_again()
