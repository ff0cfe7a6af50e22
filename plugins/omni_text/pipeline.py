"""The family's graph: one stage."""

from omni.checkpoint import Checkpoint
from omni.pipeline import Pipeline, PipelineOutput, Stage
from omni_ar.generation_config import sampling_defaults
from omni_ar.options import ArOptions
from omni_text.config import read_config


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    """One autoregressive stage, `text`."""
    config = read_config(checkpoint)  # refuses an unsupported config before any weight is read
    ends = checkpoint.config.get("eos_token_id")
    sampling = sampling_defaults(checkpoint.generation_config, ends, config.vocab_size)
    stage = Stage(name="text", kind="ar", model="omni_text.model:build", options=ArOptions(sampling=sampling))
    return Pipeline(
        family="text",
        stages=(stage,),
        outputs=(PipelineOutput(modality="text", stage="text"),),
        frontend="omni_text.frontend:build",
    )
