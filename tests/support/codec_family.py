"""A small talker and small vocoders, as a family: the sound can be computed by hand.

speaker ──► voice   modality "audio": frames on the device
        ──► echo    modality "echo": the same, by another vocoder
        ──► host reader   modality "filed": frames in host memory
"""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from omni.checkpoint import Checkpoint
from omni.hookspecs import hookimpl
from omni.payload import Payload
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from omni.pipeline.stage import Memory
from omni.plugin.entries import ModelFamily
from omni.plugin.manager import Plugins
from omni.stage import StageContext
from omni_ar.inputs import TokenCodes
from omni_ar.options import ArOptions
from omni_frames.request import CodeFrames
from omni_vocoder.options import VocoderOptions
from tests.support.host_readers import HostReaderOptions
from tests.support.plugins import family_of, plugins_of
from tests.support.small_codec import GROUPS, SmallCodec
from tests.support.wavemaker import WaveMaker

SPEAKER, VOICE, ECHO, HOST_READER = "speaker", "voice", "echo", "host_reader"
_WHOLE = 64
"""Frames, more than a request has. Stages that keep rows to the end need credit for all of it, or each waits for the other."""
_HERE = "tests.support.codec_family"


def write_checkpoint(folder: Path, credit: int = 8) -> Path:
    """Returns the folder. credit: of the host reader's edge."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "codec", "credit": credit}))
    return folder


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    options = ArOptions(max_num_seqs=3, block_size=3)
    chunks = VocoderOptions(max_num_seqs=2, first_chunk_frames=2, chunk_frames=3)
    return Pipeline(
        family="codec",
        stages=(
            Stage(name=SPEAKER, kind="ar", model=f"{_HERE}:build_speaker", options=options),
            Stage(name=VOICE, kind="vocoder", model=f"{_HERE}:build_voice", options=chunks),
            Stage(name=ECHO, kind="vocoder", model=f"{_HERE}:build_voice", options=chunks),
            Stage(
                name=HOST_READER,
                kind="frame_reader",
                options=HostReaderOptions(max_num_seqs=_WHOLE, payloads_per_read=1),
            ),
        ),
        edges=(
            _edge(VOICE, "device", _WHOLE),
            _edge(ECHO, "device", _WHOLE),
            _edge(HOST_READER, "host", checkpoint.config["credit"]),
        ),
        outputs=(
            PipelineOutput(modality="codes", stage=SPEAKER),
            PipelineOutput(modality="audio", stage=VOICE),
            PipelineOutput(modality="echo", stage=ECHO),
            PipelineOutput(modality="filed", stage=HOST_READER),
        ),
        frontend=f"{_HERE}:none",
    )


def _edge(consumer: str, memory: Memory, credit: int) -> Edge:
    return Edge(producer=SPEAKER, consumer=consumer, adapter=f"{_HERE}:ToFrames", credit=credit, memory=memory)


class ToFrames:
    """Passes frames on."""

    def __init__(self, args: msgspec.Struct | None) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        if isinstance(payload.meta, TokenCodes):
            return (Payload(CodeFrames(count=payload.tensors["codes"].shape[0]), payload.tensors),)
        return ()

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()


def build_speaker(context: StageContext) -> SmallCodec:
    return SmallCodec().to(context.device.torch_device, context.dtype)


def build_voice(context: StageContext) -> WaveMaker:
    return WaveMaker(num_groups=GROUPS, device=str(context.device.torch_device))


def codec_plugins() -> Plugins:
    """The family, and its stage kinds and connectors."""
    return plugins_of("ar", "vocoder", "local", "shm", codec=_HERE, tap="tests.support.tap")


@hookimpl
def omni_model_families() -> Sequence[ModelFamily]:
    return [family_of("codec", _HERE)]
