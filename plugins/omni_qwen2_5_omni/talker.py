"""The talker: the thinker's hidden states and text in, one code per step out."""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from omni.checkpoint import load_weights
from omni.stage import StageContext
from omni_ar.layers import DecoderLayers, Linear
from omni_ar.layers.text_model import decoder_shape
from omni_ar.model import ArModel, ArShape, Batch, NextTokens, PromptTokens
from omni_qwen2_5_omni.config import TalkerConfig, read_config
from omni_qwen2_5_omni.voices import read_voices

NONE = -1
"""The value of a column at a position or step without an id."""
EOS, PAD, FIRST_VOICE = range(3)
"""Text ids of the talker: the end of the thinker's text, the padding after it, and each voice's opening token."""
_TEXTS = "thinker.model.embed_tokens.weight"


class Talker(ArModel):
    """Prompt columns: text and code of each position, or `NONE`, added as embeddings. Texts use the thinker's.

    Multimodal embeddings `hidden`: the thinker's hidden states `[n, thinker width]`, which are added too. A step is
    conditioned by a hidden state, or by the text id in the step's column. num_texts: 2 plus the number of voices.
    """

    def __init__(self, config: TalkerConfig, num_texts: int, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self._config = config
        decoder, width = config.decoder, config.embedding_width
        # Not a parameter: few of the published table's rows are ever read.
        self.texts_NE = nn.Buffer(torch.zeros(num_texts, width, device=device, dtype=dtype), persistent=False)
        self.embed_tokens = nn.Embedding(config.vocab_size, width, device=device, dtype=dtype)
        self.thinker_to_talker_proj = Linear(width, decoder.width, device=device, dtype=dtype)
        self.decoder = DecoderLayers(decoder, device=device, dtype=dtype)
        self.codec_head = Linear(decoder.width, config.vocab_size, bias=False, device=device, dtype=dtype)

    @property
    def shape(self) -> ArShape:
        return decoder_shape(
            self._config.decoder,
            self._config.vocab_size,
            prompt_columns=("text", "code"),
            step_columns=("text",),
            step_width=self._config.embedding_width,
        )

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        text_T, code_T = prompt.columns_CT.unbind(0)
        x_TE = _embed(self.texts_NE, text_T)
        for hidden in prompt.embeddings:
            x_TE.index_add_(0, hidden.tokens_n, hidden.tensors["hidden"].to(x_TE.dtype))
        return self._project(x_TE + _embed(self.embed_tokens.weight, code_T))

    def embed_next(self, step: NextTokens) -> Tensor:
        conditioning_RE = step.vectors_RE + _embed(self.texts_NE, step.columns_SR[0])
        return self._project(self.embed_tokens(step.ids_R) + conditioning_RE)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        hidden_TD: Tensor = self.decoder(x_TD, batch)
        return hidden_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        logits: Tensor = self.codec_head(hidden_RD)
        return logits

    def _project(self, x_TE: Tensor) -> Tensor:
        projected: Tensor = self.thinker_to_talker_proj(x_TE)
        return projected


def _embed(table_NE: Tensor, ids_T: Tensor) -> Tensor:
    """Embeddings of ids, zeros for `NONE`."""
    return embedding(ids_T.clamp(min=0), table_NE) * (ids_T != NONE)[:, None]


def build(context: StageContext) -> Talker:
    """The checkpoint's talker on the context's device."""
    config = read_config(context.checkpoint).talker
    assert config is not None, "a pipeline without audio has no talker stage"
    texts = [config.text_eos, config.text_pad, *(voice.bos for voice in read_voices(context.checkpoint).values())]
    model = Talker(config, len(texts), device=context.device.torch_device, dtype=context.dtype)
    prefixes = {"talker.model.embed_tokens.": "embed_tokens.", "talker.model.": "decoder.", "talker.": ""}
    load_weights(model, context, prefixes)
    if context.load_format != "dummy":
        model.texts_NE.copy_(context.checkpoint.tensor(_TEXTS)[texts])
    return model
