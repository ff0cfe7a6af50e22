"""The streaming vocoders against transformers' whole decode, and Mimi's codes of whole clips.

The references are made lively first: at default initialization their output is silent, or peaks at 1e-6, and hides every error.
Shapes: B rows, N frames, G codes of each, S samples.
"""

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import MimiConfig, MimiModel
from transformers.models.mimi.modeling_mimi import MimiDecoder
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni.checkpoint.checks import Section
from omni.device.kernel_choice import kernels_of
from omni_csm.config import PER_FRAME
from omni_csm.mimi.codec import settle_codebooks
from omni_csm.mimi.encoder import AudioEncoder
from omni_csm.mimi.vocoder import Vocoder
from omni_qwen3_omni.code2wav import Code2Wav
from omni_vocoder.layers import window_shape
from omni_vocoder.state import StatePart, StreamState
from tests.support.devices import no_synchronization
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough

SMALL: dict[str, Any] = {"codebook_size": 32, "num_quantizers": 4, "hidden_size": 24, "intermediate_size": 40}
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
CODE2WAV: dict[str, dict[str, Any]] = {
    "released rates": SMALL
    | {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "sliding_window": 16,
        "decoder_dim": 32,
    },
    "grouped heads": GROUPED_HEADS,
    "one key head": SMALL
    | {
        "num_quantizers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "sliding_window": 9,
        "upsampling_ratios": [3, 1],
        "upsample_rates": [2, 5, 3],
        "decoder_dim": 48,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    },
    "no context": GROUPED_HEADS | {"sliding_window": 1, "upsampling_ratios": [2, 2]},
    "silent start": GROUPED_HEADS | {"upsampling_ratios": [], "upsample_rates": [3]},
    "two frames to start": GROUPED_HEADS | {"upsampling_ratios": [], "upsample_rates": [2, 2]},
}
SMALL_MIMI: dict[str, Any] = {
    "codebook_size": 32,
    "codebook_dim": 12,
    "vector_quantization_hidden_dimension": 12,
    "num_quantizers": 6,
    "hidden_size": 24,
    "upsample_groups": 24,
    "num_filters": 4,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "sliding_window": 10,
}
MIMI: dict[str, dict[str, Any]] = {
    "published ratios": SMALL_MIMI,
    "grouped heads, two units, shortcuts": SMALL_MIMI
    | {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "upsampling_ratios": [3, 2],
        "num_residual_layers": 2,
        "use_conv_shortcut": True,
        "attention_bias": True,
        "num_semantic_quantizers": 2,
        "sliding_window": 5,
    },
    "no projection, dense upsampling": SMALL_MIMI
    | {
        "codebook_dim": 24,
        "vector_quantization_hidden_dimension": 24,
        "upsample_groups": 1,
        "upsampling_ratios": [2, 5, 3],
        "compress": 4,
        "kernel_size": 5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "sliding_window": 1,
    },
}


