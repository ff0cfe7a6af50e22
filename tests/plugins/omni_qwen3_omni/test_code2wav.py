"""The streaming vocoder against transformers' whole decode.

The reference is made lively first: at default initialization its output peaks at 1e-6 and hides every error.
Shapes: B rows, Q quantizers, N frames, S samples.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni.checkpoint.checks import Section
from omni_qwen3_omni.code2wav import Code2Wav
from omni_vocoder.layers import window_shape
from omni_vocoder.state import StreamState
from tests.support.devices import no_synchronization
from tests.support.tiers import SLOW, few

RELATIVE_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}
SMALL: dict[str, object] = {"codebook_size": 32, "num_quantizers": 4, "hidden_size": 24, "intermediate_size": 40}
RELEASED_RATES = SMALL | {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "sliding_window": 16,
    "decoder_dim": 32,
}
GROUPED_HEADS = SMALL | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "attention_bias": True,
    "sliding_window": 5,
    "upsampling_ratios": [2],
    "upsample_rates": [3, 2],
    "decoder_dim": 20,
}
ONE_KEY_HEAD = SMALL | {
    "num_quantizers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "sliding_window": 9,
    "upsampling_ratios": [3, 1],
    "upsample_rates": [2, 5, 3],
    "decoder_dim": 48,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
NO_CONTEXT = GROUPED_HEADS | {"sliding_window": 1, "upsampling_ratios": [2, 2]}
SILENT_START = GROUPED_HEADS | {"upsampling_ratios": [], "upsample_rates": [3]}
TWO_FRAME_START = GROUPED_HEADS | {"upsampling_ratios": [], "upsample_rates": [2, 2]}


@dataclass(frozen=True)
class Pair:
    ours: Code2Wav
    reference: Qwen3OmniMoeCode2Wav
    dtype: torch.dtype

    def codes(self, frames: int, seed: int = 0, rows: int = 1) -> Tensor:
        config = self.reference.config
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(config.codebook_size, (rows, config.num_quantizers, frames), generator=generator)

    @torch.no_grad()
    def whole(self, codes_BQN: Tensor) -> Tensor:
        wav_BS: Tensor = self.reference(codes_BQN)[:, 0]
        peak = wav_BS.abs().max()
        assert 0.2 < peak < 0.8, f"the reference is silent or clipped: {peak}"
        return wav_BS

    def error(self, wav_BS: Tensor, expected_BS: Tensor) -> float:
        """Largest deviation, as a multiple of the tolerance: 1e-4 of peak in float32, 1e-10 in float64."""
        assert wav_BS.shape == expected_BS.shape
        relative = (wav_BS - expected_BS).abs().max() / expected_BS.abs().max()
        return float(relative) / RELATIVE_TOLERANCE[self.dtype]


@torch.no_grad()
def _enliven(model: Qwen3OmniMoeCode2Wav, dtype: torch.dtype) -> None:
    """Random parameters under which every layer and every context is heard; the peak is 0.5 over 100 frames."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
        if parameter.dim() > 1:
            transposed = name.endswith(".1.conv.weight") or (name.startswith("upsample") and ".0.conv" in name)
            fan_in = parameter.shape[0] if transposed else parameter[0].numel()
            parameter.copy_(noise if "embedding" in name else noise * 0.8 * fan_in**-0.5)
        else:
            scale = name.endswith(("scale", "gamma", "norm.weight", "layernorm.weight"))
            parameter.copy_(0.1 * noise + float(scale))
    model.to(dtype)
    outlet = model.decoder[-1].conv
    outlet.weight *= 1e-3
    outlet.bias *= 1e-3
    codes = torch.randint(model.config.codebook_size, (1, model.config.num_quantizers, 100), generator=generator)
    gain = 0.5 / model(codes).abs().max()
    outlet.weight *= gain
    outlet.bias *= gain


def _vocoder(config: dict[str, object]) -> Code2Wav:
    section = Section(config)
    return Code2Wav(section, window_shape(section))


def _pair(shape: dict[str, object], dtype: torch.dtype = torch.float32) -> Pair:
    config = Qwen3OmniMoeCode2WavConfig(**shape)
    reference = Qwen3OmniMoeCode2Wav._from_config(config).eval()
    _enliven(reference, dtype)
    ours = _vocoder(config.to_dict()).to(dtype)
    ours.load_state_dict(reference.state_dict(), strict=True)
    return Pair(ours, reference, dtype)


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=["float32", "float64"])
def released(request: pytest.FixtureRequest) -> Pair:
    return _pair(RELEASED_RATES, request.param)


