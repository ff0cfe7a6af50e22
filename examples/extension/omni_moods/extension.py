"""Adds a stage to a pipeline."""

from collections.abc import Sequence

import msgspec

from omni.payload import Payload, RequestHiddenStates
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from omni_moods.options import MoodOptions, QuietOptions

LAYER = 2


def quiet(pipeline: Pipeline) -> Pipeline:
    (voice,) = (output for output in pipeline.outputs if output.modality == "audio")
    return pipeline.extended(
        stages=[Stage(name="quiet", kind="quiet", options=QuietOptions())],
        edges=[Edge(producer=voice.stage, consumer="quiet")],
        outputs=[PipelineOutput(modality="audio", stage="quiet")],
    )


def mood(pipeline: Pipeline) -> Pipeline:
    thinker = pipeline.stage("thinker")
    options = msgspec.structs.replace(thinker.options, hidden_layers=(LAYER,))
    return pipeline.extended(
        stages=[
            msgspec.structs.replace(thinker, options=options),
            Stage(name="mood", kind="mood", options=MoodOptions()),
        ],
        edges=[
            Edge(
                producer="thinker",
                consumer="mood",
                adapter="omni_moods.extension:HiddenOnly",
                memory="host",
                hidden_states=True,
            )
        ],
        outputs=[PipelineOutput(modality="mood", stage="mood")],
    )


class HiddenOnly:
    """The adapter of the classifier's edge: tokens pass it too, and are not for the stage."""

    def __init__(self, args: msgspec.Struct | None) -> None:
        """args: of the front end, which has none for this edge."""

    def push(self, payload: Payload) -> Sequence[Payload]:
        return (payload,) if isinstance(payload.meta, RequestHiddenStates) else ()

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()
