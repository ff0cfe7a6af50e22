"""A decoder whose convolutions are one launch each is the decoder of plain layers. Shapes as in `test_streams`."""

import copy
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from omni.device.kernel_choice import kernels_of
from omni_vocoder.layers import SnakeDecoder
from omni_vocoder.state import StateLayout, StreamState
from tests.stages.omni_vocoder.layers.test_streams import fresh_state, lively

INPUTS, FRAMES = 5, 9


def decoder() -> tuple[StateLayout, SnakeDecoder]:
    layout = StateLayout()
    return layout, lively(SnakeDecoder(layout, INPUTS, 16, (3, 2, 4)))


def signal_BCT() -> Tensor:
    return torch.randn(2, INPUTS, FRAMES, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@torch.no_grad()
@pytest.mark.parametrize("sizes", [[4, 1, 1, 3], [3, 6], [FRAMES]], ids=str)
def test_fused_pieces_are_the_whole(sizes: list[int]) -> None:
    layout, net = decoder()
    whole = net(signal_BCT(), None)
    assert whole.std() > 0.1
    plain, fused = fresh_state(3, layout), fresh_state(3, layout)
    rows_B, pieces = torch.tensor([2, 0]), []
    for index, piece in enumerate(signal_BCT().split(sizes, 2)):
        chunk = fused.load(rows_B, first=index == 0)
        pieces.append(net.fused(piece, chunk))
        fused.store(rows_B, chunk, piece.shape[2])
        chunk = plain.load(rows_B, first=index == 0)
        net(piece, chunk)
        plain.store(rows_B, chunk, piece.shape[2])
    torch.testing.assert_close(torch.cat(pieces, 2), whole)
    torch.testing.assert_close(fused.carried_RW, plain.carried_RW)


@torch.no_grad()
def test_a_row_starts_anew_after_another_stream() -> None:
    layout, net = decoder()
    state, rows_B = fresh_state(3, layout), torch.tensor([1, 2])
    state.carried_RW.fill_(float("nan"))
    begun = net.fused(signal_BCT(), state.load(rows_B, first=True))
    torch.testing.assert_close(begun, net(signal_BCT(), None))


@torch.no_grad()
@pytest.mark.parametrize("how", ["load_state_dict", "to"])
def test_weights_that_change_are_packed_anew(how: str) -> None:
    layout, net = decoder()
    state, rows_B = fresh_state(2, layout), torch.tensor([0, 1])
    net.fused(signal_BCT(), state.load(rows_B, first=True))
    halved = {name: weight / 2 for name, weight in net.state_dict().items()}
    if how == "to":
        net.load_state_dict(halved, assign=True)
        net.to(torch.float32).to(torch.float64)
    else:
        net.load_state_dict(halved)
    found = net.fused(signal_BCT(), state.load(rows_B, first=True))
    torch.testing.assert_close(found, net(signal_BCT(), None))


@torch.no_grad()
def test_kernels_are_chosen_for_streams_on_a_gpu() -> None:
    """Under the interpreter, in float32; a whole signal, and float64, are computed by plain layers."""
    pytest.importorskip("triton")
    layout, exact = decoder()
    for parameter in exact.parameters():
        parameter.mul_(0.5)  # steep activations would enlarge roundings
    net = copy.deepcopy(exact).float()
    state = StreamState(torch.zeros(2, layout.width), torch.zeros(2, dtype=torch.int64))
    with kernels_of(torch.device("cuda")), patch.object(net, "fused", wraps=net.fused) as fused:
        found = net(signal_BCT().float(), state.load(torch.tensor([0, 1]), first=True))
        assert fused.call_count == 1
        net(signal_BCT().float(), None)
        assert fused.call_count == 1
    expected = exact(signal_BCT(), None)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-4 * expected.abs().max().item())
