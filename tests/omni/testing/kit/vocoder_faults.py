"""A small vocoder, and such ones that break one promise each. Shapes as in `omni_vocoder.model`."""

from typing import Any

import torch
from torch import Tensor, nn

from omni_vocoder.layers import CausalConv, CausalTransposedConv, Residual, Serial, UpsamplingRates
from omni_vocoder.state import StreamChunk, StreamState
from omni_vocoder.streaming import StreamingVocoder

GROUPS, CODES, WIDTH = 2, 20, 8


class SmallVocoder(StreamingVocoder):
    """Causal convolutions with random weights; 6 samples for each frame."""

    def __init__(self) -> None:
        super().__init__(num_groups=GROUPS, sample_rate=8000, rates=UpsamplingRates((3, 2)))
        torch.manual_seed(7)
        self.tables = nn.ModuleList(nn.Embedding(CODES, WIDTH) for _ in range(GROUPS))
        layers: list[nn.Module] = [CausalConv(self.layout, nn.Conv1d(WIDTH, WIDTH, 5))]
        for rate in (3, 2):
            branch = Serial([nn.ELU(), CausalConv(self.layout, nn.Conv1d(WIDTH, WIDTH, 3, dilation=2))])
            up = nn.ConvTranspose1d(WIDTH, WIDTH, 2 * rate, rate)
            layers += [nn.ELU(), CausalTransposedConv(self.layout, up), Residual(branch, nn.Identity())]
        self.layers = Serial([*layers, nn.ELU(), CausalConv(self.layout, nn.Conv1d(WIDTH, 1, 3))])
        for parameter in self.parameters():
            parameter.requires_grad_(False)

    def waveform(self, codes_BGN: Tensor, chunk: StreamChunk) -> Tensor:
        known_BGN = codes_BGN.clamp(max=CODES - 1)
        embedded = [table(known_BGN[:, group]) for group, table in enumerate(self.tables)]
        wav_B1S: Tensor = self.layers(torch.stack(embedded).sum(0).transpose(1, 2), chunk)
        return wav_B1S


class Forgets(SmallVocoder):
    """Each chunk begins anew."""

    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        return super().decode(codes_BNG, state, rows_B, True)


class ForgetsToStore(SmallVocoder):
    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        before_RW = state.carried_RW.clone()
        out_BS = super().decode(codes_BNG, state, rows_B, first)
        if not first:
            state.carried_RW.copy_(before_RW)
        return out_BS


class KeepsOneState(SmallVocoder):
    """All streams share row 0."""

    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        return super().decode(codes_BNG, state, torch.zeros_like(rows_B), first)


class NormalizesTheBatch(SmallVocoder):
    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        out_BS = super().decode(codes_BNG, state, rows_B, first)
        return out_BS - out_BS.mean(0) + out_BS[:1] * 0 + out_BS.mean(0) / len(out_BS)


class NormalizesTheChunk(SmallVocoder):
    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        out_BS = super().decode(codes_BNG, state, rows_B, first)
        return out_BS / out_BS.abs().amax(1, keepdim=True)


class DoesNotReset(SmallVocoder):
    """A stream continues where the last one of its row ended."""

    def reset(self, state: StreamState, rows_B: Tensor) -> None:
        pass

    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        chunk = state.load(rows_B, False)
        wav_B1S = self.waveform(codes_BNG.transpose(1, 2), chunk)
        state.store(rows_B, chunk, codes_BNG.shape[1])
        return wav_B1S.squeeze(1).clamp(-1, 1)


class KeepsAllFrames(SmallVocoder):
    """Its state grows with the stream."""

    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        history: list[Tensor] = vars(self).setdefault("history", [])
        history.append(codes_BNG.clone())
        return super().decode(codes_BNG, state, rows_B, first)


class Grows(SmallVocoder):
    def new_state(self, num_rows: int) -> Any:
        return [super().new_state(num_rows), []]

    def reset(self, state: Any, rows_B: Tensor) -> None:
        super().reset(state[0], rows_B)

    def decode(self, codes_BNG: Tensor, state: Any, rows_B: Tensor, first: bool) -> Tensor:
        state[1].append(codes_BNG.clone())
        return super().decode(codes_BNG, state[0], rows_B, first)


class MiscountsSamples(SmallVocoder):
    def samples(self, frames: int, first: bool) -> int:
        return super().samples(frames, first) + first


class LeavesTheRange(SmallVocoder):
    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        return super().decode(codes_BNG, state, rows_B, first) * 1000


class IsMute(SmallVocoder):
    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        return super().decode(codes_BNG, state, rows_B, first) * 0


class DoesNotClamp(SmallVocoder):
    def waveform(self, codes_BGN: Tensor, chunk: StreamChunk) -> Tensor:
        embedded = [table(codes_BGN[:, group]) for group, table in enumerate(self.tables)]
        wav_B1S: Tensor = self.layers(torch.stack(embedded).sum(0).transpose(1, 2), chunk)
        return wav_B1S


class AsksForAValue(SmallVocoder):
    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        if int(codes_BNG.max()) >= CODES:
            codes_BNG = codes_BNG.clamp(max=CODES - 1)
        return super().decode(codes_BNG, state, rows_B, first)


class ChangesItsInput(SmallVocoder):
    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        out_BS = super().decode(codes_BNG, state, rows_B, first)
        codes_BNG.zero_()
        return out_BS


class KeepsState(SmallVocoder):
    """In the module, for the stream that it decoded last."""

    def __init__(self) -> None:
        super().__init__()
        self.own = self.new_state(1)

    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        if len(rows_B) > 1:
            return super().decode(codes_BNG, state, rows_B, first)
        return super().decode(codes_BNG, self.own, torch.zeros_like(rows_B), first)


class IsNoisy(SmallVocoder):
    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        out_BS = super().decode(codes_BNG, state, rows_B, first)
        return (out_BS * 0.9 + 0.05 * torch.rand_like(out_BS)).clamp(-1, 1)


class HasNoRate(SmallVocoder):
    def __init__(self) -> None:
        super().__init__()
        self.sample_rate = 0
