"""The model: omni's decoder layers around the code that differs. Shape legend: T tokens, R rows, D width."""

import math

from torch import Tensor

from omni.stage import StageContext
from omni_ar.layers.text_model import TextModel
from omni_ar.model import NextTokens, PromptTokens
from omni_pocket.config import read_config


class PocketModel(TextModel):
    """Embeddings are multiplied by the square root of their width. Other methods to override: `forward`, `logits`.

    All of it runs inside device phases: no `.item()`, no `if` on a tensor's values.
    """

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        return self._scaled(super().embed_prompt(prompt))

    def embed_next(self, step: NextTokens) -> Tensor:
        return self._scaled(super().embed_next(step))

    def _scaled(self, x_TD: Tensor) -> Tensor:
        return x_TD * math.sqrt(self.shape.hidden_width)


def build(context: StageContext) -> PocketModel:
    config = read_config(context.checkpoint)
    device, dtype = context.device.torch_device, context.dtype
    model = PocketModel(config.decoder, config.vocab_size, tied=False, device=device, dtype=dtype)
    # The weights are called `model.embed_tokens.`, `model.layers.0.`, ...: for other names see `omni.checkpoint.load_weights`.
    model.load(context)
    return model
