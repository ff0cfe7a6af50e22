"""The family's graph: encoders -> thinker -> talker -> token2wav."""

from omni.checkpoint import Checkpoint
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from omni.sampling import SamplingParams
from omni_ar.generation_config import sampling_defaults
from omni_ar.options import ArOptions
from omni_diffusion.options import DiffusionOptions
from omni_encoder.options import EncoderOptions
from omni_qwen2_5_omni.config import OmniConfig, read_config

_HERE = "omni_qwen2_5_omni"
_END = 151645
"""`<|im_end|>` as released, for folders without an end id."""
_MOST_TOKENS = {"max_new_tokens": 1024}
"""The default of transformers' `generate`, which overrides generation_config.json."""


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    """Without talker and token2wav if the checkpoint's speech is switched off."""
    config = read_config(checkpoint)
    published = _thinker_sampling(checkpoint, config.thinker_vocab_size)
    stages = [
        Stage(name="audio_encoder", kind="encoder", model=f"{_HERE}.encoders:build_audio", options=EncoderOptions()),
        Stage(name="vision_encoder", kind="encoder", model=f"{_HERE}.encoders:build_vision", options=EncoderOptions()),
        Stage(name="thinker", kind="ar", model=f"{_HERE}.thinker:build", options=ArOptions(sampling=published)),
    ]
    edges = [
        Edge(producer="audio_encoder", consumer="thinker", adapter="omni_ar.adapters:audio_embeddings", keyed=True),
        Edge(producer="vision_encoder", consumer="thinker", adapter="omni_ar.adapters:image_embeddings", keyed=True),
    ]
    outputs = [PipelineOutput(modality="text", stage="thinker")]
    if config.talker is not None:
        # The talker's steps are short and determine the latency of speech: they run before the thinker's if the device can choose.
        # A prefill of 2048 tokens is one of the short steps, too.
        # A block that token2wav denoises has 12 codes: they are passed on six at a time.
        speaking = ArOptions(sampling=_talker_sampling(config), stream_interval=6, short_slack_prefill_tokens=2048)
        # Windows keep state of the earlier ones: no context is denoised again.
        denoising = DiffusionOptions(blocks_before=0, blocks_after=1)
        stages += [
            Stage(name="talker", kind="ar", model=f"{_HERE}.talker:build", options=speaking, priority=-1),
            Stage(
                name="token2wav",
                kind="diffusion",
                model=f"{_HERE}.token2wav:build",
                options=denoising,
                # As published, for any dtype of the other stages.
                dtype="float32",
                # Before the talker's too: it has most of the work and the longest share of the latency. With the others first,
                # sound begins later (7B shape, one request on an H200: after 0.49 s; 0.55 s with -1, 0.65 s with 0).
                priority=-2,
            ),
        ]
        edges += [
            Edge(producer="thinker", consumer="talker", adapter="omni_ar.hidden_conditioning:HiddenConditioning"),
            Edge(producer="talker", consumer="token2wav", adapter="omni_ar.adapters:TokensToCodes"),
        ]
        outputs += [
            PipelineOutput(modality="audio", stage="token2wav"),
            PipelineOutput(modality="codes", stage="talker", adapter="omni_ar.adapters:TokensForUsers", default=False),
        ]
    return Pipeline(
        family="qwen2_5_omni",
        stages=tuple(stages),
        edges=tuple(edges),
        outputs=tuple(outputs),
        frontend=f"{_HERE}.frontend:build",
    )


def _thinker_sampling(checkpoint: Checkpoint, vocab_size: int) -> SamplingParams:
    """Defaults of generation_config.json, except the end id: as in transformers, the thinker's own config takes precedence."""
    generation = checkpoint.generation_config | _MOST_TOKENS
    others = {name: value for name, value in generation.items() if name != "eos_token_id"}
    thinker = checkpoint.config["thinker_config"]
    for path, table in (("thinker_config", thinker), ("thinker_config.text_config", thinker.get("text_config", {}))):
        if table.get("eos_token_id"):
            field = f"config.json: {path}.eos_token_id"
            return sampling_defaults(others, table["eos_token_id"], vocab_size, eos_field=field)
    return sampling_defaults(generation, _END, vocab_size, eos_field="config.json: thinker_config.eos_token_id")


def _talker_sampling(config: OmniConfig) -> SamplingParams:
    """The defaults of transformers' `generate`, without codes that have no sound, where that fails."""
    talker, sounds = config.talker, config.hf.token2wav_config.dit_config.num_embeds + 1
    assert talker is not None
    stops = (talker.codec_pad, talker.codec_eos)
    return SamplingParams(
        max_tokens=4096,
        temperature=0.9,
        top_k=40,
        top_p=0.8,
        repetition_penalty=1.05,
        stop_token_ids=stops,
        suppress_token_ids=tuple(
            {talker.codec_bos, *(code for code in range(sounds, talker.vocab_size) if code not in stops)}
        ),
    )