@pytest.fixture(scope="module")
def long_decode(released: Pair) -> tuple[Tensor, Tensor]:
    """331 frames of codes, and the reference's whole decode of them."""
    codes = released.codes(331)
    return codes, released.whole(codes)


@pytest.fixture(scope="module", params=[GROUPED_HEADS, ONE_KEY_HEAD, NO_CONTEXT], ids=["grouped", "one", "windowless"])
def other(request: pytest.FixtureRequest) -> Pair:
    return _pair(request.param, torch.float64)


@pytest.fixture(scope="module")
def exact() -> Pair:
    return _pair(GROUPED_HEADS, torch.float64)


def _rows(*rows: int) -> Tensor:
    return torch.tensor(rows)


def _decode(model: Code2Wav, codes_BQN: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
    return model.decode(codes_BQN.transpose(1, 2), state, rows_B, first)


def _pieces(codes_BQN: Tensor, sizes: Sequence[int]) -> Iterator[Tensor]:
    assert sum(sizes) == codes_BQN.shape[2]
    yield from codes_BQN.split(list(sizes), dim=2)


def _stream(
    model: Code2Wav,
    codes_BQN: Tensor,
    sizes: Sequence[int],
    tamper: Callable[[StreamState], object] | None = None,
) -> Tensor:
    """The chunks of `sizes` frames, concatenated. tamper: is let at the state after the first chunk."""
    rows = codes_BQN.shape[0]
    state = model.new_state(rows)
    rows_B = torch.arange(rows, device=codes_BQN.device)
    wavs = []
    for index, piece in enumerate(_pieces(codes_BQN, sizes)):
        wavs.append(_decode(model, piece, state, rows_B, first=index == 0))
        if index == 0 and tamper:
            tamper(state)
    return torch.cat(wavs, 1)


def _fill(sizes: Sequence[int], total: int) -> list[int]:
    """`sizes` over and over, up to `total` frames."""
    filled: list[int] = []
    while (left := total - sum(filled)) > 0:
        filled.append(min(sizes[len(filled) % len(sizes)], left))
    return filled


@pytest.mark.parametrize("shape", [RELEASED_RATES, GROUPED_HEADS, ONE_KEY_HEAD])
def test_parameters_are_those_of_the_checkpoint(shape: dict[str, object]) -> None:
    pair = _pair(shape)
    ours = {name: tensor.shape for name, tensor in pair.ours.state_dict().items()}
    assert ours == {name: tensor.shape for name, tensor in pair.reference.state_dict().items()}


@pytest.mark.parametrize("sizes", few(3, [[1], [2, 3, 5, 7, 11, 13], [320, 11], [331], [1, 10]], SLOW), ids=str)
def test_any_chunking_equals_one_whole_decode(
    released: Pair, long_decode: tuple[Tensor, Tensor], sizes: list[int]
) -> None:
    frames = 60 if sizes == [1] else 331
    codes, expected = long_decode[0][:, :, :frames], long_decode[1][:, : frames * 1920 - 555]
    assert released.error(_stream(released.ours, codes, _fill(sizes, frames)), expected) < 1


def test_chunks_have_the_promised_lengths(released: Pair) -> None:
    model, state = released.ours, released.ours.new_state(1)
    lengths = [
        _decode(model, released.codes(n), state, _rows(0), first).shape[1] for n, first in ((2, True), (1, False))
    ]
    assert lengths == [2 * 1920 - 555, 1920]
    assert [model.samples(2, True), model.samples(1, False)] == lengths
    assert model.min_first_frames == 1


@settings(max_examples=10)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=12), seed=st.integers(0, 1000))
def test_random_chunking_of_other_shapes(other: Pair, sizes: list[int], seed: int) -> None:
    codes = other.codes(sum(sizes) + 20, seed)
    assert other.error(_stream(other.ours, codes, [*sizes, 20]), other.whole(codes)) < 1


@pytest.mark.parametrize("first", [1, 2, 3])
def test_first_chunk_may_be_silent(first: int) -> None:
    pair = _pair(SILENT_START, torch.float64)
    codes = pair.codes(100)
    state = pair.ours.new_state(1)
    assert _decode(pair.ours, codes[:, :, :first], state, _rows(0), first=True).shape == (1, 3 * first - 3)
    assert pair.error(_stream(pair.ours, codes, _fill([first, 1, 4], 100)), pair.whole(codes)) < 1


def test_first_chunk_below_the_fewest_frames_is_refused() -> None:
    pair = _pair(TWO_FRAME_START, torch.float64)
    codes = pair.codes(100)
    state = pair.ours.new_state(1)
    with pytest.raises(ValueError, match="a chunk has 1 frames, fewer than 2"):
        _decode(pair.ours, codes[:, :, :1], state, _rows(0), first=True)
    assert pair.error(_stream(pair.ours, codes, [2, *[1] * 98]), pair.whole(codes)) < 1


