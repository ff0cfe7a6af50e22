"""A causal text model on the autoregressive stage's building blocks."""

from omni.stage import StageContext
from omni_ar.layers.text_model import TextModel
from omni_text.config import read_config


def build(context: StageContext) -> TextModel:
    """The checkpoint's model on the context's device."""
    config = read_config(context.checkpoint)
    model = TextModel(
        config.decoder, config.vocab_size, tied=config.tied, device=context.device.torch_device, dtype=context.dtype
    )
    model.load(context)
    return model
