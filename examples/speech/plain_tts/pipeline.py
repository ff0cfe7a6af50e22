"""The family's graph: talker -> vocoder."""

from omni.checkpoint import Checkpoint
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from omni_ar.generation_config import sampling_defaults
from omni_ar.options import ArOptions
from omni_vocoder.options import VocoderOptions
from plain_tts.config import read_config


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    config = read_config(checkpoint)
    sampling = sampling_defaults(checkpoint.generation_config, config.codec_eos, config.codebook_size + 1)
    talker = Stage(name="talker", kind="ar", model="plain_tts.talker:build", options=ArOptions(sampling=sampling))
    # Nothing looks ahead, so a few frames can be heard at once.
    chunks = VocoderOptions(first_chunk_frames=2, chunk_frames=8)
    vocoder = Stage(name="vocoder", kind="vocoder", model="plain_tts.vocoder:build", options=chunks, dtype="float32")
    return Pipeline(
        family="plain_tts",
        stages=(talker, vocoder),
        edges=(Edge(producer="talker", consumer="vocoder", adapter="omni_ar.adapters:FramesToCodes"),),
        outputs=(PipelineOutput(modality="audio", stage="vocoder"),),
        frontend="plain_tts.frontend:build",
    )
