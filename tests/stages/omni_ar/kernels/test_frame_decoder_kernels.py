"""All passes of a frame in one kernel: logits against float64, codes against the layers' passes one by one.

The kernel's programs wait for one another, which the interpreter cannot show: there one program runs all phases, or several
programs run each phase in a launch of its own.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from omni_ar.kernels.frame_decoder import FrameSettings, kernel
from omni_ar.kernels.frame_decoder.passes import FrameBuffers
from omni_ar.kernels.sampling.state import EVERYTHING
from omni_ar.layers import DecoderConfig, frame_kernel
from omni_ar.layers.code_predictor import CodePredictor
from omni_ar.model import Codes
from omni_ar.sampling.sampler import DrawCodes
from tests.support.exact import DTYPES, HERE
from tests.support.sampler_bench import moved, state_of

pytestmark = pytest.mark.thorough

GREEDY: dict[str, Any] = {"temperature": 0.0, "code_temperature": 0.0}
SAMPLED: list[dict[str, Any]] = [
    {"temperature": 1.0, "seed": 4, "code_top_k": 9, "code_top_p": 0.8},
    {"temperature": 1.0, "seed": 5, "code_top_k": 0, "code_top_p": 1.0},
    {"temperature": 0.0, "seed": 6, "code_temperature": 1.3, "code_top_k": 5},
    {"temperature": 1.0, "seed": 2**62 + 7, "code_top_p": 0.5},
]
LEFT = FrameSettings(qkv=16, out=8, gate_up=8, down=8, head=16, tile_d=16, slices=2, rows_left=True, num_warps=4)
RIGHT = FrameSettings(qkv=32, out=16, gate_up=8, down=16, head=16, tile_d=32, slices=4, rows_left=False, num_warps=4)
ORDERS = {"one launch": 0, "two programs in turn": 2, "nine programs in turn": 9}
# A share of the largest logit, of sums in fp32 of inputs that are rounded once or twice a phase.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 6e-2, torch.float16: 8e-3}


def config_of(**sizes: Any) -> DecoderConfig:
    small = {"width": 24, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "mlp_width": 40}
    return DecoderConfig(**(small | {"max_positions": 64, "rope_theta": 1e4, "rms_norm_eps": 1e-6} | sizes))


def random_config(seed: int) -> DecoderConfig:
    chance = Random(seed)
    kv_heads = chance.randint(1, 2)
    return config_of(
        width=chance.randint(3, 9) * 4,
        num_layers=chance.randint(1, 2),
        num_kv_heads=kv_heads,
        num_heads=kv_heads * chance.randint(1, 3),
        head_dim=2 * chance.randint(2, 6),
        mlp_width=chance.randint(5, 13) * 4,
        qk_norm=chance.random() < 0.5,
    )


def predictor_of(config: DecoderConfig, codes: int, groups: int, dtype: torch.dtype = torch.float32) -> CodePredictor:
    model = CodePredictor(config, codes, groups, device=HERE, dtype=dtype)
    generator = torch.Generator().manual_seed(codes)
    for name, parameter in model.named_parameters():
        scale = 0.4 if "norm" in name else 1.0 if "embedding" in name else 1.5 * parameter.shape[-1] ** -0.5
        parameter.data = (torch.randn(parameter.shape, generator=generator) * scale + ("norm" in name)).to(HERE, dtype)
    return model.requires_grad_(False)


def frames_of(model: Any, width: int, rows: list[dict[str, Any]]) -> tuple[Tensor, Tensor, Tensor, DrawCodes]:
    """Arguments of `predict`; the rows lie in another order in the state."""
    count, codes = len(rows), model.lm_head[0].out_features
    generator = torch.Generator().manual_seed(count)
    dtype = model.lm_head[0].weight.dtype
    hidden_RD, code0_RD = (torch.randn(count, width, generator=generator).to(HERE, dtype) for _ in range(2))
    code0_R = torch.randint(codes, (count,), generator=generator).to(HERE)
    state = moved(state_of(codes, rows), HERE.type)
    rows_R = torch.arange(count).flip(0).to(HERE)
    return hidden_RD, code0_R, code0_RD, DrawCodes(state, rows_R, rows_R + 5, EVERYTHING)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Callable[[FrameSettings, int], list[FrameBuffers]]:
    """Makes `predict` run the kernel with settings and an order, and returns what its launches have used since."""

    def choose(settings: FrameSettings, in_turn: int) -> list[FrameBuffers]:
        used: list[FrameBuffers] = []
        make = kernel._buffers

        def buffers(*arguments: Any) -> FrameBuffers:
            used.append(make(*arguments))
            return used[-1]

        monkeypatch.setattr(kernel, "_buffers", buffers)
        monkeypatch.setattr(frame_kernel, "chosen", lambda x_TD, shape: settings)
        run = lambda *arguments: kernel.decode_frames(*arguments, in_turn=in_turn)  # noqa: E731
        monkeypatch.setattr(frame_kernel, "decode_frames", run)
        return used

    return choose


def exact_logits(model: Any, config: DecoderConfig, hidden_RD: Tensor, code0_RD: Tensor, codes_RG: Tensor) -> Tensor:
    """float64 `[R, G - 1, V]` of whole frames, given their codes, from the weights alone."""
    tables = [table.weight.double() for table in model.model.codec_embedding]
    inputs = [hidden_RD, code0_RD, *(table[codes_RG[:, i + 1]] for i, table in enumerate(tables[:-1]))]
    x_RGD = torch.stack([one.double() for one in inputs], 1)
    positions, width = x_RGD.shape[1], config.head_dim
    frequency = 1.0 / config.rope_theta ** (torch.arange(0, width, 2, device=HERE).double() / width)
    angle = torch.outer(torch.arange(positions, device=HERE).double(), frequency).repeat(1, 2)

    def normed(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * weight.double()

    def turned(x_RHGW: Tensor, norm: Any) -> Tensor:
        x_RHGW = x_RHGW if norm is None else normed(x_RHGW, norm.weight)
        first, second = x_RHGW.chunk(2, -1)
        return x_RHGW * angle.cos() + torch.cat([-second, first], -1) * angle.sin()

    masked = torch.ones(positions, positions, dtype=torch.bool, device=HERE).triu(1)
    for layer in model.model.layers:
        attention: Any = layer.self_attn
        qkv = normed(x_RGD, layer.input_layernorm.weight) @ attention.qkv_proj.weight.double().T
        sizes = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        query, key, value = (part.transpose(1, 2) for part in qkv.unflatten(-1, (-1, width)).split(sizes, 2))
        share = config.num_heads // config.num_kv_heads
        query, key = turned(query, attention.q_norm), turned(key, attention.k_norm).repeat_interleave(share, 1)
        weight = (query @ key.mT * width**-0.5).masked_fill(masked, -torch.inf).softmax(-1)
        attended = (weight @ value.repeat_interleave(share, 1)).transpose(1, 2).flatten(2)
        x_RGD = x_RGD + attended @ attention.o_proj.weight.double().T
        both = normed(x_RGD, layer.post_attention_layernorm.weight) @ layer.mlp.gate_up_proj.weight.double().T
        gate, up = both.chunk(2, -1)
        x_RGD = x_RGD + (torch.nn.functional.silu(gate) * up) @ layer.mlp.down_proj.weight.double().T
    x_RGD = normed(x_RGD, model.model.norm.weight)
    heads = [head.weight.double() for head in model.lm_head]
    return torch.stack([x_RGD[:, group + 1] @ head.T for group, head in enumerate(heads)], 1)


def assert_exact(
    model: Any, config: DecoderConfig, hidden_RD: Tensor, code0_RD: Tensor, got: Codes, used: FrameBuffers
) -> None:
    """Greedy codes, the logits of the last group, and the sum of embeddings."""
    exact_RGV = exact_logits(model, config, hidden_RD, code0_RD, got.codes_RG)
    near = TOLERANCE[hidden_RD.dtype] * exact_RGV.abs().amax()
    taken_RG = exact_RGV.gather(2, got.codes_RG[:, 1:, None])[..., 0]
    assert (taken_RG >= exact_RGV.amax(-1) - near).all()
    assert (used.logits_RV.double() - exact_RGV[:, -1]).abs().amax() < near
    tables = [table.weight for table in model.model.codec_embedding]
    sum_RD = code0_RD
    for group, table in enumerate(tables, 1):
        sum_RD = sum_RD + table[got.codes_RG[:, group]]
    assert torch.equal(got.next_RD, sum_RD)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("settings", [LEFT, RIGHT], ids=["rows left", "rows right"])
@pytest.mark.parametrize("seed", range(2))
@torch.inference_mode()
def test_logits_of_random_shapes_are_exact(seed: int, settings: FrameSettings, order: str, fused: Any) -> None:
    config, groups = random_config(seed), 2 + seed
    model = predictor_of(config, 19 + seed, groups)
    used = fused(settings, ORDERS[order])
    hidden_RD, code0_R, code0_RD, draw = frames_of(model, config.width, [GREEDY] * (1 + 2 * seed))
    got = model.predict(hidden_RD, code0_R, code0_RD, draw)
    assert_exact(model, config, hidden_RD, code0_RD, got, used[0])


@pytest.mark.parametrize("order", ["one launch", "two programs in turn"])
@torch.inference_mode()
def test_codes_are_drawn_as_by_the_layers(order: str, fused: Any) -> None:
    config = config_of()
    model = predictor_of(config, 37, 4)
    asked = frames_of(model, config.width, [GREEDY, *SAMPLED])
    expected = model.predict(*asked)
    used = fused(LEFT, ORDERS[order])
    got = model.predict(*asked)
    assert len(used) == 1
    assert got.codes_RG.tolist() == expected.codes_RG.tolist()
    assert torch.equal(got.next_RD, expected.next_RD)
    assert len(set(map(tuple, got.codes_RG.tolist()))) == len(SAMPLED) + 1


SERVED = config_of(width=1024, num_layers=2, num_heads=16, num_kv_heads=8, head_dim=128, mlp_width=3072)
SERVED_SETTINGS = FrameSettings(
    qkv=32, out=8, gate_up=8, down=8, head=16, tile_d=256, slices=8, rows_left=True, num_warps=8
)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 5, 16, 32])
@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_all_programs_agree_with_float64(dtype: torch.dtype, rows: int, fused: Any) -> None:
    model = predictor_of(SERVED, 2048, 4, dtype)
    used = fused(SERVED_SETTINGS, 0)
    hidden_RD, code0_R, code0_RD, draw = frames_of(model, SERVED.width, [GREEDY] * rows)
    got = model.predict(hidden_RD, code0_R, code0_RD, draw)
    assert_exact(model, SERVED, hidden_RD, code0_RD, got, used[0])


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [LEFT, RIGHT, SERVED_SETTINGS], ids=["rows left", "rows right", "served"])
@torch.inference_mode()
def test_programs_that_wait_give_what_phases_in_turn_give(settings: FrameSettings, fused: Any) -> None:
    """Bit by bit: a barrier that lets a program pass too early changes some bits of some frame."""
    model = predictor_of(SERVED, 2048, 16, torch.bfloat16)
    asked = frames_of(model, SERVED.width, [GREEDY, *SAMPLED] * 2)
    used = fused(settings, 132)
    expected = model.predict(*asked)
    fused(settings, 0)
    for _ in range(50):
        got = model.predict(*asked)
        assert torch.equal(got.codes_RG, expected.codes_RG)
        assert torch.equal(got.next_RD, expected.next_RD)
        assert torch.equal(used[-1].key_cache, used[0].key_cache)


@pytest.mark.gpu
@torch.inference_mode()
def test_a_captured_frame_can_be_replayed(fused: Any) -> None:
    """The counter of the barriers needs no reset between launches, and a graph of several frames has them in order."""
    model = predictor_of(SERVED, 2048, 16, torch.bfloat16)
    hidden_RD, code0_R, code0_RD, draw = frames_of(model, SERVED.width, SAMPLED)
    fused(SERVED_SETTINGS, 0)
    inputs = [torch.randn_like(hidden_RD) for _ in range(5)]
    expected = [model.predict(one, code0_R, code0_RD, draw) for one in inputs]
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        first = model.predict(hidden_RD, code0_R, code0_RD, draw)
        second = model.predict(hidden_RD, code0_R, code0_RD, draw)
    for _ in range(20):
        for one, wanted in zip(inputs, expected, strict=True):
            hidden_RD.copy_(one)
            graph.replay()
            assert torch.equal(first.codes_RG, wanted.codes_RG)
            assert torch.equal(second.codes_RG, wanted.codes_RG)


@pytest.mark.gpu
@torch.inference_mode()
def test_served_codes_are_nearly_those_of_the_layers(fused: Any) -> None:
    """In bfloat16 the layers round where other kernels do, so a code in a close call may differ, and those behind it."""
    model = predictor_of(SERVED, 2048, 4, torch.bfloat16)
    asked = frames_of(model, SERVED.width, [*SAMPLED] * 8)
    expected = model.predict(*asked)
    fused(SERVED_SETTINGS, 0)
    got = model.predict(*asked)
    assert (got.codes_RG[:, 1] == expected.codes_RG[:, 1]).float().mean() > 0.8
