"""The transfers of a step between the ranks of a stage. Every rank launches the same transfers for each step, so that no rank
assigns a transfer to another step. If a step fails at all ranks, or at rank 0 after its layers, `finish` launches the missing
transfers with unused contents."""

from collections.abc import Callable, Sequence

from torch import Tensor

from omni.errors import LostRankError, error_text
from omni.parallel import Communicator, Ranks
from omni_ar.kernels.step.state import RowState
from omni_ar.run.launch import StepLaunch
from omni_ar.run.pack_chunks import StepTensors
from omni_ar.run.pipeline import HiddenTransfers, PendingTokens, ReceivedTokens, TokenSender
from omni_ar.run.state import Resources
from omni_ar.run.transfer_slots import TransferEvent, receive_tensors


def send_inputs(
    communicator: Communicator, tensors: Sequence[Tensor], state: RowState, steps_n: Sequence[Tensor]
) -> None:
    """Sends every other rank the tensors, and the vectors that condition these steps."""
    vectors = [state.conditioning.index_select(0, index_n) for index_n in steps_n]
    for tensor in (*tensors, *vectors):
        sent = tensor.contiguous()
        for rank in range(1, communicator.size):
            communicator.send(sent, rank)


def take_inputs(arrivals: TransferEvent, vectors: Sequence[Tensor], state: RowState, steps_n: Sequence[Tensor]) -> None:
    """Stores vectors that have arrived where the steps read them."""
    arrivals.wait()
    for vectors_nE, index_n in zip(vectors, steps_n, strict=True):
        state.conditioning.index_copy_(0, index_n, vectors_nE)


class InputTransfers:
    """Gives every rank the inputs that other stages made for rank 0 alone: multimodal embeddings, saved frames, and the vectors
    that condition the steps. On the main stream: they are few, and the step needs them at once."""

    def __init__(self, stage: Resources, ranks: Ranks) -> None:
        self._stage, self._ranks = stage, ranks

    def transfer(self, tensors: StepTensors, steps_n: Sequence[Tensor]) -> None:
        """steps_n: indexes of vectors in `RowState.conditioning`. At another rank than 0, `tensors` are overwritten."""
        stage, communicator = self._stage, self._ranks.communicator
        given = [*(tensor for each in tensors.embeddings for tensor in each.values()), *tensors.saved]
        if not self._passes(given, steps_n):
            return
        if not self._ranks.rank:
            stage.device.launch(stage.stream, send_inputs, communicator, given, stage.rows, steps_n)
            return
        arrivals, width = TransferEvent(), stage.rows.conditioning.shape[1]
        vectors = [stage.device.empty((index_n.shape[0], width), stage.dtype, stage.stream) for index_n in steps_n]
        stage.device.launch(stage.stream, receive_tensors, communicator, 0, [*given, *vectors], arrivals)
        stage.device.wait_remote(stage.stream, arrivals)
        stage.device.launch(stage.stream, take_inputs, arrivals, vectors, stage.rows, steps_n)

    def _passes(self, given: Sequence[Tensor], steps_n: Sequence[Tensor]) -> bool:
        """Whether a step has such inputs. Sender and receivers compute the same result."""
        return bool(given or steps_n)


class StepTransfers:
    """The transfers of the step that is being launched."""

    def __init__(
        self, inputs: InputTransfers, hidden: HiddenTransfers | None, tokens: TokenSender | ReceivedTokens | None
    ) -> None:
        """hidden, tokens: None if every rank has all layers."""
        self._inputs, self._hidden, self._tokens = inputs, hidden, tokens
        self._left: dict[str, Callable[[], None]] = {}
        """Transfers of the step that have not been launched, in order."""
        self._rows_R: Tensor | None = None

    @property
    def awaited(self) -> PendingTokens | None:
        """As `ReceivedTokens.awaited`; None for a rank that receives none."""
        return self._tokens.awaited if isinstance(self._tokens, ReceivedTokens) else None

    def spread_hidden(self) -> None:
        """Fills the received hidden states with random values if no rank sends them."""
        if self._hidden is not None:
            self._hidden.spread()

    def begin(self, step: StepLaunch, tensors: StepTensors, steps_n: Sequence[Tensor]) -> None:
        """tensors, steps_n: as for `InputTransfers.transfer`."""
        self._left = {"inputs": lambda: self._inputs.transfer(tensors, steps_n)}
        if self._hidden is not None:
            self._left["receive"] = lambda: self._receive(step)
            self._left["send"] = lambda: self._send(step)
        if self._passes_tokens(step):
            self._left["tokens"] = lambda: self._pass(step)

    def _passes_tokens(self, step: StepLaunch) -> bool:
        """Sender and receivers compute the same result."""
        return self._tokens is not None and step.has_tokens

    def share_inputs(self) -> None:
        self._run("inputs")

    def receive_hidden(self) -> None:
        """Receives from the rank with the preceding layers, if there is one."""
        self._run("receive")

    def send_hidden(self) -> None:
        """Sends to the rank with the following layers, if there is one."""
        self._run("send")

    def pass_tokens(self, rows_R: Tensor) -> None:
        """Sends or receives the tokens of the sampled rows; a no-op for a step without sampled rows."""
        self._rows_R = rows_R
        self._run("tokens")

    def finish(self) -> None:
        """Launches the transfers that a failed step has left out."""
        self._rows_R = None
        for name in tuple(self._left):
            self._run(name)

    def _run(self, name: str) -> None:
        """Raises LostRankError for a transfer that fails, since the other ranks would receive the next one in its place."""
        transfer = self._left.pop(name, None)
        if transfer is None:
            return
        try:
            transfer()
        except LostRankError:
            raise
        except Exception as error:
            raise LostRankError(f"a transfer to or from other ranks failed: {error_text(error)}") from error

    def _receive(self, step: StepLaunch) -> None:
        assert self._hidden is not None
        self._hidden.receive(step.batch_tokens)

    def _send(self, step: StepLaunch) -> None:
        assert self._hidden is not None
        self._hidden.send(step.batch_tokens)

    def _pass(self, step: StepLaunch) -> None:
        assert self._tokens is not None
        self._tokens.transfer(step.number, self._rows_R, step.count)
