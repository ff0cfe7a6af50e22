"""A decode step built of these blocks reads nothing back from the device, and a GPU computes the results of the CPU."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from omni_ar.attention import (
    AttentionFeatures,
    AttentionMetadata,
    KVCache,
    PrefillRow,
    TorchPagedAttention,
    alibi_slopes,
)
from omni_ar.kernels.sampling.state import EVERYTHING, NEVER, SamplingState
from omni_ar.kernels.step.reference import observe
from omni_ar.layers import Attention, DecoderLayer, RotaryEmbedding, SharedExpertMoE
from omni_ar.sampling.edits import EditParts
from omni_ar.sampling.rng import gumbel, open_uniform, philox4x32
from omni_ar.sampling.sampler import sample, top_logprobs
from tests.support.devices import no_synchronization

WIDTH, HEADS, KV_HEADS, HEAD_DIM, VOCAB, ROWS, BLOCK = 32, 4, 2, 16, 50, 3, 4
GPU = pytest.param("cuda", marks=pytest.mark.gpu)

# Operators whose result, or its shape, must reach the host before the next one can be launched.
ASKING = {"_local_scalar_dense", "nonzero", "masked_select", "bincount", "equal", "is_nonzero", "item", "_unique2"}


class AsksTheDevice(AssertionError):
    pass


class Guard(TorchDispatchMode):
    """Refuses operators that synchronize on a GPU, so that the CPU shows them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else []
        masked = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)
        if name in ASKING or masked:
            raise AsksTheDevice(name)
        return func(*args, **(kwargs or {}))


def guard(device):
    return Guard() if device == "cpu" else no_synchronization()


class Step:
    """A layer with its cache and sampling state on a device; `run` is one decode step, or a mixed one."""

    def __init__(self, device, dtype, width=WIDTH, **special):
        self.device = device
        generator = torch.Generator().manual_seed(0)
        sizes = (width, HEADS, KV_HEADS, HEAD_DIM)
        attention = Attention(*sizes, qk_norm_eps=1e-6, layer=0, dtype=dtype, **special)
        moe = SharedExpertMoE(width, 16, 6, 2, True, 24, dtype=dtype)
        self.layer = DecoderLayer(attention, moe, width=width, norm_eps=1e-6, dtype=dtype).requires_grad_(False)
        for parameter in self.layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        self.layer.to(device)
        self.rotary = RotaryEmbedding(HEAD_DIM, 1e4, (4, 2, 2))
        random = lambda shape, dtype: torch.randn(shape, generator=generator).to(device, dtype)  # noqa: E731
        self.cache = KVCache.allocate(random, 1, 12, BLOCK, KV_HEADS, HEAD_DIM, dtype)
        self.state = SamplingState.allocate(lambda s, dtype: torch.zeros(s, dtype=dtype, device=device), ROWS, VOCAB)
        for name, values in {
            "temperature": [0.0, 0.8, 1.2], "top_k": [0, 20, 0], "top_p": [1.0, 0.9, 0.8], "min_p": [0.0, 0.1, 0.2],
            "repetition_penalty": [1.1, 1.0, 1.3], "frequency_penalty": [0.5, 0.0, -0.5], "presence_penalty": [0.0, 0.1, 0.2],
            "seed": [1, 2, 3], "min_tokens": [9, 0, 9],
        }.items():  # fmt: skip
            getattr(self.state, name).copy_(torch.tensor(values))
        self.state.seen[:, ::3] = True
        self.state.forbidden[:, 1::7] = True
        self.state.counts[:, ::5] = 2
        self.state.bad_words.fill_(NEVER)
        self.x_TD = random((ROWS + 5, width), dtype)
        self.logits_RV = random((ROWS, VOCAB), torch.float32) * 3
        table = torch.tensor([[1, 2], [3, 4], [5, 6]], device=device)
        slots = [5, 14, 0, *range(28, 33)]
        self.meta = {
            "decode": AttentionMetadata(self._integers(slots[:3]), ROWS, table, self._integers([2, 7, 0]), 8),
            "mixed": AttentionMetadata(
                self._integers(slots),
                ROWS,
                table,
                self._integers([2, 7, 0]),
                8,
                (PrefillRow(3, 5, 0, self._integers([7, 8])),),
            ),
        }
        self.rows_R, self.position_R = self._integers(range(ROWS)), self._integers([4, 5, 6])
        masks_1W = torch.full((1, 1), -2, device=device)
        bias_1 = torch.ones(1, dtype=torch.float64, device=device).view(torch.int64)
        self.edits = EditParts(self._integers([1]), masks_1W, self._integers([2]), self._integers([3]), bias_1)
        self.positions_PT = self._integers(range(3 * (ROWS + 5))).view(3, -1)

    def _integers(self, values):
        return torch.tensor(list(values), dtype=torch.int64, device=self.device)

    def run(self, kind):
        tokens = self.meta[kind].slots_T.shape[0]
        x_TD = self.x_TD[:tokens]
        cos, sin = self.rotary(self.positions_PT[:, :tokens], x_TD.dtype)
        parts = self.layer(x_TD, None, cos, sin, self.cache, self.meta[kind], TorchPagedAttention())
        ids_R = sample(self.logits_RV, self.state, self.rows_R, self.position_R, EVERYTHING, self.edits)
        observe(self.state, self.rows_R, ids_R[:, None], torch.zeros_like(ids_R), EVERYTHING)
        top_logprobs(self.logits_RV, ids_R, 3)
        return sum(parts), ids_R


