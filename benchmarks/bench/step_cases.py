"""Cases of a decode step's work on its rows' fields: a launch each."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bench.kernel_cases import Buffers, Call, KernelCase
from bench.kernel_shapes import KernelSizes
from omni.device import open_device
from omni_ar.kernels.sampling.state import EVERYTHING
from omni_ar.kernels.step import (
    accept_tokens,
    end_frames,
    frame_inputs,
    place_frames,
    post_update,
    prepare_decodes,
)
from omni_ar.kernels.step.handoff import NUM_TOKENS
from omni_ar.kernels.step.state import RowState, StepBuffers
from omni_ar.model import ArModel, ArShape, Batch, CodecModel, Codes, DrawCode, NextTokens, PromptTokens
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.state import allocate_rows, allocate_step_buffers

_BLOCK = 16


class _ShapeOnly(ArModel):
    """The shape that state is allocated for. It never runs."""

    def __init__(self, vocab: int, length: int) -> None:
        super().__init__()
        self._shape = ArShape(
            num_layers=1, num_kv_heads=1, head_dim=2, hidden_width=2, vocab_size=vocab, max_positions=length
        )

    @property
    def shape(self) -> ArShape:
        return self._shape

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        raise AssertionError("only a shape")

    def embed_next(self, step: NextTokens) -> Tensor:
        raise AssertionError("only a shape")

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        raise AssertionError("only a shape")

    def logits(self, hidden_RD: Tensor) -> Tensor:
        raise AssertionError("only a shape")


class _FrameShapeOnly(_ShapeOnly, CodecModel):
    num_groups = 16

    def __init__(self, vocab: int, length: int, width: int) -> None:
        super().__init__(vocab, length)
        self._width = width

    @property
    def next_width(self) -> int:
        return self._width

    def predict_codes(self, hidden_RD: Tensor, code0_R: Tensor, draw: DrawCode) -> Codes:
        raise AssertionError("only a shape")

    def embed_codes(self, codes_RG: Tensor) -> Tensor:
        raise AssertionError("only a shape")


def cases(sizes: KernelSizes, buffers: Buffers) -> Iterator[KernelCase]:
    for rows in (sizes.rows[0], sizes.rows[-1]):
        for name, make in _calls(sizes, rows, buffers).items():
            # A cache line of state per row, read and written.
            yield KernelCase(f"{name} {rows}", make, rows * 2 * 64)
        # Codes and embeddings are read and written besides.
        moved = 2 * (_FrameShapeOnly.num_groups * 8 + sizes.talker.width * buffers.item)
        yield KernelCase(f"place_frames {rows}", _place_frames(sizes, rows, buffers), rows * (64 + moved))
        # Codes are read, and two cache lines of state read and written.
        read = _FrameShapeOnly.num_groups * 8
        yield KernelCase(f"end_frames {rows}", _end_frames(sizes, rows, buffers), rows * (2 * 2 * 64 + read))


def _calls(sizes: KernelSizes, rows: int, b: Buffers) -> dict[str, Callable[[], Call]]:
    length = _longest(sizes)
    blocks = -(-length // _BLOCK)

    def made() -> tuple[RowState, StepBuffers, Tensor]:
        return _made(_ShapeOnly(sizes.thinker.vocab, length), sizes, rows, b)

    def prepare() -> Call:
        state, step, which = made()
        return lambda: prepare_decodes(state, which, _BLOCK, step, blocks)

    def accept() -> Call:
        state, step, which = made()
        return lambda: accept_tokens(state, which, step.accepted_NW[:rows])

    def update() -> Call:
        state, step, which = made()
        advance = torch.ones_like(which)
        return lambda: post_update(state, which, step.accepted_NW[:rows], advance, EVERYTHING)

    def read() -> Call:
        state, _, which = made()
        return lambda: frame_inputs(state, which)

    return {"prepare_decodes": prepare, "accept_tokens": accept, "post_update": update, "frame_inputs": read}


def _place_frames(sizes: KernelSizes, rows: int, b: Buffers) -> Callable[[], Call]:
    groups, width = _FrameShapeOnly.num_groups, sizes.talker.width

    def make() -> Call:
        state, _, which = _made(_FrameShapeOnly(sizes.talker.vocab, _longest(sizes), width), sizes, rows, b)
        pages = torch.zeros(state.block_table.numel(), _BLOCK, groups, dtype=torch.int64, device=b.device)
        codes, next_ = b.randint(sizes.predictor.vocab, rows, groups), b.randn(rows, width)
        return lambda: place_frames(state, which, codes, next_, _BLOCK, pages)

    return make


def _end_frames(sizes: KernelSizes, rows: int, b: Buffers) -> Callable[[], Call]:
    groups = _FrameShapeOnly.num_groups

    def make() -> Call:
        model = _FrameShapeOnly(sizes.talker.vocab, _longest(sizes), sizes.talker.width)
        state, _, which = _made(model, sizes, rows, b)
        codes = b.randint(sizes.predictor.vocab, rows, groups)
        return lambda: end_frames(state, which, codes, 0, groups - 1)

    return make


def _longest(sizes: KernelSizes) -> int:
    return sizes.length + 4096


def _made(model: ArModel, sizes: KernelSizes, rows: int, b: Buffers) -> tuple[RowState, StepBuffers, Tensor]:
    """State and buffers of rows that go on, and which rows those are."""
    options = ArOptions(max_num_seqs=rows, max_model_len=_longest(sizes))
    limits, device = Limits.of("bench", options, model.shape), open_device(b.device.type)
    state = allocate_rows(device, model, limits, b.dtype)
    state.columns.length[:], state.columns.active[:], state.columns.limit[:] = sizes.length, 1, 2**40
    state.block_table.copy_(torch.arange(state.block_table.numel()).view_as(state.block_table))
    state.sampling.stop_ids.fill_(-1)
    step = allocate_step_buffers(device, model, limits, b.dtype)
    step.accepted_NW[:, NUM_TOKENS] = 1
    return state, step, b.arange(rows)
