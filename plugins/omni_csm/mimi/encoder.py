"""Mimi's encoder as an encoder stage's model: frames of the sounds in a prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.mimi import modeling_mimi as hf

from omni.stage import StageContext
from omni_csm.config import PER_FRAME, read_config
from omni_csm.mimi.codec import load, streaming, transformer
from omni_encoder.model import EncoderModel, SampleItem
from omni_encoder.plan import EncodePlan, EncoderInput
from omni_vocoder.layers import CausalConv, WindowShape
from omni_vocoder.state import StateLayout


class AudioEncoder(EncoderModel):
    """Items: `samples`, float32 `[samples]` at 24 kHz. Outputs: `codes`, int64 `[n, G]`.

    Clips are encoded one after the other: each is padded at its end layer by layer, not to the length of another clip.
    config: a `MimiConfig`.
    """

    def __init__(self, config: Any, window: WindowShape) -> None:
        super().__init__()
        layout, width = StateLayout(), config.hidden_size
        self.samples_per_frame: int = config.frame_size
        self.quantizer: Any = hf.MimiSplitResidualVectorQuantizer(config)
        self.encoder = nn.ModuleDict({"layers": streaming(layout, hf.MimiEncoder(config).layers)})
        self.encoder_transformer = transformer(layout, config, window)
        strided = nn.Conv1d(width, width, 2 * PER_FRAME, PER_FRAME, bias=False)
        self.downsample = CausalConv(layout, strided, "replicate")

    def plan(self, items: Sequence[Mapping[str, Tensor]], length: int | None = None) -> EncodePlan:
        clips = tuple(item["samples"] for item in items)
        lengths = tuple(clip.shape[0] for clip in clips)
        sizes = tuple(-(-count // self.samples_per_frame) for count in lengths)
        return EncodePlan({"samples": EncoderInput((sum(lengths),), torch.float32, clips)}, sizes, lengths)

    @torch.no_grad()
    def encode(self, inputs: Mapping[str, Tensor], segments: tuple[int, ...] | None) -> Mapping[str, Tensor]:
        samples = inputs["samples"].to(self.downsample.conv.weight.dtype)
        return {"codes": torch.cat([self._frames(clip) for clip in samples.split(list(segments or ()))])}

    def largest_item(self, length: int) -> SampleItem:
        samples = torch.zeros(length * self.samples_per_frame, dtype=torch.float32, device="cpu")
        return SampleItem(length, {"samples": samples})

    def _frames(self, clip_S: Tensor) -> Tensor:
        """The codes `[n, G]` of a clip of S samples, at least 1: n is S over the samples of a frame, rounded up."""
        x_1TD = self.encoder["layers"](clip_S[None, None], None).transpose(1, 2)
        x_1DT = self.encoder_transformer(x_1TD, None).transpose(1, 2)
        codes_G1n: Tensor = self.quantizer.encode(self.downsample(x_1DT, None))
        return codes_G1n[:, 0].t()


def build(context: StageContext) -> AudioEncoder:
    """The checkpoint's codec, samples to frames, on the context's device."""
    config = read_config(context.checkpoint)
    with torch.device(context.device.torch_device):
        return load(AudioEncoder(config.mimi, config.mimi_window), context)
