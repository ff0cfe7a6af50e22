"""Two processes and what goes between them: messages from rank 0 to rank 1, and broadcasts of rank 1's."""

import io
import math
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from omni.device import Device, HostRing, HostSlot, Stream
from omni.device.cpu import CpuDevice
from omni_ar.kernels.step.state import FIELD_INDEX, RowState, StepBuffers
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.phases import accept_tokens, compute_logits, post_update, sample_rows, start_rows
from omni_ar.run.state import allocate_rows, allocate_step_buffers
from omni_ar.run.step import StepContext, TokenHandoff
from omni_ar.sampling import SamplingFlags, SamplingStart
from omni_ar.sampling.edits import EditParts
from omni_ar.sampling.start import StartParts
from tests.support.patience import PATIENCE_SECONDS
from tests.support.small_text import SmallText

_PATIENCE = timedelta(seconds=PATIENCE_SECONDS)
"""A rank that waits longer for the other gives up."""

Message = dict[str, object]
Sending = list[tuple[dist.Work, Tensor]]
"""Parts of messages that are under way."""


class Ranks:
    """One rank's ends of both process groups. Broadcasts have a group of their own, so that no message stands before one."""

    def __init__(self, store: Path, rank: int) -> None:
        shared = dist.FileStore(str(store), 2)
        self._messages, self._tokens = (
            dist.ProcessGroupGloo(dist.PrefixStore(name, shared), rank, 2, _PATIENCE) for name in ("messages", "tokens")
        )

    def send(self, message: Message, sending: Sending) -> None:
        """To rank 1, which gets messages in order. Does not wait: `sending` is what to keep, and to wait for."""
        file = io.BytesIO()
        torch.save(message, file)
        body = torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)
        sending += [(self._messages.send([part], 1, 0), part) for part in (torch.tensor([body.shape[0]]), body)]

    def receive(self) -> Message:
        """Of rank 0; waits for it."""
        size = torch.zeros(1, dtype=torch.int64)
        self._messages.recv([size], 0, 0).wait()
        body = torch.zeros(int(size), dtype=torch.uint8)
        self._messages.recv([body], 0, 0).wait()
        message: Message = torch.load(io.BytesIO(body.numpy().tobytes()), weights_only=True)
        return message

    def broadcast(self, tokens_RW: Tensor) -> dist.Work:
        """Rank 1's contents into rank 0's, in the order of calls. Does not wait."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 1, 0
        return self._tokens.broadcast([tokens_RW], options)


@contextmanager
def second_rank(folder: Path) -> Iterator[Ranks]:
    """Rank 0's ends, with this module run as rank 1. It must return when it receives an empty message."""
    store = folder / "ranks"
    paths: Sequence[str] = [path for path in sys.path if path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-m", __name__, str(store)], env=environment) as process:
        try:
            ranks = Ranks(store, 0)
            yield ranks
            ranks.send({}, sending := [])
            assert process.wait(PATIENCE_SECONDS) == 0
            del sending
        finally:
            process.kill()


# A token source on rank 0 of two: the last rank samples, and broadcasts what the rows go on with two steps later.


@dataclass(frozen=True)
class Arrival:
    """The event of a broadcast. shown: whether this rank may know of the broadcast of this index; a test says how late it is."""

    work: dist.Work
    index: int
    shown: Callable[[int], bool]

    def done(self) -> bool:
        if not (self.shown(self.index) and self.work.is_completed()):
            return False
        self.work.wait()  # what went wrong is raised here
        return True


@dataclass(frozen=True, slots=True)
class Broadcast(TokenHandoff):
    """Gloo receives into host memory, so the slot holds the broadcast itself, whose last column is for the device alone."""

    def read(self, count: int) -> list[list[int]]:
        results: list[list[int]] = self.host.read()[:count, :-1].tolist()
        return results


@dataclass(frozen=True)
class Awaited:
    """A step whose tokens are not the rows' newest yet. sent: messages that the other rank has had when it has broadcast them."""

    step: int
    slot: HostSlot
    arrival: Arrival
    rows_R: Tensor
    advance_R: Tensor
    flags: SamplingFlags
    sent: Sending


class GlooTokens:
    """What belongs to step k becomes the rows' newest tokens when step k + 2 begins, or before if the host has read it.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | slot of the ring | the broadcast | host, once it has come; `take_broadcast` | step k + 2, before the slot comes round again |
    | rows and advance kept of a step | `keep_step` | `take_broadcast` | stream order, as many steps later as there are slots |
    """

    lag = 2
    gives_logits = False

    def __init__(
        self, ranks: Ranks, device: Device, stream: Stream, state: RowState, limits: Limits, *, checks: bool = True
    ) -> None:
        """checks: whether a broadcast for a row that was given to another request is left aside."""
        self.shown: float = math.inf
        """How many broadcasts may be known of."""
        self.late = 0
        """Broadcasts that became next inputs while those of a later step were awaited."""
        self._ranks = ranks
        self._device = device
        self._stream = stream
        self._state = state
        self._drafts = limits.step_ids - 1
        self._checks = checks
        size = (limits.rows, 3 + limits.step_ids)
        self._ring = HostRing.allocate(device, size, torch.int64, limits.ring)
        self._kept = device.zeros((limits.ring, 2, limits.rows), torch.int64)
        self._accepted_NW = device.zeros((limits.rows, 2 + limits.step_ids), torch.int64)
        self._awaited: deque[Awaited] = deque()
        self._sending: Sending = []
        self._step = self._sampled = 0

    @property
    def ready(self) -> bool:
        due = all(one.arrival.done() for one in self._awaited if one.step + self.lag <= self._step + 1)
        return due and self._ring.ready

    def show_next(self) -> None:
        """Waits for the oldest broadcast that is not known of, and makes it known."""
        arrival = next(one.arrival for one in self._awaited if one.arrival.index >= self.shown)
        arrival.work.wait()
        self.shown = arrival.index + 1

    def begin(self, step: int) -> None:
        self._step = step
        while self._awaited and self._awaited[0].arrival.done():
            self._take(self._awaited.popleft())
        assert not self._awaited or self._awaited[0].step + self.lag > step, "a step was launched that is not ready"

    def start(self, rows_n: Tensor, fields_nC: Tensor, sampling: SamplingStart) -> None:
        message: Message = {"kind": "start", "rows_n": rows_n, "fields_nC": fields_nC, "sampling": list(sampling)}
        self._device.launch(self._stream, send, self._ranks, message, self._sending)

    def sample(self, context: StepContext, frames: Callable[[StepContext], None] | None = None) -> TokenHandoff:
        assert frames is None, "a frame that ends a request would come after its token was sent"
        kept_2R = self._kept[self._sampled % len(self._kept), :, : len(context.rows)]
        launch, generations = self._device.launch, [one.row.generation for one in context.rows]
        flags = asdict(context.flags) | {"processors": sorted(context.flags.processors)}
        launch(self._stream, keep_step, kept_2R, context.rows_R, context.advance_R)
        message: Message = {
            "kind": "step",
            "rows_R": context.rows_R,
            "generations_R": torch.tensor(generations),
            "advance_R": context.advance_R,
            "hidden_RD": context.hidden_RD,
            "flags": flags,
            "edits": None if context.edits is None else list(context.edits),
        }
        launch(self._stream, send, self._ranks, message, self._sending)
        slot = self._ring.advance()
        slot.take()
        work = self._ranks.broadcast(slot.tensor[: len(context.rows)])
        arrival = Arrival(work, self._sampled, lambda index: index < self.shown)
        slot.guard(arrival)
        self._sampled += 1
        self._awaited.append(Awaited(context.step, slot, arrival, kept_2R[0], kept_2R[1], context.flags, self._sending))
        self._sending = []
        return Broadcast(slot, arrival, self._device.record(self._stream))

    def forget(self) -> None:
        if self._awaited and self._awaited[-1].step == self._step:
            self._sending += self._awaited.pop().sent

    def _take(self, one: Awaited) -> None:
        count = len(one.rows_R)
        accepted_RW, received_RW = self._accepted_NW[:count], one.slot.tensor[:count]
        launch = self._device.launch
        self.late += bool(self._awaited)
        for work, _ in one.sent:
            work.wait()
        launch(self._stream, take_broadcast, self._state, one.rows_R, received_RW, accepted_RW, self._checks)
        launch(self._stream, post_update, self._state, one.rows_R, accepted_RW, one.advance_R, self._drafts, one.flags)


def send(ranks: Ranks, message: Message, sending: Sending) -> None:
    ranks.send(message, sending)


def keep_step(kept_2R: Tensor, rows_R: Tensor, advance_R: Tensor) -> None:
    """What the step's broadcast is for: the next step's upload takes the place of these."""
    kept_2R[0].copy_(rows_R)
    kept_2R[1].copy_(advance_R)


def take_broadcast(state: RowState, rows_R: Tensor, received_RW: Tensor, accepted_RW: Tensor, checks: bool) -> None:
    """Takes the tokens as the rows' newest, but those of rows whose generation is gone: they accept none."""
    before_RC = state.fields.index_select(0, rows_R)
    current_R = before_RC[:, FIELD_INDEX.generation] == received_RW[:, -1]
    accepted_RW.copy_(received_RW[:, :-1], non_blocking=True)
    accept_tokens(state, rows_R, accepted_RW)
    if checks:
        after_RC = state.fields.index_select(0, rows_R)
        state.fields.index_copy_(0, rows_R, torch.where(current_R[:, None], after_RC, before_RC))
        accepted_RW[:, 1].mul_(current_R)


# The program, `python -m tests.stages.omni_ar.two_ranks STORE`, is rank 1. It has the rows' sampling state and nothing else of
# them, samples what rank 0 sends, and broadcasts the tokens.


@dataclass(frozen=True)
class Sampler:
    """The last rank's part of one stage."""

    model: SmallText
    limits: Limits
    state: RowState
    buffers: StepBuffers
    broadcasts: Tensor

    @classmethod
    def of(cls, vocab: int, options: dict[str, int]) -> "Sampler":
        model, device = SmallText(vocab), CpuDevice()
        limits = Limits.of("text", ArOptions(**options), model.shape)
        state = allocate_rows(device, model, limits, torch.float32)
        broadcasts = device.zeros((limits.rows, 3 + limits.step_ids), torch.int64)
        return cls(model, limits, state, allocate_step_buffers(device, model, limits, torch.float32), broadcasts)

    def start(self, rows_n: Tensor, fields_nC: Tensor, sampling: Sequence[Tensor]) -> None:
        table_nM = torch.zeros(len(rows_n), self.limits.max_blocks, dtype=torch.int64)
        start_rows(self.state, rows_n, fields_nC, table_nM, StartParts(*sampling))

    def step(
        self,
        rows_R: Tensor,
        generations_R: Tensor,
        advance_R: Tensor,
        hidden_RD: Tensor,
        flags: dict[str, Any],
        edits: Sequence[Tensor] | None,
    ) -> Tensor:
        """Status, count, ids and generation of each row, `[R, 3 + K]`."""
        count, state = len(rows_R), self.state
        logits_RV, out_RW = self.buffers.logits_NV[:count], self.broadcasts[:count]
        accepted_RW = self.buffers.accepted_NW[:count]
        needs = SamplingFlags(**flags | {"processors": frozenset(flags["processors"])})
        steered = None if edits is None else EditParts(*edits)
        assert torch.equal(state.columns.generation[rows_R], generations_R), "rows are set up before they are sampled"
        compute_logits(self.model, hidden_RD, logits_RV)
        sample_rows(state, logits_RV, rows_R, needs, steered, (), accepted_RW[:, 2])
        accept_tokens(state, rows_R, accepted_RW)
        post_update(state, rows_R, accepted_RW, advance_R, self.limits.step_ids - 1, needs)
        out_RW[:, :-1] = accepted_RW
        out_RW[:, -1] = generations_R
        return out_RW


def serve(ranks: Ranks) -> None:
    """Until an empty message comes. One that opens a stage ends the one before."""
    sampler: Sampler | None = None
    while message := ranks.receive():
        content: Any = message
        match content.pop("kind"):
            case "open":
                sampler = Sampler.of(**content)
            case "start" if sampler is not None:
                sampler.start(**content)
            case "step" if sampler is not None:
                ranks.broadcast(sampler.step(**content)).wait()
            case kind:
                raise ValueError(f"a message of kind {kind!r} before a stage is open")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.inference_mode():
        serve(Ranks(Path(sys.argv[1]), 1))
