"""Where the tokens come from that rows go on with."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from omni.device import Device, Downloader, Stream
from omni_ar.model import ArModel
from omni_ar.processors import NamedProcessor
from omni_ar.run.limits import Limits
from omni_ar.run.phases import accept_tokens, compute_logits, copy_tokens, post_update, sample_rows, set_counter
from omni_ar.run.state import RowState, StepBuffers
from omni_ar.run.step import StepContext, TokenHandoff
from omni_ar.sampling import SamplingStart


class TokenSource(Protocol):
    """Fills the rows' newest tokens, on the device, and hands them to the host.

    The stage's own sampler is one; with pipeline parallelism the first rank's is a broadcast of the last rank's.
    """

    @property
    def lag(self) -> int:
        """How many steps after the one that a row was in it may be in one again: 1 if its token is there at once."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a step could be launched now without touching host memory that is still in use."""
        ...

    @property
    def gives_logits(self) -> bool:
        """Whether `StepBuffers.logits_NV` and `accepted_NW` hold the step's after `sample`: log-probabilities are made of them."""
        ...

    def begin(self, step: int) -> None:
        """Called before the inputs of a step are launched: tokens that are due become next inputs, and so do those that the
        host has read."""
        ...

    def start(self, rows_n: Tensor, words_nC: Tensor, sampling: SamplingStart) -> None:
        """Called after `begin`, for rows that the step sets up: their `RowState.words`, and what sampling is to know of them.

        `start_rows` has been launched here; whoever samples elsewhere sends this there. The tensors are valid as in
        `Uploader.view`.
        """
        ...

    def sample(self, context: StepContext) -> TokenHandoff:
        """Launches what makes the tokens of the step's rows from `context.hidden_RD`, or sends for them, and hands them over.

        A row whose generation is not that of the step is to be left as it is.
        """
        ...

    def forget(self) -> None:
        """The newest step failed half-way: its rows start again, and tokens of it that are still to come are nobody's."""
        ...


class LocalTokens:
    """Samples here. The token point is where `copy_tokens` is enqueued: nothing that follows on the main stream is waited for."""

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
        priority: int,
        processors: Sequence[NamedProcessor] = (),
    ) -> None:
        self._device = device
        self._stream = stream
        self._model = model
        self._state = state
        self._buffers = buffers
        self._drafts = limits.step_ids - 1
        self._processors = processors
        copy_stream, shape = device.stream(f"{name}-copy", priority=priority), (limits.rows, 2 + limits.step_ids)
        # Its turns are those of `RowState.counter`, which the device counts by itself.
        self._downloads = Downloader(device, stream, copy_stream, shape, torch.int64, limits.ring)

    @property
    def ready(self) -> bool:
        return self._downloads.ready

    def begin(self, step: int) -> None:
        self._downloads.begin()

    def start(self, rows_n: Tensor, words_nC: Tensor, sampling: SamplingStart) -> None:
        pass

    def sample(self, context: StepContext) -> TokenHandoff:
        launch, stream, state = self._device.launch, self._stream, self._state
        rows_R, count, flags = context.rows_R, len(context.rows), context.flags
        logits_RV, accepted_RW = self._buffers.logits_NV[:count], self._buffers.accepted_NW[:count]
        launch(stream, compute_logits, self._model, context.hidden_RD, logits_RV)
        launch(stream, sample_rows, state, logits_RV, rows_R, flags, context.edits, self._processors, accepted_RW[:, 2])
        launch(stream, accept_tokens, state, rows_R, accepted_RW)
        tokens = TokenHandoff(*self._downloads.send(copy_tokens, state.handoff[self._downloads.turn, :count]))
        launch(stream, post_update, state, rows_R, accepted_RW, context.advance_R, self._drafts, flags)
        return tokens

    def forget(self) -> None:
        self._downloads.forget()  # what it left in the rows' state their starts write over
        # The device may have counted the step, or not.
        self._device.launch(self._stream, set_counter, self._state.counter, self._downloads.turn)
