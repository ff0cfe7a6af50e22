"""The family's graph: one autoregressive stage, whose tokens are the text."""

from omni.checkpoint import Checkpoint
from omni.pipeline import Pipeline, PipelineOutput, Stage
from omni_ar.generation_config import sampling_defaults
from omni_ar.options import ArOptions
from omni_pocket.config import read_config


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    config = read_config(checkpoint)  # refuses a wrong config before any weight is read
    sampling = sampling_defaults(checkpoint.generation_config, None, config.vocab_size)
    return Pipeline(
        family="pocket",
        stages=(Stage(name="text", kind="ar", model="omni_pocket.model:build", options=ArOptions(sampling=sampling)),),
        outputs=(PipelineOutput(modality="text", stage="text"),),
        frontend="omni_pocket.frontend:build",
    )