@pytest.mark.parametrize(
    ("quantizers", "frames", "message"),
    [(3, 5, "frames have 3 codes each, not 4"), (5, 5, "frames have 5 codes"), (4, 0, "a chunk has 0 frames")],
)
def test_codes_of_a_wrong_shape_are_refused(exact: Pair, quantizers: int, frames: int, message: str) -> None:
    state = exact.ours.new_state(1)
    with pytest.raises(ValueError, match=message):
        _decode(exact.ours, torch.zeros(1, quantizers, frames, dtype=torch.int64), state, _rows(0), first=False)


def test_rows_of_different_histories_share_a_call(released: Pair) -> None:
    """Three streams begin at different times and go on together, in another order than that of their rows."""
    model, histories, together = released.ours, (37, 1, 20), [4, 1, 30]
    codes = [released.codes(history + sum(together), seed) for seed, history in enumerate(histories)]
    state = model.new_state(5)
    rows = (4, 0, 2)
    wavs = [
        [_decode(model, c[:, :, :h], state, _rows(row), True)] for c, h, row in zip(codes, histories, rows, strict=True)
    ]
    ends = [0, *torch.tensor(together).cumsum(0).tolist()]
    for start, end in pairwise(ends):
        pieces = [c[:, :, h + start : h + end] for c, h in zip(codes, histories, strict=True)]
        for wav, chunks in zip(_decode(model, torch.cat(pieces), state, _rows(*rows), False), wavs, strict=True):
            chunks.append(wav[None])
    for code, chunks in zip(codes, wavs, strict=True):
        assert released.error(torch.cat(chunks, 1), released.whole(code)) < 1


def test_streams_may_begin_together(exact: Pair) -> None:
    codes = exact.codes(60, rows=3)
    wav = _stream(exact.ours, codes, [3, 57])
    for row in range(3):
        assert exact.error(wav[row : row + 1], exact.whole(codes[row : row + 1])) < 1


def test_a_row_never_touches_another(exact: Pair) -> None:
    """A neighbour full of NaN, in the state and in the same call, changes no sample; a bystander keeps its state."""
    codes = exact.codes(60)
    state = exact.ours.new_state(3)
    state.carried_RW[1:].fill_(torch.nan)
    first = _decode(exact.ours, codes[:, :, :20], state, _rows(0), True)
    both = _decode(exact.ours, codes[:, :, 20:].repeat(2, 1, 1), state, _rows(1, 0), False)
    assert both[0].isnan().any()
    assert exact.error(torch.cat((first, both[1:]), 1), exact.whole(codes)) < 1
    assert state.carried_RW[2].isnan().all()
    assert state.frames_R.tolist() == [60, 40, 0]


@pytest.mark.parametrize("clear", [True, False])
def test_a_row_is_used_again(exact: Pair, clear: bool) -> None:
    state, rows = exact.ours.new_state(2), _rows(1)
    _decode(exact.ours, exact.codes(33, seed=7), state, rows, True)
    if clear:
        exact.ours.reset(state, rows)
        assert not state.carried_RW.any()
        assert not state.frames_R.any()
    codes = exact.codes(50)
    wav = torch.cat([_decode(exact.ours, c, state, rows, i == 0) for i, c in enumerate(_pieces(codes, [1, 9, 40]))], 1)
    assert exact.error(wav, exact.whole(codes)) < 1


def test_positions_far_beyond_the_trained_range() -> None:
    """40,000 frames. The reference sees the last 300 at their absolute positions: more than decides the last 200."""
    pair = _pair(GROUPED_HEADS, torch.float32)
    frames, seen, compared = 40_000, 300, 200
    hidden = torch.randn(1, frames, 24, generator=torch.Generator().manual_seed(3))
    state = pair.ours.new_state(1)
    with torch.no_grad():
        for index, piece in enumerate(hidden.split(800, dim=1)):
            chunk = state.load(_rows(0), first=index == 0)
            output = pair.ours.pre_transformer(piece, chunk)
            state.store(_rows(0), chunk, piece.shape[1])
        positions = torch.arange(frames - seen, frames)[None]
        expected = pair.reference.pre_transformer(inputs_embeds=hidden[:, -seen:], position_ids=positions)
    assert pair.error(output[:, -compared:], expected.last_hidden_state[:, -compared:]) < 1


def _forget_all(model: Code2Wav, slot: int) -> Callable[[StreamState], object]:
    return lambda state: model.layout.slots[slot].of(state.carried_RW).zero_()


