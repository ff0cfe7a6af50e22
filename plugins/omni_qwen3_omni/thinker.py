"""The thinker: a mixture-of-experts decoder with M-RoPE and deepstack image features."""

from omni.stage import StageContext
from omni_ar.layers.deepstack import DeepstackModel
from omni_qwen3_omni.config import read_config


def build(context: StageContext) -> DeepstackModel:
    """The checkpoint's thinker on the context's device. Its payload is the hidden states for the talker."""
    config = read_config(context.checkpoint)
    model = DeepstackModel(
        config.thinker,
        config.thinker_vocab_size,
        deepstack=("image",),
        tied=config.tied,
        hidden_layer=config.talker.accept_hidden_layer if config.talker is not None else None,
        device=context.device.torch_device,
        dtype=context.dtype,
    )
    model.load(context, "thinker.")
    return model
