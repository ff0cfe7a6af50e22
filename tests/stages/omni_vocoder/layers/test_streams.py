"""Layers of streams: pieces of any size are the whole. Shapes: B rows, C channels, T samples, D width."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import MimiConfig
from transformers.models.mimi.modeling_mimi import MimiRotaryEmbedding

from omni_vocoder.layers import (
    CausalConv,
    CausalTransposedConv,
    ConvNeXtBlock,
    GatedMLP,
    Residual,
    RMSNorm,
    Serial,
    SnakeBeta,
    SnakeUpsampling,
    UpsamplingRates,
    WindowShape,
    WindowTransformer,
)
from omni_vocoder.layers.transformer import attention_inputs
from omni_vocoder.state import StateLayout, StreamChunk, StreamState

WIDTH = 6
SIZES = ([1] * 12, [3, 1, 8], [12])
ModuleT = TypeVar("ModuleT", bound=nn.Module)
Layer = Callable[[Tensor, StreamChunk | None], Tensor]


def lively(module: ModuleT) -> ModuleT:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter[0].numel() ** 0.5)
    return module.double()


def conv(layout: StateLayout) -> CausalConv:
    return CausalConv(layout, nn.Conv1d(WIDTH, WIDTH, 3, dilation=2, groups=2))


def upsampling(layout: StateLayout) -> CausalTransposedConv:
    return CausalTransposedConv(layout, nn.ConvTranspose1d(WIDTH, 4, 8, stride=3))


def shortened_upsampling(layout: StateLayout) -> CausalTransposedConv:
    return CausalTransposedConv(layout, nn.ConvTranspose1d(WIDTH, 4, 8, stride=3, padding=2))


def residual(layout: StateLayout) -> nn.Module:
    block = Serial([nn.ELU(), conv(layout), SnakeBeta(WIDTH)])
    return Serial([Residual(block, nn.Identity()), Residual(Serial([conv(layout)]), conv(layout))])


def blocks(layout: StateLayout) -> nn.Module:
    return Serial([ConvNeXtBlock(layout, WIDTH), SnakeUpsampling(layout, WIDTH, 4, 3)])


LAYERS = [conv, upsampling, shortened_upsampling, residual, blocks]


def fresh_state(rows: int, layout: StateLayout) -> StreamState:
    return StreamState(torch.zeros(rows, layout.width, dtype=torch.float64), torch.zeros(rows, dtype=torch.int64))


def stream(layer: Layer, layout: StateLayout, signal: Tensor, sizes: list[int], dim: int = 2) -> Tensor:
    state, rows_B = fresh_state(3, layout), torch.tensor([2, 0])
    pieces = []
    for index, piece in enumerate(signal.split(sizes, dim)):
        chunk = state.load(rows_B, first=index == 0)
        pieces.append(layer(piece, chunk))
        state.store(rows_B, chunk, piece.shape[dim])
    return torch.cat(pieces, dim)


def signal_BCT() -> Tensor:
    return torch.randn(2, WIDTH, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@torch.no_grad()
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("make", LAYERS)
def test_pieces_are_the_whole(make: Callable[[StateLayout], nn.Module], sizes: list[int]) -> None:
    layout = StateLayout()
    layer = lively(make(layout))
    whole = layer(signal_BCT(), None)
    assert whole.std() > 0.1
    torch.testing.assert_close(stream(layer, layout, signal_BCT(), sizes), whole)


@torch.no_grad()
def test_whole_signals_equal_those_of_torch() -> None:
    x = signal_BCT()
    layer = lively(conv(StateLayout()))
    torch.testing.assert_close(layer(x, None), layer.conv(pad(x, (4, 0))))
    for make, cut in ((upsampling, 0), (shortened_upsampling, 2)):
        longer = lively(make(StateLayout()))
        plain = nn.functional.conv_transpose1d(x, longer.conv.weight, longer.conv.bias, stride=3)
        torch.testing.assert_close(longer(x, None), plain[:, :, cut:36])


@torch.no_grad()
def test_strided_convolutions_pad_to_a_full_stride() -> None:
    layer = lively(CausalConv(StateLayout(), nn.Conv1d(WIDTH, WIDTH, 4, stride=3), "replicate"))
    x = signal_BCT()[:, :, :10]
    torch.testing.assert_close(layer(x, None), layer.conv(pad(x, (1, 2), mode="replicate")))


@torch.no_grad()
@pytest.mark.parametrize("sizes", [[1] * 6, [2, 4]], ids=str)
@pytest.mark.parametrize("per_frame", [1, 2])
def test_windows_of_attention_slide_along(sizes: list[int], per_frame: int) -> None:
    layout = StateLayout()
    shape = WindowShape(
        width=WIDTH, heads=2, kv_heads=1, head_dim=4, window=5, rope_theta=100.0, per_frame=per_frame, bias=True
    )
    transformer = lively(
        WindowTransformer(layout, shape, 2, norm=lambda: RMSNorm(WIDTH, 1e-5), mlp=lambda: GatedMLP(WIDTH, 8))
    )
    hidden_BTD = signal_BCT()[:, :, : 6 * per_frame].transpose(1, 2)
    whole = transformer(hidden_BTD, None)
    # Angles are float32 in every dtype.
    state, rows_B = fresh_state(2, layout), torch.tensor([1, 0])
    pieces = []
    for index, piece in enumerate(hidden_BTD.split([per_frame * size for size in sizes], 1)):
        chunk = state.load(rows_B, first=index == 0)
        pieces.append(transformer(piece, chunk))
        state.store(rows_B, chunk, piece.shape[1] // per_frame)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-5, atol=1e-6)
    changed = hidden_BTD.clone()
    changed[:, 0] += 1
    reached = (transformer(changed, None) - whole).abs().amax((0, 2)) > 1e-9
    # Two layers of a window of five.
    assert reached.tolist() == [position < 9 for position in range(6 * per_frame)]


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def default_dtype(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("default_dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("earlier", "per_frame"), [((0, 3), 1), ((5, 40_000), 2)])
def test_rotary_angles_are_those_of_transformers(dtype: torch.dtype, earlier: tuple[int, ...], per_frame: int) -> None:
    """In float32 whatever the model's dtype and torch's default are, so that late positions differ too."""
    rope = {"rope_type": "default", "rope_theta": 100.0}
    reference = MimiRotaryEmbedding(MimiConfig(hidden_size=12, num_attention_heads=2, head_dim=6, rope_parameters=rope))
    shape = WindowShape(width=12, heads=2, kv_heads=2, head_dim=6, window=5, rope_theta=100.0, per_frame=per_frame)
    chunk = StreamChunk(torch.empty(2, 0), torch.tensor(earlier), first=False)
    hidden_BTD = torch.zeros(2, 4, 12, dtype=dtype)
    inputs = attention_inputs(shape, hidden_BTD, chunk)
    positions_BT = per_frame * chunk.frames_B[:, None] + torch.arange(4)
    cos, sin = reference(hidden_BTD, positions_BT)
    torch.testing.assert_close(inputs.cos_B1TE[:, 0], cos)
    torch.testing.assert_close(inputs.sin_B1TE[:, 0], sin)


def test_rotary_angles_are_computed_on_the_device_of_the_hidden_states() -> None:
    shape = WindowShape(width=12, heads=2, kv_heads=2, head_dim=6, window=5, rope_theta=100.0)
    inputs = attention_inputs(shape, torch.zeros(2, 4, 12, device="meta"), None)
    assert {each.device.type for each in (inputs.cos_B1TE, inputs.sin_B1TE, inputs.visible)} == {"meta"}


@torch.no_grad()
@pytest.mark.parametrize(("plain", "ahead"), [((2,), (3, 2)), ((), (2, 1, 2)), ((3, 1), (4,)), ((), (1, 1))])
def test_rates_say_how_many_samples_frames_give(plain: tuple[int, ...], ahead: tuple[int, ...]) -> None:
    layout, rates = StateLayout(), UpsamplingRates(plain, ahead)
    stretch = [CausalTransposedConv(layout, nn.ConvTranspose1d(WIDTH, WIDTH, rate, rate)) for rate in plain]
    net = Serial([*stretch, *(SnakeUpsampling(layout, WIDTH, WIDTH, rate) for rate in ahead)]).double()
    fewest = rates.min_first_frames
    for frames in (fewest, fewest + 1, 12):
        length = net(signal_BCT()[:, :, :frames], None).shape[2]
        assert length == frames * rates.samples_per_frame - rates.lookahead
