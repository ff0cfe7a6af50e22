"""A stage kind that hands code frames to the test, and the pipeline in which it reads those of the vocoder.

A frame leaves the engine only as sound; to compare codes, they are tapped where the vocoder takes them.
"""

import msgspec
from torch import Tensor

from omni.hookspecs import hookimpl
from omni.pipeline import Pipeline, PipelineOutput, Stage
from omni.plugin.entries import StageKindEntry
from omni.stage import Feed, PlainStage, StageContext
from omni_frames.request import CodeFrames
from tests.support.bounded_worker import Case
from tests.support.host_readers import HostReaderOptions, HostReaderWorker


class CodesChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One codec frame, group 0 first."""

    codes: tuple[int, ...]


class FrameReaderKind:
    """Stage kind `"frame_reader"`: reads code frames in host memory. Has no model."""

    name = "frame_reader"
    options = HostReaderOptions

    def load(self, context: StageContext) -> PlainStage:
        assert isinstance(context.options, HostReaderOptions)
        return PlainStage(HostReaderWorker(context.stage.name, context.device, context.options, "codes", read_frames))


def read_frames(case: Case[Feed], meta: msgspec.Struct, rows: Tensor | None) -> list[CodesChunk]:
    known = meta.codes if isinstance(meta, CodeFrames) and rows is None else rows
    assert known is not None
    return [CodesChunk(codes=tuple(frame)) for frame in known.tolist()]


@hookimpl
def omni_stage_kinds() -> list[StageKindEntry]:
    return [StageKindEntry(name="frame_reader", kind="tests.support.tap:FrameReaderKind")]


def with_tap(pipeline: Pipeline) -> Pipeline:
    """The pipeline with a host reader beside its vocoder, as the output modality `"codes"`."""
    (vocoder,) = (output.stage for output in pipeline.outputs if output.modality == "audio")
    (edge,) = (edge for edge in pipeline.edges if edge.consumer == vocoder)
    tap = Stage(name="tap", kind="frame_reader", options=HostReaderOptions(max_num_seqs=1000))
    tapped = msgspec.structs.replace(edge, consumer="tap", memory="host")
    return pipeline.extended(stages=[tap], edges=[tapped], outputs=[PipelineOutput(modality="codes", stage="tap")])
