"""The family's graph: audio encoder -> backbone -> vocoder."""

from omni.checkpoint import Checkpoint
from omni.pipeline import Edge, Output, Pipeline, Stage
from omni.sampling import SamplingParams
from omni_ar.generation_config import code_sampling_defaults, sampling_defaults
from omni_ar.options import ArOptions
from omni_csm.config import CsmConfig, read_config
from omni_encoder.options import EncoderOptions
from omni_vocoder.options import VocoderOptions

_HERE = "omni_csm"
_MOST_FRAMES = 125
"""As published: 10 seconds."""

_DEPTH = "depth_decoder_"
"""With these names generation_config.json tells how the codes after a frame's first are drawn."""

_CODEC_DTYPE = "float32"
"""As published, whatever the others are in."""


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    """Speech only: no stage writes text."""
    config = read_config(checkpoint)
    # The codec looks nowhere ahead: little is waited for before the first sound, which lasts while the next chunk is made.
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
        outputs=(Output(modality="audio", stage="vocoder"),),
        frontend=f"{_HERE}.frontend:build",
    )


def _sampling(checkpoint: Checkpoint, config: CsmConfig) -> SamplingParams:
    """As published. A frame ends a sound, not a code, so no id stops."""
    generation = {"max_new_tokens": _MOST_FRAMES} | checkpoint.generation_config
    published = sampling_defaults(generation | {"eos_token_id": None}, None, config.vocab_size)
    return code_sampling_defaults(generation, _DEPTH).with_defaults(published)
