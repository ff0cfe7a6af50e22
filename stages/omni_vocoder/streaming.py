"""Vocoders of layers that look back. Shapes as in `omni_vocoder.model`."""

from abc import abstractmethod

import torch
from torch import Tensor

from omni_vocoder.layers import UpsamplingRates
from omni_vocoder.model import VocoderModel
from omni_vocoder.state import StateLayout, StreamChunk, StreamState


class StreamingVocoder(VocoderModel[StreamState]):
    """A network whose layers allocate their past in `layout` while they are built. Subclasses implement `waveform`.

    rates: all upsampling factors from a frame to samples. n frames determine n * samples_per_frame - lookahead samples: the rest
    depends on the next frame. So a stream's first chunk is shorter by `lookahead` samples, later chunks are full, and the end needs
    no flush. No method synchronizes, and the work of a chunk does not grow with the number of earlier frames.
    """

    def __init__(self, *, num_groups: int, sample_rate: int, rates: UpsamplingRates) -> None:
        super().__init__()
        self.num_groups, self.sample_rate = num_groups, sample_rate
        self.rates = rates
        self.layout = StateLayout()

    @abstractmethod
    def waveform(self, codes_BGN: Tensor, chunk: StreamChunk) -> Tensor:
        """Samples `[B, 1, S]` of the next N frames, int64 codes: their number is `samples`, their range unbounded."""

    @property
    def min_first_frames(self) -> int:
        return self.rates.min_first_frames

    def new_state(self, num_rows: int) -> StreamState:
        like = next(self.parameters())
        carried_RW = like.new_zeros((num_rows, self.layout.width))
        return StreamState(carried_RW, like.new_zeros(num_rows, dtype=torch.int64))

    def reset(self, state: StreamState, rows_B: Tensor) -> None:
        state.reset(rows_B)

    @torch.no_grad()
    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        """As in `VocoderModel`; with `first`, streams start independently of the rows' content. Raises ValueError for a number of
        codes other than `num_groups`, and for fewer than one frame, or `min_first_frames` in a first chunk."""
        _, frames, groups = codes_BNG.shape
        if groups != self.num_groups:
            raise ValueError(f"frames have {groups} codes each, not {self.num_groups}, one per code group")
        fewest = self.min_first_frames if first else 1
        if frames < fewest:
            raise ValueError(f"a chunk has {frames} frames, fewer than {fewest}")
        chunk = state.load(rows_B, first)
        wav_B1S = self.waveform(codes_BNG.transpose(1, 2), chunk)
        state.store(rows_B, chunk, frames)
        return wav_B1S.squeeze(1).clamp(-1, 1)

    def samples(self, frames: int, first: bool) -> int:
        return frames * self.rates.samples_per_frame - (self.rates.lookahead if first else 0)