# Width 12 is not a multiple of 16 bytes in bf16, so experts run without grouped_mm.
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("kind", ["decode", "mixed"])
@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, WIDTH), (torch.bfloat16, WIDTH), (torch.bfloat16, 12)])
def test_a_step_does_not_synchronize(device, kind, dtype, width):
    step = Step(device, dtype, width)
    warm, _ = step.run(kind)  # the rotary tables move on first use
    with guard(device):
        hidden, _ = step.run(kind)
    assert torch.equal(hidden, warm)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("kind", ["decode", "mixed"])
def test_attention_with_features_does_not_synchronize(device, kind):
    features = AttentionFeatures(scale=0.5, softcap=9.0, window=3, alibi_slopes=alibi_slopes(HEADS, device))
    step, plain = Step(device, torch.float32, features=features, sinks=True), Step(device, torch.float32)
    warm, _ = step.run(kind)
    with guard(device):
        hidden, _ = step.run(kind)
    assert torch.equal(hidden, warm)
    assert not torch.equal(hidden, plain.run(kind)[0])


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("ask", [lambda x: x[x > 0], lambda x: x.sum().item(), lambda x: x.nonzero()])
def test_the_guard_refuses_operations_that_synchronize(device, ask):
    x = torch.arange(3, device=device)
    refused = AsksTheDevice if device == "cpu" else RuntimeError
    with guard(device), pytest.raises(refused):
        ask(x)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["decode", "mixed"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)])
def test_gpu_results_equal_cpu_results(kind, dtype, tolerance):
    (here, ids), (there, ids_there) = (Step(device, dtype).run(kind) for device in ("cpu", "cuda"))
    here, there = here.double(), there.cpu().double()
    assert (here - there).norm() / here.norm() < tolerance
    assert torch.equal(ids, ids_there.cpu())


@pytest.mark.gpu
def test_random_bits_are_the_same_on_a_gpu():
    words = torch.randint(0, 2**32, (6, 10_000), generator=torch.Generator().manual_seed(1))
    here = philox4x32(tuple(words[:4]), tuple(words[4:]))
    there = philox4x32(tuple(words[:4].cuda()), tuple(words[4:].cuda()))
    for mine, theirs in zip(here, there, strict=True):
        assert torch.equal(mine, theirs.cpu())
        assert torch.equal(open_uniform(mine), open_uniform(theirs).cpu())
    seeds, zeros = torch.arange(4) - 2, torch.zeros(4, dtype=torch.int64)
    noise = gumbel(seeds, zeros, zeros, 0, 0, 5000)
    torch.testing.assert_close(gumbel(seeds.cuda(), zeros.cuda(), zeros.cuda(), 0, 0, 5000).cpu(), noise)