@dataclass(frozen=True)
class Pair:
    """ours, encoder: with the parameters of `reference`, transformers' own. tolerance: of the peak."""

    ours: Any
    reference: Any
    decode: Callable[[Tensor], Tensor]
    tolerance: float
    encoder: Any = None

    @property
    def config(self) -> Any:
        return self.reference.config

    def codes(self, frames: int, seed: int = 0, rows: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(self.config.codebook_size, (rows, frames, self.config.num_quantizers), generator=generator)

    @torch.no_grad()
    def whole(self, codes_BNG: Tensor) -> Tensor:
        """The reference's decode within [-1, 1], which must be neither mute nor constant, and hardly clipped."""
        wav_BS = self.decode(codes_BNG.transpose(1, 2))[:, 0].clamp(-1, 1)
        assert wav_BS.abs().max() > 0.1
        assert (wav_BS.abs() == 1).double().mean() < 0.01
        assert (wav_BS.std(1) > 0.02).all()
        return wav_BS

    def error(self, wav_BS: Tensor, expected_BS: Tensor) -> float:
        """Largest deviation, as a multiple of the tolerance."""
        assert wav_BS.shape == expected_BS.shape
        return float((wav_BS - expected_BS).abs().max() / expected_BS.abs().max()) / self.tolerance


@torch.no_grad()
def enliven_code2wav(model: Any, dtype: torch.dtype) -> None:
    """Random parameters under which every layer and every context affects the sound; the peak is 0.5 over 100 frames."""
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


@torch.no_grad()
def enliven_mimi(model: Any, dtype: torch.dtype) -> None:
    """The same, also for codebooks."""
    generator = torch.Generator().manual_seed(1)
    for name, module in model.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                convolutional = "decoder" in name and ".layers" in name and "transformer" not in name
                parameter.copy_(noise * (0.8 if convolutional else 1.0) * _fan_in(module, parameter) ** -0.5)
            elif own in ("weight", "scale"):
                parameter.copy_(1 + 0.1 * noise if own == "weight" else 0.5 + 0.1 * noise)
            else:
                parameter.copy_(0.1 * noise)
    for module in model.quantizer.modules():
        buffers = dict(module.named_buffers(recurse=False))
        if "embed_sum" in buffers:
            usage = 0.5 + torch.rand(buffers["cluster_usage"].shape, generator=generator)
            buffers["cluster_usage"].copy_(usage)
            buffers["embed_sum"].copy_(torch.randn(buffers["embed_sum"].shape, generator=generator) * usage[:, None])
    model.to(dtype)
    codes = torch.randint(model.config.codebook_size, (1, model.config.num_quantizers, 60), generator=generator)
    gain = 0.7 / model.decode(codes).audio_values.abs().max()
    (seanet,) = (module for module in model.decoder.modules() if isinstance(module, MimiDecoder))
    last: Any = seanet.layers[-1]
    for parameter in last.conv.parameters():
        parameter.mul_(gain)


def published_weights(model: Any) -> dict[str, Tensor]:
    """By the names of published checkpoints, which those of the module differ from in some versions of transformers."""
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def _fan_in(module: nn.Module, parameter: Tensor) -> float:
    if isinstance(module, nn.ConvTranspose1d):
        return module.in_channels / module.groups * module.kernel_size[0] / module.stride[0]
    return float(parameter[0].numel())


def code2wav(config: dict[str, Any]) -> Code2Wav:
    section = Section(config)
    return Code2Wav(section, window_shape(section))


@cache
def pair_of(shape: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Pair:
    """shape: of `CODE2WAV` or `MIMI`."""
    single = dtype == torch.float32
    if shape in CODE2WAV:
        config = Qwen3OmniMoeCode2WavConfig(**(CODE2WAV[shape] | changes))
        reference = Qwen3OmniMoeCode2Wav._from_config(config).eval()
        enliven_code2wav(reference, dtype)
        ours = code2wav(config.to_dict()).to(dtype)
        ours.load_state_dict(reference.state_dict(), strict=True)
        return Pair(ours, reference, reference, 1e-4 if single else 1e-10)
    mimi: Any = MimiModel(MimiConfig(**(MIMI[shape] | changes))).eval()
    enliven_mimi(mimi, dtype)
    window = window_shape(Section(mimi.config.to_dict()), PER_FRAME)
    vocoder, encoder = Vocoder(mimi.config, window).to(dtype), AudioEncoder(mimi.config, window).to(dtype)
    for module in (vocoder, encoder):
        published = published_weights(mimi)
        module.load_state_dict({name: published[name] for name in module.state_dict()})
        settle_codebooks(module)
    return Pair(vocoder, mimi, lambda codes: mimi.decode(codes).audio_values, 1e-5 if single else 1e-11, encoder)


@pytest.fixture(scope="module")
def released() -> Pair:
    return pair_of("released rates", torch.float32)


@pytest.fixture(scope="module", params=["grouped heads", "grouped heads, two units, shortcuts"])
def exact(request: pytest.FixtureRequest) -> Pair:
    return pair_of(request.param)


def rows_of(*rows: int) -> Tensor:
    return torch.tensor(rows)


def stream(
    pair: Pair, codes_BNG: Tensor, sizes: Sequence[int], tamper: Callable[[StreamState], object] | None = None
) -> Tensor:
    """The chunks of `sizes` frames, concatenated. tamper: changes the state after the first chunk."""
    assert sum(sizes) == codes_BNG.shape[1]
    rows_B = torch.arange(codes_BNG.shape[0], device=codes_BNG.device)
    state, wavs = pair.ours.new_state(len(rows_B)), []
    for index, piece_BNG in enumerate(codes_BNG.split(list(sizes), 1)):
        wavs.append(pair.ours.decode(piece_BNG, state, rows_B, index == 0))
        if index == 0 and tamper is not None:
            tamper(state)
    return torch.cat(wavs, 1)


def fill(sizes: Sequence[int], total: int) -> list[int]:
    """`sizes` over and over, up to `total` frames."""
    filled: list[int] = []
    while (left := total - sum(filled)) > 0:
        filled.append(min(sizes[len(filled) % len(sizes)], left))
    return filled


@pytest.mark.parametrize(
    ("shape", "frames", "sizes"),
    [
        ("released rates", 60, [1]),
        *few(1, (("released rates", 331, sizes) for sizes in ([2, 3, 5, 7, 11, 13], [320], [331], [1, 10])), SLOW),
        *((shape, 60, sizes) for shape in MIMI for sizes in ([1], [2, 3, 5, 7, 11, 13, 19], [1, 59])),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", few(1, [torch.float64, torch.float32], SLOW), ids=str)
def test_any_chunking_equals_one_whole_decode(shape: str, frames: int, sizes: list[int], dtype: torch.dtype) -> None:
    """Of two streams that begin together."""
    pair = pair_of(shape, dtype)
    codes = pair.codes(frames, rows=1 if frames > 60 else 2)
    assert pair.error(stream(pair, codes, fill(sizes, frames)), pair.whole(codes)) < 1


@pytest.mark.parametrize("shape", few(2, [list(CODE2WAV)[1], list(MIMI)[1], *list(CODE2WAV)[2:4]], SLOW))
def test_kernels_decode_chunks_as_one_whole(shape: str) -> None:
    """Under the interpreter, for two streams that begin together."""
    kernel = pytest.importorskip("omni_vocoder.kernels.window_attention.kernel")
    pair = pair_of(shape, torch.float32)
    codes = pair.codes(15, rows=2)
    ran = Mock(wraps=kernel.attend_window)
    with kernels_of(torch.device("cuda")), patch.object(kernel, "attend_window", ran):
        found = stream(pair, codes, [3, 1, 4, 7])
    assert ran.call_count == 4 * pair.config.num_hidden_layers
    assert pair.error(found, pair.whole(codes)) < 1


@pytest.mark.parametrize("shape", [*list(CODE2WAV)[1:4], list(MIMI)[1]])
def test_random_chunks_give_the_whole_decode(shape: str) -> None:
    pair = pair_of(shape)

    @settings(max_examples=8)
    @given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=12), seed=st.integers(0, 1000))
    def check(sizes: list[int], seed: int) -> None:
        codes = pair.codes(sum(sizes) + 20, seed)
        assert pair.error(stream(pair, codes, [*sizes, 20]), pair.whole(codes)) < 1

    check()


@pytest.mark.parametrize("first", [1, 2, 3])
def test_first_chunk_may_be_silent(first: int) -> None:
    pair = pair_of("silent start")
    codes = pair.codes(100)
    state = pair.ours.new_state(1)
    assert pair.ours.decode(codes[:, :first], state, rows_of(0), True).shape == (1, 3 * first - 3)
    assert pair.error(stream(pair, codes, fill([first, 1, 4], 100)), pair.whole(codes)) < 1


def test_first_chunk_below_the_fewest_frames_is_refused() -> None:
    pair = pair_of("two frames to start")
    codes = pair.codes(100)
    with pytest.raises(ValueError, match="a chunk has 1 frames, fewer than 2"):
        pair.ours.decode(codes[:, :1], pair.ours.new_state(1), rows_of(0), True)
    assert pair.error(stream(pair, codes, [2, *[1] * 98]), pair.whole(codes)) < 1


@pytest.mark.parametrize(
    ("groups", "frames", "message"),
    [(3, 5, "frames have 3 codes each, not 4"), (5, 5, "frames have 5 codes"), (4, 0, "a chunk has 0 frames")],
)
def test_codes_of_a_wrong_shape_are_refused(released: Pair, groups: int, frames: int, message: str) -> None:
    codes = torch.zeros(1, frames, groups, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        released.ours.decode(codes, released.ours.new_state(1), rows_of(0), False)


def test_codes_that_no_codebook_has_are_the_last_that_it_has() -> None:
    pair = pair_of("grouped heads, two units, shortcuts")
    codes = pair.codes(30)
    codes[0, 7, 2] = pair.config.codebook_size + 2
    clamped = codes.clamp(max=pair.config.codebook_size - 1)
    assert pair.error(stream(pair, codes, [30]), pair.whole(clamped)) < 1


def test_rows_of_different_histories_share_a_call(exact: Pair) -> None:
    """Three streams begin at different times and go on together, in another order than that of their rows."""
    histories, rows, state = (37, 1, 20), (4, 0, 2), exact.ours.new_state(5)
    codes = [exact.codes(history + 35, seed) for seed, history in enumerate(histories)]
    wavs = [
        [exact.ours.decode(c[:, :h], state, rows_of(row), True)]
        for c, h, row in zip(codes, histories, rows, strict=True)
    ]
    for start, end in pairwise((0, 4, 5, 35)):
        pieces = torch.cat([c[:, h + start : h + end] for c, h in zip(codes, histories, strict=True)])
        for wav, chunks in zip(exact.ours.decode(pieces, state, rows_of(*rows), False), wavs, strict=True):
            chunks.append(wav[None])
    for code, chunks in zip(codes, wavs, strict=True):
        assert exact.error(torch.cat(chunks, 1), exact.whole(code)) < 1


def test_a_row_never_touches_another(exact: Pair) -> None:
    """A neighbour full of NaN, in the state and in the same call, changes no sample; a bystander keeps its state."""
    codes, state = exact.codes(60), exact.ours.new_state(3)
    state.carried_RW[1:].fill_(torch.nan)
    first = exact.ours.decode(codes[:, :20], state, rows_of(0), True)
    both = exact.ours.decode(codes[:, 20:].repeat(2, 1, 1), state, rows_of(1, 0), False)
    assert both[0].isnan().any()
    assert exact.error(torch.cat((first, both[1:]), 1), exact.whole(codes)) < 1
    assert state.carried_RW[2].isnan().all()
    assert state.frames_R.tolist() == [60, 40, 0]


@pytest.mark.parametrize("clear", [True, False])
def test_a_row_is_used_again(exact: Pair, clear: bool) -> None:
    state, rows = exact.ours.new_state(2), rows_of(1)
    exact.ours.decode(exact.codes(33, seed=7), state, rows, True)
    if clear:
        exact.ours.reset(state, rows)
        assert not state.carried_RW.any()
        assert not state.frames_R.any()
    codes = exact.codes(50)
    pieces = enumerate(codes.split([1, 9, 40], 1))
    wav = torch.cat([exact.ours.decode(piece, state, rows, n == 0) for n, piece in pieces], 1)
    assert exact.error(wav, exact.whole(codes)) < 1


def test_positions_far_beyond_the_trained_range() -> None:
    """40,000 frames. The reference gets the last 300 at their absolute positions: more than affect the last 200."""
    pair = pair_of("grouped heads", torch.float32)
    frames, seen, compared = 40_000, 300, 200
    hidden = torch.randn(1, frames, 24, generator=torch.Generator().manual_seed(3))
    state = pair.ours.new_state(1)
    with torch.no_grad():
        for index, piece in enumerate(hidden.split(800, dim=1)):
            chunk = state.load(rows_of(0), first=index == 0)
            output = pair.ours.pre_transformer(piece, chunk)
            state.store(rows_of(0), chunk, piece.shape[1])
        positions = torch.arange(frames - seen, frames)[None]
        expected = pair.reference.pre_transformer(inputs_embeds=hidden[:, -seen:], position_ids=positions)
    assert pair.error(output[:, -compared:], expected.last_hidden_state[:, -compared:]) < 1


@pytest.mark.parametrize("oldest", few(1, [False, True]), ids=["all", "oldest"])
@pytest.mark.parametrize("shape", ["released rates", *MIMI])
def test_planted_fault_a_forgotten_past_is_heard(shape: str, oldest: bool) -> None:
    """Of every layer, alone, down to its oldest sample."""
    pair = pair_of(shape, torch.float32)
    held = {slot for module in pair.ours.modules() for slot in vars(module).values() if isinstance(slot, StatePart)}
    codes, used = pair.codes(50), [slot for slot in held if slot.length]
    assert sum(math.prod(slot.shape) for slot in held) == pair.ours.layout.width
    expected = pair.whole(codes)
    if shape in CODE2WAV:
        # Keys and values, upsampling blocks, inlet, decoder blocks (a transposed and three dilated convolutions), outlet.
        assert len(used) == 2 * 2 + 2 + 1 + 4 * 4 + 1
    else:
        assert len(used) >= 2 * (pair.config.sliding_window > 1) + 2 + 2 * len(pair.config.upsampling_ratios) + 1
    for slot in used:

        def forget(state: StreamState, slot: StatePart = slot) -> None:
            past = slot.of(state.carried_RW)
            (past.select(2, 0) if oldest else past).zero_()

        error = pair.error(stream(pair, codes, [25, 25], forget), expected)
        assert error > 1, f"{slot} does not matter: {error}"


@pytest.mark.parametrize("samples", [1, 119, 1920, 1921, 9999])
@pytest.mark.parametrize("shape", MIMI)
def test_whole_clips_have_the_codes_of_transformers(shape: str, samples: int) -> None:
    pair, generator = pair_of(shape, torch.float32), torch.Generator().manual_seed(samples)
    clips = [0.3 * torch.randn(count, generator=generator) for count in (samples, 700)]
    plan = pair.encoder.plan([{"samples": clip} for clip in clips])
    codes_nG = pair.encoder.encode({"samples": torch.cat(clips)}, plan.segments)["codes"]
    for clip, part_nG in zip(clips, codes_nG.split(list(plan.sizes)), strict=True):
        with torch.no_grad():
            expected_1GN = pair.reference.encode(clip[None, None]).audio_codes
        assert torch.equal(part_nG.t(), expected_1GN[0])
        assert part_nG.shape[0] == -(-len(clip) // pair.config.frame_size)
    assert samples < 9999 or len(codes_nG.unique()) > 8


def storages() -> set[int]:
    """Addresses of all tensors' memory."""
    gc.collect()
    found: Iterator[Tensor] = (obj for obj in gc.get_objects() if type(obj) in (Tensor, nn.Parameter))
    # Other tests may have left sparse ones, which have no storage.
    return {tensor.untyped_storage().data_ptr() for tensor in found if tensor.layout == torch.strided}


def test_nothing_outlives_a_chunk_but_the_state() -> None:
    pair, rows = pair_of("grouped heads"), rows_of(0)
    codes, state = pair.codes(200), pair.ours.new_state(1)
    addresses = state.carried_RW.data_ptr(), state.frames_R.data_ptr()
    pair.ours.decode(codes[:, :10], state, rows, True)
    before = storages()
    for piece in codes[:, 10:].split(10, dim=1):
        pair.ours.decode(piece, state, rows, False)
    del piece
    # What other tests have left may go meanwhile.
    assert storages() <= before
    assert (state.carried_RW.data_ptr(), state.frames_R.data_ptr()) == addresses


@pytest.mark.parametrize("first", [True, False])
def test_no_value_is_read_back_from_the_device(first: bool) -> None:
    """Tensors on the meta device have no values: whatever asks for one raises."""
    model = code2wav(Qwen3OmniMoeCode2WavConfig(**GROUPED_HEADS).to_dict()).to("meta")
    state = model.new_state(4)
    with torch.device("meta"):
        rows, codes = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 7, 4, dtype=torch.int64)
    assert model.decode(codes, state, rows, first).shape == (2, model.samples(7, first))


@pytest.mark.gpu
def test_cuda_decodes_the_same_and_never_waits() -> None:
    pair = pair_of("released rates")
    codes = pair.codes(120, rows=2)
    expected = pair.whole(codes)
    pair.ours.to("cuda")
    codes = codes.cuda()
    stream(pair, codes[:, :20], [10, 10])
    with no_synchronization():
        wav = stream(pair, codes, [1, 20, 99])
    pair.ours.to("cpu")
    # Rotary angles are float32 in every dtype, and CUDA rounds their cosines by itself: 1e-5 of peak instead of 1e-10.
    assert pair.error(wav.cpu(), expected) < 1e-5 / pair.tolerance
