"""The family's graph: one autoregressive stage, whose tokens are the text."""

from omni.checkpoint import Checkpoint
from omni.pipeline import Pipeline, PipelineOutput, Stage
from omni_ar.generation_config import sampling_defaults
from omni_ar.options import ArOptions


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    sampling = sampling_defaults(checkpoint.generation_config, None, vocab_size=256)
    options = ArOptions(sampling=sampling)
    return Pipeline(
        family="bigram",
        stages=(Stage(name="writer", kind="ar", model="omni_bigram.model:build", options=options),),
        outputs=(PipelineOutput(modality="text", stage="writer"),),
        frontend="omni_bigram.frontend:build",
    )
