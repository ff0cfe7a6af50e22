"""The family's graph: encoders -> thinker -> talker -> code2wav."""

from omni.checkpoint import Checkpoint
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from omni.sampling import SamplingParams
from omni_ar.generation_config import sampling_defaults
from omni_ar.options import ArOptions
from omni_encoder.options import EncoderOptions
from omni_qwen3_omni.config import TalkerConfig, read_config
from omni_vocoder.options import VocoderOptions

_HERE = "omni_qwen3_omni"
_MOST_TOKENS = {"max_new_tokens": 1024}
"""The default of transformers' `generate`, which overrides generation_config.json."""


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    """The Instruct layout has speech; the Thinking layout has neither talker nor vocoder."""
    config = read_config(checkpoint)
    stages = [
        Stage(name="audio_encoder", kind="encoder", model=f"{_HERE}.encoders:build_audio", options=EncoderOptions()),
        Stage(name="vision_encoder", kind="encoder", model=f"{_HERE}.encoders:build_vision", options=EncoderOptions()),
        Stage(
            name="thinker",
            kind="ar",
            model=f"{_HERE}.thinker:build",
            options=ArOptions(
                sampling=sampling_defaults(
                    checkpoint.generation_config | _MOST_TOKENS, config.im_end, config.thinker_vocab_size
                )
            ),
        ),
    ]
    edges = [
        Edge(producer="audio_encoder", consumer="thinker", adapter="omni_ar.adapters:audio_embeddings", keyed=True),
        Edge(producer="vision_encoder", consumer="thinker", adapter="omni_ar.adapters:image_embeddings", keyed=True),
    ]
    outputs = [PipelineOutput(modality="text", stage="thinker")]
    if config.talker is not None:
        config.code2wav.require_equal({"num_quantizers": config.talker.num_groups})
        # The talker's steps are short and determine the latency of speech, so they run first if the device can choose. The forward
        # of a prefill of 1,600 tokens takes an H200 5 ms, a small part of any listener's slack.
        talker = Stage(
            name="talker",
            kind="ar",
            model=f"{_HERE}.talker:build",
            options=ArOptions(sampling=_talker_sampling(config.talker), short_slack_prefill_tokens=2048),
            priority=-1,
        )
        # First audio waits for its chunk. On an H200 with 16 requests at once, p95 of first audio is 127 ms with this priority, and
        # 150 ms without.
        vocoder = Stage(
            name="code2wav",
            kind="vocoder",
            model=f"{_HERE}.code2wav:build",
            options=VocoderOptions(),
            priority=-1,
        )
        stages += [talker, vocoder]
        edges += [
            Edge(
                producer="thinker", consumer="talker", adapter="omni_ar.text_conditioning:TextConditioning", keyed=True
            ),
            Edge(producer="talker", consumer="code2wav", adapter="omni_ar.adapters:FramesToCodes"),
        ]
        outputs += [
            PipelineOutput(modality="audio", stage="code2wav"),
            PipelineOutput(modality="codes", stage="talker", adapter="omni_ar.adapters:FramesForUsers", default=False),
        ]
    return Pipeline(
        family="qwen3_omni",
        stages=tuple(stages),
        edges=tuple(edges),
        outputs=tuple(outputs),
        frontend=f"{_HERE}.frontend:build",
    )


def _talker_sampling(talker: TalkerConfig) -> SamplingParams:
    """The defaults of transformers' `generate`, and of its code predictor. The last 1,024 ids are control codes without sound."""
    control = range(talker.vocab_size - 1024, talker.vocab_size)
    return SamplingParams(
        max_tokens=4096,
        temperature=0.9,
        top_k=50,
        top_p=1.0,
        code_temperature=1.0,
        code_top_k=50,
        code_top_p=0.8,
        repetition_penalty=1.05,
        stop_token_ids=(talker.codec_eos,),
        suppress_token_ids=tuple(code for code in control if code != talker.codec_eos),
    )
