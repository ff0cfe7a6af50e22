"""A two-stage pipeline, front end -> encoder -> vocoder, of models small enough to check by hand."""

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint

import torch
from torch import Tensor

from omni.payload import Payload
from omni.pipeline import Edge, Output, Pipeline, Stage
from omni.plugin.manager import Plugins, load_plugins
from omni.stage import StageContext
from omni_encoder.inputs import Encoded
from omni_encoder.model import EncoderModel, SampleItem
from omni_encoder.options import EncoderOptions
from omni_encoder.plan import EncodePlan, EncoderInput
from omni_frames import CodeFrames
from omni_vocoder.options import VocoderOptions
from support.wavemaker import WaveMaker


class Coder(EncoderModel):
    """Features are codes already: it adds one."""

    def plan(self, items: Sequence[Mapping[str, Tensor]], length: int | None = None) -> EncodePlan:
        assert length is None
        codes = tuple(item["codes"] for item in items)
        sizes = tuple(part.shape[0] for part in codes)
        return EncodePlan({"codes": EncoderInput((sum(sizes), 2), torch.int64, codes)}, sizes, sizes)

    def encode(self, inputs: Mapping[str, Tensor], segments: tuple[int, ...] | None) -> Mapping[str, Tensor]:
        if bool((inputs["codes"] < 0).any()):
            raise ValueError("negative")
        return {"codes": inputs["codes"] + 1}

    def largest_item(self, length: int) -> SampleItem:
        return SampleItem(length, {"codes": torch.zeros(length, 2, dtype=torch.int64)})


class EncodedToFrames:
    """What the encoder gives is what the vocoder speaks."""

    def __init__(self, args: object) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        assert isinstance(payload.meta, Encoded)
        codes = payload.tensors["codes"]
        assert isinstance(codes, Tensor)
        return (Payload(CodeFrames(count=codes.shape[0]), {"codes": codes}),)

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()


def build_coder(context: StageContext) -> Coder:
    return Coder()


def build_wavemaker(context: StageContext) -> WaveMaker:
    return WaveMaker(device=str(context.device.torch_device))


def build_nothing(context: StageContext) -> object:
    return object()


def voice_pipeline(coder: str = "build_coder", wavemaker: str = "build_wavemaker") -> Pipeline:
    here = "support.voice_pipeline"
    vocoder = VocoderOptions(max_num_seqs=2, first_chunk_frames=2, chunk_frames=3)
    return Pipeline(
        family="voice",
        stages=(
            Stage(name="coder", kind="encoder", model=f"{here}:{coder}", options=EncoderOptions()),
            Stage(name="voice", kind="vocoder", model=f"{here}:{wavemaker}", options=vocoder),
        ),
        edges=(Edge(producer="coder", consumer="voice", adapter=f"{here}:EncodedToFrames"),),
        outputs=(Output(modality="audio", stage="voice"),),
        frontend=f"{here}:none",
    )


def builtin_plugins() -> Plugins:
    """The plugins that the pipeline needs, loaded as entry points are."""
    modules = {"encoder": "omni_encoder.plugin", "vocoder": "omni_vocoder.plugin", "local": "omni_local.plugin"}
    return load_plugins([EntryPoint(name, module, "omni") for name, module in modules.items()])
