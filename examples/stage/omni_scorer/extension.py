"""A stage of this kind in the pipeline of any family: `omni run MODEL "prompt" --with scorer`."""

from collections.abc import Sequence

import msgspec

from omni import ConfigError
from omni.payload import Payload, RequestHiddenStates
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from omni_ar.options import ArOptions
from omni_scorer.options import ScorerOptions


def extend(pipeline: Pipeline) -> Pipeline:
    """Scores the hidden states of the main stage behind its first layer, unless it keeps those of other layers."""
    (main,) = (stage for stage in pipeline.stages if stage.name == pipeline.main_stage)
    if not isinstance(main.options, ArOptions):
        raise ConfigError(f"{main.name}.kind", f"{main.kind!r} keeps no hidden states", "extend another family")
    kept = msgspec.structs.replace(main.options, hidden_layers=main.options.hidden_layers or (1,))
    return pipeline.extended(
        stages=[
            msgspec.structs.replace(main, options=kept),
            Stage(name="scorer", kind="scorer", model="omni_scorer.model:build", options=ScorerOptions()),
        ],
        edges=[
            Edge(
                producer=main.name,
                consumer="scorer",
                adapter="omni_scorer.extension:HiddenOnly",
                hidden_states=True,
            )
        ],
        outputs=[PipelineOutput(modality="scorer", stage="scorer")],
    )


class HiddenOnly:
    """The adapter of the edge, an object for each request: tokens pass the edge too, and are not for the stage."""

    def __init__(self, args: msgspec.Struct | None) -> None:
        """args: of the front end, which has none for this edge."""

    def push(self, payload: Payload) -> Sequence[Payload]:
        return (payload,) if isinstance(payload.meta, RequestHiddenStates) else ()

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()
