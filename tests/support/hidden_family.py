"""A model family whose every decode token emits a hidden state, which other stages read.

    writer ──► reader   modality "read": on the device
           ──► clerk    modality "filed": in host memory

A checkpoint says how wide hidden states are and who reads them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from omni.checkpoint import Checkpoint
from omni.hookspecs import hookimpl
from omni.payload import Payload
from omni.pipeline import Edge, Output, Pipeline, Stage
from omni.pipeline.stage import Memory
from omni.plugin.entries import ModelFamily, StageKindEntry
from omni.plugin.manager import Plugins, load_plugins
from omni.stage import StageContext
from omni_ar.inputs import PromptHidden, TokenHidden
from omni_ar.model import ArShape, Batch
from omni_ar.options import ArOptions
from support.entry_points import own_entry_points
from support.hidden_reader import ClerkOptions, ReaderOptions
from support.small_text import WIDTH, SmallText, random_matrix

# A small text model that emits a hidden state of any width for every token, and the same states computed the long way.
#
# A row of it says where it comes from, exactly: position and token id stand at its beginning and at its end. What lies between is a
# projection of what the layers made of everything before, so a row that is torn, stale or another's is told from the right one.
#
# Shape legend: T tokens, D the model's width, W the emitted width.

EDGE = 2
"""Columns at each end of a row that hold whole numbers."""


class HiddenText(SmallText):
    """emitted: width of the emitted hidden states, at least 5. tokens: whether those of generated tokens are emitted too."""

    def __init__(self, emitted: int = 64, vocab: int = 61, positions: int = 96, *, tokens: bool = True) -> None:
        super().__init__(vocab, positions, payload=True)
        self.emitted, self.tokens = emitted, tokens
        self.projection = random_matrix(emitted - 2 * EDGE, WIDTH, torch.Generator().manual_seed(emitted))

    @property
    def shape(self) -> ArShape:
        shape = super().shape
        wider = shape.hidden_width + 1
        return replace(shape, input_width=wider, payload_width=self.emitted, emits_tokens=self.tokens)

    def _embed(self, ids_T: Tensor) -> Tensor:
        """The id goes along in a column of its own, which `forward` takes off again."""
        return torch.cat([super()._embed(ids_T), ids_T[:, None].float()], 1)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        hidden_TD = super().forward(x_TD[:, :-1], replace(batch, payload=None))
        if batch.payload is not None:
            batch.payload.store(self._emit(hidden_TD, batch.positions_PT[0], x_TD[:, -1]))
        return hidden_TD

    def _emit(self, hidden_TD: Tensor, positions_T: Tensor, ids_T: Tensor) -> Tensor:
        signature_T2 = torch.stack([positions_T.to(hidden_TD.dtype), ids_T.to(hidden_TD.dtype)], 1)
        return torch.cat([signature_T2, hidden_TD @ self.projection.T, signature_T2.flip(1)], 1)

    def emitted_whole(self, ids: Sequence[int]) -> Tensor:
        """The rows `[T, W]` of a sequence, in one piece, without a cache."""
        with torch.inference_mode():
            return self._emit(self.whole(ids), torch.arange(len(ids)), torch.tensor(list(ids)))


# What readers of hidden states give for a row: a few numbers that tell it from every other.
#
# Shape legend: n rows, W the emitted width, N numbers of a reading.

SUMS = 2
NUMBERS = 2 * EDGE + SUMS


class HiddenRows(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a reader: `hidden`, the rows of some of the prompt's positions, or the one of generated token `index`."""

    prompt: bool
    index: int = 0


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A row, read. prompt: whether it is of the prompt. index: which of its `payload_positions`, else which generated token.

    numbers: the whole numbers at both ends, then weighted sums over what lies between.
    """

    prompt: bool
    index: int
    numbers: tuple[float, ...]


class ToReader:
    """The adapter: rows go on, tokens do not."""

    def __init__(self, args: object = None) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        match payload.meta:
            case PromptHidden():
                return (Payload(HiddenRows(prompt=True), payload.tensors),)
            case TokenHidden(index=index):
                return (Payload(HiddenRows(prompt=False, index=index), payload.tensors),)
        return ()

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()


class ReadOut(nn.Module):
    """Reads rows of one width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        weights = np.random.default_rng(width).standard_normal((width - 2 * EDGE, SUMS)) / np.sqrt(width)
        self.on_host: NDArray[np.float32] = weights.astype(np.float32)
        self.register_buffer("weights", torch.from_numpy(self.on_host.copy()))

    def forward(self, rows_nW: Tensor) -> Tensor:
        """`[n, N]`."""
        return torch.cat([rows_nW[:, :EDGE], rows_nW[:, -EDGE:], rows_nW[:, EDGE:-EDGE] @ self.weights], 1)

    def read(self, rows_nW: NDArray[np.float32]) -> NDArray[np.float32]:
        """The same on the host."""
        return np.concatenate([rows_nW[:, :EDGE], rows_nW[:, -EDGE:], rows_nW[:, EDGE:-EDGE] @ self.on_host], 1)


