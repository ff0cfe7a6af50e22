"""A convolutional decoder of `SnakeUpsampling` blocks. On a GPU each of its convolutions is one launch, with the addition and the
activation after it. Shapes as in `stream_layer`; besides, N outputs of a position: the channels of all samples it becomes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn

from omni.device.kernel_choice import runs_kernel
from omni_frames.snake import SnakeBeta
from omni_vocoder.kernels.causal_conv import Snake, causal_conv
from omni_vocoder.layers.stream_layer import CausalConv, CausalTransposedConv, Serial
from omni_vocoder.layers.upsampling import SnakeUnit, SnakeUpsampling
from omni_vocoder.state import StateLayout, StreamChunk


class SnakeDecoder(Serial):
    """`[B, in_channels, T]` to a waveform `[B, 1, S]`: `SnakeUpsampling` by each rate in turn, which halves the channels."""

    def __init__(self, layout: StateLayout, in_channels: int, channels: int, rates: Sequence[int]) -> None:
        widths = [channels // 2**level for level in range(len(rates) + 1)]
        inlet = CausalConv(layout, nn.Conv1d(in_channels, channels, 7))
        blocks = [SnakeUpsampling(layout, widths[level], widths[level + 1], rate) for level, rate in enumerate(rates)]
        last, outlet = SnakeBeta(widths[-1]), CausalConv(layout, nn.Conv1d(widths[-1], 1, 7))
        super().__init__([inlet, *blocks, last, outlet])
        self._steps = list(_steps(inlet, blocks, last, outlet))

    def forward(self, signal_BCT: Tensor, chunk: StreamChunk | None) -> Tensor:
        if chunk is None or not runs_kernel(signal_BCT):
            return super().forward(signal_BCT, chunk)
        return self.fused(signal_BCT, chunk)

    def fused(self, signal_BCT: Tensor, chunk: StreamChunk) -> Tensor:
        """As `forward`, with the channels of a sample together in memory, as matrix products read them."""
        inputs_BLC = self._steps[0].input_buffer(signal_BCT, chunk, signal_BCT.shape[2])
        self._steps[0].new_part(inputs_BLC, chunk).copy_(signal_BCT.transpose(1, 2))
        kept_BTC: Tensor | None = None
        for step, following in zip(self._steps, [*self._steps[1:], None], strict=True):
            step.keep_past(inputs_BLC, chunk)
            conv = step.packed()
            rows, positions = inputs_BLC.shape[0], inputs_BLC.shape[1] - (conv.weight_KCN.shape[0] - 1) * conv.dilation
            sum_BTN = signal_BCT.new_empty(rows, positions, conv.bias_N.shape[0]) if step.keeps else None
            next_BLC = activated_BTN = None
            if following is not None:
                next_BLC = following.input_buffer(signal_BCT, chunk, positions * step.rate)
                activated_BTN = following.new_part(next_BLC, chunk).unflatten(1, (positions, step.rate)).flatten(2)
            causal_conv(
                inputs_BLC,
                conv.weight_KCN,
                conv.bias_N,
                conv.dilation,
                residual_BTN=kept_BTC if step.adds else None,
                snake=step.snake,
                sum_BTN=sum_BTN,
                activated_BTN=activated_BTN,
            )
            if sum_BTN is not None:
                kept_BTC = sum_BTN.view(rows, positions * step.rate, -1)
            if next_BLC is not None:
                inputs_BLC = next_BLC
        assert kept_BTC is not None
        return kept_BTC.transpose(1, 2)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._forget_packed()
        applied: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return applied

    def _load_from_state_dict(self, *args: Any) -> None:
        self._forget_packed()
        super()._load_from_state_dict(*args)

    def _forget_packed(self) -> None:
        for step in self._steps:
            step.forget_packed()


@dataclass(frozen=True, slots=True)
class _Packed:
    """A convolution as `causal_conv` takes it."""

    weight_KCN: Tensor
    bias_N: Tensor
    dilation: int


@dataclass(slots=True, eq=False)
class _Step:
    """A convolution and the operations after it. activation: of its outputs. adds: the sum kept last. keeps: whether to keep the
    sum before the activation, for a later step that adds it, or as the waveform."""

    conv: CausalConv | CausalTransposedConv
    activation: SnakeBeta | None = None
    adds: bool = False
    keeps: bool = False
    _packed: _Packed | None = None

    @property
    def rate(self) -> int:
        """Samples that a position becomes."""
        return self.conv.conv.stride[0] if isinstance(self.conv, CausalTransposedConv) else 1

    @property
    def snake(self) -> Snake | None:
        return None if self.activation is None else Snake(self.activation.alpha, self.activation.beta)

    def packed(self) -> _Packed:
        """The weights, packed when a forward first needs them: `SnakeDecoder` forgets them when its own change."""
        if self._packed is None:
            conv = self.conv.conv
            assert conv.bias is not None
            if isinstance(conv, nn.ConvTranspose1d):
                # Output j of a position is the sum of tap j of it, and of tap rate + j of the position before.
                weight_CNKR = conv.weight.unflatten(2, (-1, self.rate))
                weight_KCN = weight_CNKR.permute(2, 0, 3, 1).flip(0).flatten(2)
                self._packed = _Packed(weight_KCN.contiguous(), conv.bias.repeat(self.rate), 1)
            else:
                self._packed = _Packed(conv.weight.permute(2, 1, 0).contiguous(), conv.bias, conv.dilation[0])
        return self._packed

    def forget_packed(self) -> None:
        self._packed = None

    def input_buffer(self, like: Tensor, chunk: StreamChunk, count: int) -> Tensor:
        """A buffer of the past positions, and of `count` new ones to be written after them."""
        past = self._past(chunk)
        inputs_BLC = like.new_empty(like.shape[0], past + count, self.conv.conv.in_channels)
        if past:
            inputs_BLC[:, :past] = self.conv.past.of(chunk.carried_BW).transpose(1, 2)
        return inputs_BLC

    def new_part(self, inputs_BLC: Tensor, chunk: StreamChunk) -> Tensor:
        """The new positions, a view."""
        return inputs_BLC[:, self._past(chunk) :]

    def keep_past(self, inputs_BLC: Tensor, chunk: StreamChunk) -> None:
        part = self.conv.past
        if part.length:
            part.of(chunk.carried_BW).copy_(inputs_BLC[:, -part.length :].transpose(1, 2))

    def _past(self, chunk: StreamChunk) -> int:
        # An upsampled stream begins with the first sample that has both of its inputs.
        begins = chunk.first and isinstance(self.conv, CausalTransposedConv)
        return 0 if begins else self.conv.past.length


def _steps(
    inlet: CausalConv, blocks: Sequence[SnakeUpsampling], last: SnakeBeta, outlet: CausalConv
) -> Iterator[_Step]:
    layers = [layer for block in blocks for layer in block.block]
    yield _Step(inlet, _activation(layers[0]))
    for layer, following in zip(layers, [*layers[1:], last], strict=True):
        # Only a unit adds a sum that was kept before it.
        keeps = isinstance(following, SnakeUnit)
        if isinstance(layer, CausalTransposedConv):
            yield _Step(layer, _activation(following), keeps=keeps)
        elif isinstance(layer, SnakeUnit):
            yield _Step(layer.conv1, layer.act2)
            yield _Step(layer.conv2, _activation(following), adds=True, keeps=keeps)
    yield _Step(outlet, keeps=True)


def _activation(layer: nn.Module) -> SnakeBeta:
    """The activation that a layer begins with, or is."""
    activation = layer.act1 if isinstance(layer, SnakeUnit) else layer
    assert isinstance(activation, SnakeBeta)
    return activation
