"""Sources of the tokens that rows go on with."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from omni.device import Device, Graph, Launch, SharedRing, Stream
from omni.graphs import CapturedGraphs
from omni_ar.categories import HAND_OVER
from omni_ar.kernels.step.state import RowState, StepBuffers
from omni_ar.model import ArModel
from omni_ar.processors import NamedProcessor
from omni_ar.run.limits import Limits
from omni_ar.run.phases import accept_tokens, compute_logits, post_update, sample_rows, set_counter
from omni_ar.run.step import StepContext, TokenHandoff
from omni_ar.sampling import EVERYTHING, SamplingFlags, SamplingStart, StepEdits


class TokenSource(Protocol):
    """Fills the rows' newest tokens, on the device, and hands them to the host.

    The stage's own sampler is one; with pipeline parallelism the first rank's is a broadcast of the last rank's.
    """

    @property
    def lag(self) -> int:
        """The least distance between two steps of a row: 1 if its token is there at once."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a step could be launched now without touching host memory that is still in use."""
        ...

    @property
    def gives_logits(self) -> bool:
        """Whether `StepBuffers.logits_NV` and `accepted_NW` hold the step's after `sample`: log-probabilities are made of them."""
        ...

    def capture(self, rows_B: Tensor, advance_B: Tensor) -> None:
        """Captures what `sample` launches for a batch of B rows, where it launches anything. At start, in the null row.

        A step whose `StepContext.padded` is B has its rows and what they advance by in these tensors, padded with null rows.
        """
        ...

    def begin(self, step: int) -> None:
        """Called before the inputs of a step are launched: tokens that are due become next inputs, and so do those that the
        host has read."""
        ...

    def start(self, rows_n: Tensor, fields_nC: Tensor, sampling: SamplingStart) -> None:
        """Called after `begin`, for rows that the step sets up: their `RowState.fields`, and their sampling state.

        `start_rows` has been launched here; a source that samples elsewhere sends this there. The tensors are valid as in
        `Uploader.view`.
        """
        ...

    def sample(self, context: StepContext, frames: Callable[[StepContext], None] | None = None) -> TokenHandoff:
        """Launches the sampling of the step's rows from `context.hidden_RD`, or requests their tokens, and hands them over.

        frames: launches the work between the two, where frames can end a request.
        A row whose generation is not that of the step stays as it is.
        """
        ...

    def forget(self) -> None:
        """The newest step failed half-way: its rows start again, and its tokens that are still to come are dropped."""
        ...


class LocalTokens:
    """Samples here. `accept_tokens` writes the tokens into the host's memory itself, so the token point is an event: it waits for
    nothing that follows on the main stream, and a copy would cost the host three more calls a step.

    The rows' counts, `post_update`, come before it: the token is a few microseconds later, but the host launches one graph for
    all, and each graph costs it much, whatever is in it.
    """

    lag = 1
    gives_logits = True

    def __init__(
        self,
        name: str,
        device: Device,
        stream: Stream,
        model: ArModel,
        state: RowState,
        buffers: StepBuffers,
        limits: Limits,
        processors: Sequence[NamedProcessor] = (),
    ) -> None:
        self._name = name
        self._device = device
        self._stream = stream
        self._model = model
        self._state = state
        self._buffers = buffers
        self._drafts = limits.step_ids - 1
        self._processors = processors
        self._graphs = CapturedGraphs[None, Graph](name)
        # Its turns are those of `RowState.counter`, which the device counts by itself.
        self._handoffs = SharedRing(device, stream, state.handoff)

    @property
    def ready(self) -> bool:
        return self._handoffs.ready

    def capture(self, rows_B: Tensor, advance_B: Tensor) -> None:
        size = rows_B.shape[0]
        sampling = self._sampling(rows_B, advance_B, EVERYTHING, None)
        self._graphs.add(None, size, self._device.capture(self._stream, f"{self._name}-sample-{size}", sampling))
        self._set_counter()  # capturing may have run steps, or not

    def begin(self, step: int) -> None:
        self._handoffs.begin()

    def start(self, rows_n: Tensor, fields_nC: Tensor, sampling: SamplingStart) -> None:
        pass

    def sample(self, context: StepContext, frames: Callable[[StepContext], None] | None = None) -> TokenHandoff:
        graph = self._captured(context)
        if graph is not None:
            self._device.replay(self._stream, graph)
        else:
            sampling = self._sampling(context.rows_R, context.advance_R, context.flags, context.edits)
            self._device.enqueue(self._stream, sampling)
        if frames is not None:
            frames(context)
        self._device.moment(self._stream, HAND_OVER)
        sent = self._handoffs.send()
        return TokenHandoff(host=sent.slot, ready=sent.ready, made=sent.made)

    def _captured(self, context: StepContext) -> Graph | None:
        """None for a step with logits processors or edits, which few steps have."""
        if context.padded is None:
            return None
        if context.edits is not None or context.flags.processors:
            self._graphs.log_uncaptured("sampling steps with logits processors or structured outputs")
            return None
        captured = self._graphs.find(None, context.padded)
        return captured.graph if captured is not None else None

    def _sampling(
        self, rows_R: Tensor, advance_R: Tensor, flags: SamplingFlags, edits: StepEdits | None
    ) -> list[Launch]:
        """Up to the token point."""
        count, state, buffers = rows_R.shape[0], self._state, self._buffers
        hidden_RD, logits_RV, accepted_RW = (
            all_rows[:count] for all_rows in (buffers.hidden, buffers.logits_NV, buffers.accepted_NW)
        )
        ids_R = accepted_RW[:, 2]
        return [
            Launch.of(compute_logits, self._model, hidden_RD, logits_RV),
            Launch.of(sample_rows, state, logits_RV, rows_R, flags, edits, self._processors, ids_R),
            Launch.of(accept_tokens, state, rows_R, accepted_RW),
            Launch.of(post_update, state, rows_R, accepted_RW, advance_R, self._drafts, flags),
        ]

    def forget(self) -> None:
        self._handoffs.forget()  # what it left in the rows' state their starts write over
        self._set_counter()  # the device may have counted the step, or not

    def _set_counter(self) -> None:
        self._device.launch(self._stream, set_counter, self._state.counter, self._handoffs.turn)
