"""A step as its launches need it: data, without requests. Rank 0 makes it of a plan, and every rank of the stage launches it."""

from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from omni.device import Device, Stream
from omni_ar.kernels.sampling.state import SamplingFlags
from omni_ar.run.pack import PackedStep
from omni_ar.run.pack_chunks import StepTensors
from omni_ar.run.plan import BatchShape


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLaunch:
    """number: of the step. newest_input: the newest earlier step whose tokens its rows need, 0 for none or if all layers are in one
    place. packed: the places of its uploaded inputs. flags: the work of sampling. padded_rows: rows of the captured batch that
    its decode rows are padded to; None for none. decode_blocks: maximum number of blocks in use of a decode row's table; 0 without
    decode rows. shape: of a batch with chunks, padding included, else None. captured: whether a captured forward has that shape.
    logprobs: likeliest ids to score per sampled token; None if no row needs log-probabilities. prompt_logprobs: the same per scored
    prompt token. area: the area of `MicroBatchInputs` for this batch: it keeps uploaded inputs, and has the inputs of an unchanged
    batch; None without areas. drafts: positions of each decode row besides its newest token. draft_blocks: where drafts are made
    at the end of the step, for the next one of each sampled row, the maximum number of blocks in use of these rows' tables then;
    otherwise 0."""

    number: int
    newest_input: int
    packed: PackedStep
    flags: SamplingFlags
    padded_rows: int | None
    decode_blocks: int
    shape: BatchShape | None
    captured: bool
    logprobs: int | None
    prompt_logprobs: int
    area: int | None = None
    drafts: int = 0
    draft_blocks: int = 0

    @property
    def count(self) -> int:
        """Number of sampled rows."""
        return self.packed.rows.shape[0]

    @property
    def positions(self) -> int:
        """Number of sampled positions."""
        return self.count * (1 + self.drafts)

    @property
    def has_tokens(self) -> bool:
        """Whether its tokens pass from the ranks with the last layer range to the others. Every rank decides by it."""
        return self.count > 0

    @property
    def decodes(self) -> int:
        """Number of decode rows."""
        return self.packed.steps.shape[1]

    @property
    def prefill(self) -> int:
        """Number of tokens in chunks."""
        chunks = self.packed.chunks
        return sum(chunk.length for chunk in chunks.prefills) if chunks is not None else 0

    @property
    def batch_tokens(self) -> int:
        """Number of tokens in the forward, padding included."""
        if self.shape is not None:
            return self.shape.total
        return (self.padded_rows if self.padded_rows is not None else self.count) * (1 + self.drafts)


class TensorShape(msgspec.Struct, frozen=True, array_like=True):
    """The shape and the dtype ("float32") of a tensor that rank 0 sends."""

    shape: tuple[int, ...]
    dtype: str

    def empty(self, device: Device, stream: Stream) -> Tensor:
        return device.empty(self.shape, getattr(torch, self.dtype), stream)


class StepMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A step, as the other ranks receive it. uploaded: its uploaded inputs, int64, or None if the ranks have them already.
    embeddings, saved: the shapes of the tensors in `StepTensors`, which follow over the communicator."""

    launch: StepLaunch
    uploaded: bytes | None
    embeddings: tuple[dict[str, TensorShape], ...]
    saved: tuple[TensorShape, ...]

    @classmethod
    def of(cls, launch: StepLaunch, uploaded: bytes | None, tensors: StepTensors) -> "StepMessage":
        embeddings = tuple({name: _shape_of(tensor) for name, tensor in each.items()} for each in tensors.embeddings)
        return cls(launch, uploaded, embeddings, tuple(map(_shape_of, tensors.saved)))

    def empty_tensors(self, device: Device, stream: Stream) -> StepTensors:
        """Memory for the tensors that follow."""
        embeddings = tuple({n: shape.empty(device, stream) for n, shape in each.items()} for each in self.embeddings)
        return StepTensors(embeddings, tuple(shape.empty(device, stream) for shape in self.saved))


class ForgetMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The newest step, of this number, failed half-way at rank 0, as it must have at every rank."""

    number: int


def _shape_of(tensor: Tensor) -> TensorShape:
    return TensorShape(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


RankMessage = StepMessage | ForgetMessage
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[RankMessage] = msgspec.msgpack.Decoder(RankMessage)


def encode(message: RankMessage) -> bytes:
    return _encoder.encode(message)


def decode(body: bytes) -> RankMessage:
    return _decoder.decode(body)
