"""The family's graph: audio encoder -> backbone -> vocoder."""

from omni.checkpoint import Checkpoint
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from omni.sampling import SamplingParams
from omni_ar.generation_config import code_sampling_defaults, sampling_defaults
from omni_ar.options import ArOptions
from omni_csm.config import CsmConfig, read_config
from omni_encoder.options import EncoderOptions
from omni_vocoder.options import VocoderOptions

_HERE = "omni_csm"
_MOST_FRAMES = 125
"""The published limit: 10 seconds."""

_DEPTH = "depth_decoder_"
"""The prefix in generation_config.json of sampling parameters for the codes after a frame's first."""

_CODEC_DTYPE = "float32"
"""The published dtype, for any dtype of the other stages."""


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    """Speech only: no stage writes text."""
    config = read_config(checkpoint)
    # The codec has no lookahead, so the first chunk can be short. It plays while the next one is decoded.
    speaking = VocoderOptions(first_chunk_frames=4, chunk_frames=12)
    # A longer clip would not fit a prompt.
    encoding = EncoderOptions(max_batch_length=config.backbone.max_positions)
    return Pipeline(
        family="csm",
        stages=(
            Stage(
                name="audio_encoder",
                kind="encoder",
                model=f"{_HERE}.mimi.encoder:build",
                options=encoding,
                dtype=_CODEC_DTYPE,
            ),
            Stage(
                name="backbone",
                kind="ar",
                model=f"{_HERE}.backbone:build",
                options=ArOptions(sampling=_sampling(checkpoint, config)),
                priority=-1,
            ),
            Stage(
                name="vocoder",
                kind="vocoder",
                model=f"{_HERE}.mimi.vocoder:build",
                options=speaking,
                dtype=_CODEC_DTYPE,
            ),
        ),
        edges=(
            Edge(
                producer="audio_encoder", consumer="backbone", adapter="omni_ar.adapters:audio_embeddings", keyed=True
            ),
            Edge(producer="backbone", consumer="vocoder", adapter="omni_ar.adapters:FramesToCodes"),
        ),
        outputs=(
            PipelineOutput(modality="audio", stage="vocoder"),
            PipelineOutput(
                modality="codes", stage="backbone", adapter="omni_ar.adapters:FramesForUsers", default=False
            ),
        ),
        frontend=f"{_HERE}.frontend:build",
    )


def _sampling(checkpoint: Checkpoint, config: CsmConfig) -> SamplingParams:
    """Returns the published defaults. A frame, not a single code, ends a sound, so there is no stop id."""
    generation = {"max_new_tokens": _MOST_FRAMES} | checkpoint.generation_config
    published = sampling_defaults(generation | {"eos_token_id": None}, None, config.vocab_size)
    return code_sampling_defaults(generation, _DEPTH).with_defaults(published)
