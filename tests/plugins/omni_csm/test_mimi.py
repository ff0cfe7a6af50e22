"""The streaming codec against transformers' whole decode and encode.

Shapes: B rows, N frames, G codes of each, S samples.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from omni_csm.mimi.vocoder import Vocoder
from omni_vocoder.state import StateSlot, StreamState
from tests.plugins.omni_csm.lively_mimi import SHAPES, Codec, lively_codec

RELATIVE_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}
PUBLISHED = "published ratios"


@pytest.fixture(scope="module", params=SHAPES)
def codec(request: pytest.FixtureRequest) -> Codec:
    return lively_codec(SHAPES[request.param])


@pytest.fixture(scope="module")
def exact() -> Codec:
    return lively_codec(SHAPES["grouped heads, two units, shortcuts"], dtype=torch.float64)


def _error(wav_BS: Tensor, expected_BS: Tensor) -> float:
    """Largest deviation, as a multiple of the tolerance: 1e-5 of peak in float32, 1e-11 in float64."""
    assert wav_BS.shape == expected_BS.shape
    relative = (wav_BS - expected_BS).abs().max() / expected_BS.abs().max()
    return float(relative) / RELATIVE_TOLERANCE[expected_BS.dtype]


def _stream(
    model: Vocoder, codes_BNG: Tensor, sizes: Sequence[int], tamper: Callable[[StreamState], object] | None = None
) -> Tensor:
    """The chunks of `sizes` frames, concatenated. tamper: is let at the state after the first chunk."""
    assert sum(sizes) == codes_BNG.shape[1]
    rows_B = torch.arange(codes_BNG.shape[0])
    state = model.new_state(len(rows_B))
    wavs = []
    for index, piece_BNG in enumerate(codes_BNG.split(list(sizes), 1)):
        wavs.append(model.decode(piece_BNG, state, rows_B, index == 0))
        if index == 0 and tamper is not None:
            tamper(state)
    return torch.cat(wavs, 1)


@pytest.mark.parametrize(
    "sizes",
    [[1] * 60, [2, 3, 5, 7, 11, 13, 19], [1, 59]],
    ids=lambda sizes: f"{sizes[0]} of {len(sizes)}",
)
def test_any_chunking_equals_one_whole_decode(codec: Codec, sizes: list[int]) -> None:
    codes = codec.codes(60, rows=2)
    assert _error(_stream(codec.ours, codes, sizes), codec.whole(codes)) < 1


@settings(max_examples=10)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=10), seed=st.integers(0, 1000))
def test_random_chunking(exact: Codec, sizes: list[int], seed: int) -> None:
    codes = exact.codes(sum(sizes) + 10, seed)
    assert _error(_stream(exact.ours, codes, [*sizes, 10]), exact.whole(codes)) < 1


def test_codes_that_no_codebook_has_are_the_last_that_it_has(exact: Codec) -> None:
    codes = exact.codes(30)
    codes[0, 7, 2] = exact.config.codebook_size + 2
    clamped = codes.clamp(max=exact.config.codebook_size - 1)
    assert _error(_stream(exact.ours, codes, [30]), exact.whole(clamped)) < 1


def test_rows_of_different_histories_share_a_call(exact: Codec) -> None:
    """Three streams begin at different times and go on together, in another order than that of their rows."""
    model, histories, rows = exact.ours, (17, 1, 8), (4, 0, 2)
    codes = [exact.codes(history + 30, seed) for seed, history in enumerate(histories)]
    state = model.new_state(5)
    wavs = [
        [model.decode(c[:, :h], state, torch.tensor([r]), True)] for c, h, r in zip(codes, histories, rows, strict=True)
    ]
    for start, end in ((0, 4), (4, 5), (5, 30)):
        pieces = [c[:, h + start : h + end] for c, h in zip(codes, histories, strict=True)]
        for wav, chunks in zip(model.decode(torch.cat(pieces), state, torch.tensor(rows), False), wavs, strict=True):
            chunks.append(wav[None])
    for code, chunks in zip(codes, wavs, strict=True):
        assert _error(torch.cat(chunks, 1), exact.whole(code)) < 1


def test_a_row_never_touches_another(exact: Codec) -> None:
    """A neighbour full of NaN, in the state and in the same call, changes no sample; a bystander keeps its state."""
    codes, state = exact.codes(40), exact.ours.new_state(3)
    state.carried_RW[1:].fill_(torch.nan)
    first = exact.ours.decode(codes[:, :20], state, torch.tensor([0]), True)
    both = exact.ours.decode(codes[:, 20:].repeat(2, 1, 1), state, torch.tensor([1, 0]), False)
    assert both[0].isnan().any()
    assert _error(torch.cat((first, both[1:]), 1), exact.whole(codes)) < 1
    assert state.carried_RW[2].isnan().all()
    assert state.frames_R.tolist() == [40, 20, 0]


def test_a_row_is_used_again_after_a_reset(exact: Codec) -> None:
    state, rows = exact.ours.new_state(2), torch.tensor([1])
    exact.ours.decode(exact.codes(33, seed=7), state, rows, True)
    exact.ours.reset(state, rows)
    codes = exact.codes(30)
    wav = torch.cat(
        [exact.ours.decode(piece, state, rows, n == 0) for n, piece in enumerate(codes.split([1, 9, 20], 1))], 1
    )
    assert _error(wav, exact.whole(codes)) < 1


@pytest.mark.parametrize("oldest", [False, True], ids=["all", "oldest"])
def test_planted_fault_a_forgotten_past_is_heard(codec: Codec, oldest: bool) -> None:
    """Of every layer, alone, down to its oldest sample."""
    codes, model = codec.codes(40), codec.ours
    expected = codec.whole(codes)
    used = [slot for slot in model.layout.slots if slot.length]
    assert len(used) >= 2 * (codec.config.sliding_window > 1) + 1 + 1 + 2 * len(codec.config.upsampling_ratios) + 1
    for slot in used:

        def forget(state: StreamState, slot: StateSlot = slot) -> None:
            past = slot.of(state.carried_RW)
            (past.select(slot.time + 1, 0) if oldest else past).zero_()

        error = _error(_stream(model, codes, [20, 20], forget), expected)
        assert error > 1, f"{slot} does not matter: {error}"


@pytest.mark.parametrize("drift", [-1, 1])
def test_planted_fault_a_drifted_position_is_heard(drift: int) -> None:
    codec = lively_codec(SHAPES[PUBLISHED])
    codes = codec.codes(40)
    # Keys that are carried keep the angles they were turned by.
    wav = _stream(codec.ours, codes, [20, 20], lambda state: state.frames_R.add_(drift))
    assert _error(wav, codec.whole(codes)) > 1


@pytest.mark.parametrize("window", [9, 11])
def test_planted_fault_a_window_off_by_one_is_heard(window: int) -> None:
    codec, other = lively_codec(SHAPES[PUBLISHED]), lively_codec(SHAPES[PUBLISHED] | {"sliding_window": window})
    other.ours.load_state_dict(codec.ours.state_dict())
    codes = codec.codes(40)
    assert _error(_stream(other.ours, codes, [20, 20]), codec.whole(codes)) > 1


@pytest.mark.parametrize("samples", [1, 119, 1920, 1921, 9999])
def test_whole_clips_have_the_codes_of_transformers(codec: Codec, samples: int) -> None:
    generator = torch.Generator().manual_seed(samples)
    clips = [0.3 * torch.randn(count, generator=generator) for count in (samples, 700)]
    plan = codec.encoder.plan([{"samples": clip} for clip in clips])
    codes_nG = codec.encoder.encode({"samples": torch.cat(clips)}, plan.segments)["codes"]
    for clip, part_nG in zip(clips, codes_nG.split(list(plan.sizes)), strict=True):
        with torch.no_grad():
            expected_1GN = codec.reference.encode(clip[None, None]).audio_codes
        assert torch.equal(part_nG.t(), expected_1GN[0])
        assert part_nG.shape[0] == -(-len(clip) // codec.config.frame_size)
    assert samples < 9999 or len(codes_nG.unique()) > 8
