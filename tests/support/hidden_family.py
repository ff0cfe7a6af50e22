"""A model family whose every decode token emits a hidden state, which other stages read.

    writer ──► reader   modality "read": on the device
           ──► host reader    modality "filed": in host memory
           ──► token reader   modality "noted": the tokens, without hidden states

A checkpoint has the width of hidden states and the names of their readers.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from omni.checkpoint import Checkpoint
from omni.hookspecs import hookimpl
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from omni.pipeline.stage import Memory
from omni.plugin.entries import ModelFamily, StageKindEntry
from omni.plugin.manager import Plugins
from omni.stage import StageContext
from omni_ar.options import ArOptions
from tests.support.hidden_model import HiddenText, ReadOut
from tests.support.hidden_reader import ReaderOptions
from tests.support.host_readers import HostReaderOptions
from tests.support.plugins import family_of, plugins_of

WRITER, READER, HOST_READER, TOKEN_READER = "writer", "reader", "host_reader", "token_reader"
MODALITIES = {READER: "read", HOST_READER: "filed", TOKEN_READER: "noted"}
_HERE = "tests.support.hidden_family"


def write_checkpoint(
    folder: Path,
    *,
    width: int = 64,
    readers: Sequence[str] = (READER,),
    tokens: bool = True,
    credit: int | Mapping[str, int] = 8,
    positions: int = 96,
) -> Path:
    """readers: of `READER`, `HOST_READER` and `TOKEN_READER`. tokens: whether hidden states of generated tokens are emitted, and
    not only the prompt's. credit: of each edge, or by reader. positions: the longest sequence. Returns the folder."""
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
        HOST_READER: Stage(
            name=HOST_READER, kind="hidden_host_reader", model=f"{_HERE}:build_readout", options=HostReaderOptions()
        ),
        TOKEN_READER: Stage(
            name=TOKEN_READER, kind="token_reader", model=f"{_HERE}:build_readout", options=HostReaderOptions()
        ),
    }
    names: list[str] = checkpoint.config["readers"]
    return Pipeline(
        family="hidden",
        stages=(writer, *(readers[name] for name in names)),
        edges=tuple(_edge(name, checkpoint.config["credit"][name]) for name in names),
        outputs=(
            PipelineOutput(modality="text", stage=WRITER),
            *(PipelineOutput(modality=MODALITIES[name], stage=name) for name in names),
        ),
        frontend=f"{_HERE}:none",
    )


def _edge(reader: str, credit: int) -> Edge:
    memory: Memory = "host" if reader == HOST_READER else "device"
    adapter = (
        "tests.support.host_readers:TokensOnly" if reader == TOKEN_READER else "tests.support.hidden_model:ToReader"
    )
    return Edge(producer=WRITER, consumer=reader, adapter=adapter, credit=credit, memory=memory)


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
    return plugins_of("ar", "local", "shm", hidden=_HERE)


@hookimpl
def omni_model_families() -> Sequence[ModelFamily]:
    return [family_of("hidden", _HERE)]


@hookimpl
def omni_stage_kinds() -> Sequence[StageKindEntry]:
    return [
        StageKindEntry(name="hidden_reader", kind="tests.support.hidden_reader:ReaderKind"),
        StageKindEntry(name="hidden_host_reader", kind="tests.support.hidden_reader:HostReaderKind"),
        StageKindEntry(name="token_reader", kind="tests.support.host_readers:TokenReaderKind"),
    ]