WRITER, READER, CLERK = "writer", "reader", "clerk"
MODALITIES = {READER: "read", CLERK: "filed"}
_HERE = "support.hidden_family"


def write_checkpoint(
    folder: Path,
    *,
    width: int = 64,
    readers: Sequence[str] = (READER,),
    tokens: bool = True,
    credit: int | Mapping[str, int] = 8,
    positions: int = 96,
) -> Path:
    """readers: of `READER` and `CLERK`. tokens: whether hidden states of generated tokens are emitted, and not only the prompt's.
    credit: of each edge, or by reader. positions: the longest sequence. Returns the folder."""
    config = {
        "model_type": "hidden",
        "width": width,
        "readers": list(readers),
        "tokens": tokens,
        "credit": {name: credit if isinstance(credit, int) else credit[name] for name in readers},
        "positions": positions,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    writer = Stage(
        name=WRITER, kind="ar", model=f"{_HERE}:build_writer", options=ArOptions(max_num_seqs=4, block_size=4)
    )
    readers = {
        READER: Stage(name=READER, kind="hidden_reader", model=f"{_HERE}:build_readout", options=ReaderOptions()),
        CLERK: Stage(name=CLERK, kind="hidden_clerk", model=f"{_HERE}:build_readout", options=ClerkOptions()),
    }
    names: list[str] = checkpoint.config["readers"]
    return Pipeline(
        family="hidden",
        stages=(writer, *(readers[name] for name in names)),
        edges=tuple(_edge(name, checkpoint.config["credit"][name]) for name in names),
        outputs=(
            Output(modality="text", stage=WRITER),
            *(Output(modality=MODALITIES[name], stage=name) for name in names),
        ),
        frontend=f"{_HERE}:none",
    )


def _edge(reader: str, credit: int) -> Edge:
    memory: Memory = "host" if reader == CLERK else "device"
    return Edge(
        producer=WRITER, consumer=reader, adapter="support.hidden_family:ToReader", credit=credit, memory=memory
    )


def model_of(checkpoint: Checkpoint) -> HiddenText:
    """The writer's model, on the CPU."""
    config = checkpoint.config
    return HiddenText(config["width"], positions=config["positions"], tokens=config["tokens"])


def build_writer(context: StageContext) -> HiddenText:
    return model_of(context.checkpoint).to(context.device.torch_device, context.dtype)


def build_readout(context: StageContext) -> ReadOut:
    return ReadOut(context.checkpoint.config["width"]).to(context.device.torch_device)


def hidden_plugins() -> Plugins:
    """The family, its kinds of stages, and what else it needs."""
    plugins = load_plugins([EntryPoint("hidden", _HERE, "omni"), *own_entry_points("ar", "local")])
    for record in plugins.records:
        assert record.error is None, record.error
    return plugins


@hookimpl
def omni_model_families() -> Sequence[ModelFamily]:
    return [
        ModelFamily(
            name="hidden", model_types=("hidden",), pipeline=f"{_HERE}:pipeline", tiny=f"{_HERE}:write_checkpoint"
        )
    ]


@hookimpl
def omni_stage_kinds() -> Sequence[StageKindEntry]:
    return [
        StageKindEntry(name="hidden_reader", kind="support.hidden_reader:ReaderKind"),
        StageKindEntry(name="hidden_clerk", kind="support.hidden_reader:ClerkKind"),
    ]
