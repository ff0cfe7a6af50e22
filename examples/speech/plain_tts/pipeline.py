"""The family's graph: talker -> vocoder."""

from omni.checkpoint import Checkpoint
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from omni_ar.generation_config import sampling_defaults
from omni_ar.options import ArOptions
from omni_vocoder.options import VocoderOptions
from plain_tts.config import read_config


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    config = read_config(checkpoint)
    ids = config.codebook_size + 1
    sampling = sampling_defaults(checkpoint.generation_config, config.codec_eos, ids)
    options = ArOptions(sampling=sampling)
    talker = Stage(name="talker", kind="ar", model="plain_tts.talker:build", options=options)
    # Nothing looks ahead, so a few frames can be heard at once.
    chunks = VocoderOptions(first_chunk_frames=2, chunk_frames=8)
    vocoder = Stage(
        name="vocoder",
        kind="vocoder",
        model="plain_tts.vocoder:build",
        options=chunks,
        dtype="float32",
    )
    adapter = "omni_ar.adapters:FramesToCodes"
    edge = Edge(producer="talker", consumer="vocoder", adapter=adapter)
    return Pipeline(
        family="plain_tts",
        stages=(talker, vocoder),
        edges=(edge,),
        outputs=(PipelineOutput(modality="audio", stage="vocoder"),),
        frontend="plain_tts.frontend:build",
    )