def _forget_oldest(model: Code2Wav, slot: int) -> Callable[[StreamState], object]:
    where = model.layout.slots[slot]
    return lambda state: where.of(state.carried_RW).select(where.time + 1, 0).zero_()


@pytest.mark.parametrize("forget", few(1, [_forget_all, _forget_oldest]))
def test_planted_fault_a_forgotten_state_is_heard(released: Pair, forget: Callable[..., Callable[..., object]]) -> None:
    """Every slot of every layer, alone, down to its oldest sample."""
    codes = released.codes(50)
    expected, model = released.whole(codes), released.ours
    used = [index for index, slot in enumerate(model.layout.slots) if slot.length]
    # Keys and values, upsampling blocks, inlet, decoder blocks (a transposed and three dilated convolutions), outlet.
    assert len(used) == 2 * 2 + 2 + 1 + 4 * 4 + 1
    for slot in used:
        error = released.error(_stream(model, codes, [25, 25], forget(model, slot)), expected)
        assert error > 1, f"slot {slot} does not matter: {error}"


@pytest.mark.parametrize("drift", few(1, [-1, 1]))
def test_planted_fault_a_drifted_position_is_heard(released: Pair, drift: int) -> None:
    codes = released.codes(50)
    wav = _stream(released.ours, codes, [25, 25], lambda state: state.frames_R.add_(drift))
    assert released.error(wav, released.whole(codes)) > 1


@pytest.mark.parametrize("window", few(1, [15, 17]))
def test_planted_fault_a_window_off_by_one_is_heard(released: Pair, window: int) -> None:
    config = released.reference.config.to_dict() | {"sliding_window": window}
    other = _vocoder(config).to(released.dtype)
    other.load_state_dict(released.ours.state_dict())
    codes = released.codes(50)
    assert released.error(_stream(other, codes, [25, 25]), released.whole(codes)) > 1


def test_planted_fault_a_shifted_sample_is_heard(released: Pair) -> None:
    codes = released.codes(50)
    wav = _stream(released.ours, codes, [25, 25])
    seam = 25 * 1920 - 555
    shifted = torch.cat((wav[:, :seam], wav[:, seam - 1 : -1]), 1)
    assert released.error(shifted, released.whole(codes)) > 1


def _storages() -> set[int]:
    """Addresses of all tensors' memory."""
    gc.collect()
    found = (obj for obj in gc.get_objects() if type(obj) in (Tensor, torch.nn.Parameter))
    # Other tests may have left sparse ones, which have no storage.
    tensors = (tensor for tensor in found if tensor.layout == torch.strided)
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def test_nothing_outlives_a_chunk_but_the_state(exact: Pair) -> None:
    model, codes, rows = exact.ours, exact.codes(400), _rows(0)
    state = model.new_state(1)
    addresses = state.carried_RW.data_ptr(), state.frames_R.data_ptr()
    _decode(model, codes[:, :, :10], state, rows, True)
    before = _storages()
    for piece in codes[:, :, 10:].split(10, dim=2):
        _decode(model, piece, state, rows, False)
    del piece
    # What other tests have left may go meanwhile.
    assert _storages() <= before
    assert (state.carried_RW.data_ptr(), state.frames_R.data_ptr()) == addresses


@pytest.mark.parametrize("first", [True, False])
def test_no_value_is_read_back_from_the_device(first: bool) -> None:
    """Tensors on the meta device have no values: whatever asks for one raises."""
    config = Qwen3OmniMoeCode2WavConfig(**GROUPED_HEADS)
    model = _vocoder(config.to_dict()).to("meta")
    state = model.new_state(4)
    rows = torch.zeros(2, dtype=torch.int64, device="meta")
    wav = _decode(model, torch.zeros(2, 4, 7, dtype=torch.int64, device="meta"), state, rows, first)
    assert wav.shape == (2, model.samples(7, first))


@pytest.mark.gpu
def test_cuda_decodes_the_same_and_never_waits() -> None:
    pair = _pair(RELEASED_RATES, torch.float64)
    codes = pair.codes(120, rows=2)
    expected = torch.cat([pair.whole(codes[row : row + 1]) for row in range(2)])
    model = pair.ours.to("cuda")
    codes = codes.cuda()
    _stream(model, codes[:, :, :20], [10, 10])
    with no_synchronization():
        wav = _stream(model, codes, [1, 20, 99])
    # Rotary angles are float32 in every dtype, and CUDA rounds their cosines by itself: 1e-5 of peak instead of 1e-10.
    assert pair.error(wav.cpu(), expected) < 1e-5 / RELATIVE_TOLERANCE[torch.float64]
