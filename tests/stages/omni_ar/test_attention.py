"""The plain backend against brute-force attention in float64, over random block tables; the arguments that other backends pass to
the libraries they adapt, and the choice of a stage's backend.

Fakes replace the libraries: each fake has the documented signature, and computes the result with plain torch, so a
wrong table, length or layout gives a wrong result.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from omni.device import open_device
from omni.device.cpu import CpuDevice
from omni.device.kernel_choice import plain_torch
from omni.device.meta import MetaDevice
from omni.errors import ConfigError
from omni_ar.attention import AttentionFeatures, TorchPagedAttention, TritonPagedAttention, alibi_slopes
from omni_ar.attention.flash_attention import FlashAttention
from omni_ar.attention.flashinfer import FlashInferAttention
from omni_ar.attention.select import select_backend
from omni_ar.kernels.attention.reference import prefill_attention
from omni_ar.model import ArShape
from tests.stages.omni_ar.paged_rows import LAYER, PLAIN, PagedRows, mixed_batch

BACKEND = TorchPagedAttention()


def run(world, decode_lengths, prefills, features=PLAIN, **kwargs):
    """Returns (ours, dense)."""
    q, meta, expected = mixed_batch(world, decode_lengths, prefills, features=features, **kwargs)
    return BACKEND.attend(q, world.cache, LAYER, meta, features), expected


def check(results, tolerance=1e-5):
    ours, expected = results
    torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=40)
@given(
    st.integers(0, 2**31),
    st.lists(st.integers(0, 14), max_size=4),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 7)), max_size=3),
    st.sampled_from([(1, 1), (1, 4), (2, 1), (2, 3)]),
    st.sampled_from([1, 3, 4]),
    st.integers(0, 3),
    st.none() | st.tuples(st.integers(0, 2), st.integers(0, 9)),
)
def test_mixed_batches_give_exact_attention(seed, decode_lengths, prefills, heads, block_size, spare_columns, spare):
    if not decode_lengths and not prefills:
        decode_lengths = [1]
    world = PagedRows(seed, kv_heads=heads[0], group=heads[1], block_size=block_size, blocks=128)
    check(run(world, decode_lengths, prefills, spare_columns=spare_columns, spare=spare))


BATCHES = [([], [(0, 5)]), ([3, 9], []), ([1, 0, 8], [(4, 3), (0, 1), (7, 6)])]
FEATURES = ["scale", "softcap", "alibi_slopes", "window", "sinks"]


@settings(max_examples=60)
@given(
    st.integers(0, 2**31),
    st.sets(st.sampled_from(FEATURES), min_size=1),
    st.integers(1, 20),
    st.lists(st.integers(0, 14), max_size=3),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 7)), max_size=2),
    st.sampled_from([(1, 4), (2, 1), (2, 3)]),
    st.sampled_from([1, 3, 4]),
    st.none() | st.tuples(st.integers(0, 2), st.integers(0, 9)),
)
def test_features_of_layers(seed, names, window, decode_lengths, prefills, heads, block_size, spare):
    if not decode_lengths and not prefills:
        decode_lengths = [9]
    world = PagedRows(seed, kv_heads=heads[0], group=heads[1], block_size=block_size, blocks=128)
    features = world.features(" ".join(sorted(names)), window)
    check(run(world, decode_lengths, prefills, features, spare_columns=seed % 3, spare=spare))


@pytest.mark.parametrize("name", FEATURES)
def test_each_feature_alone(name):
    for decodes, prefills in BATCHES:
        world = PagedRows(4)
        check(run(world, decodes, prefills, world.features(name)))


def test_decode_rows_do_not_read_tokens_outside_the_window():
    world = PagedRows(3)
    check(run(world, [0, 5, 13], [], AttentionFeatures(window=6), poison=world.poison))


def test_a_window_or_softcap_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="window is 0"):
        AttentionFeatures(window=0)
    with pytest.raises(ValueError, match="softcap is -1"):
        AttentionFeatures(softcap=-1.0)


@pytest.mark.parametrize("heads", [1, 4, 6, 8, 40])
def test_slopes_of_alibi_are_those_of_transformers(heads):
    alibi = build_alibi_tensor(torch.ones(1, 2, dtype=torch.int64), heads, torch.float32)
    torch.testing.assert_close(alibi_slopes(heads), alibi[:, 0, 1])


def test_nothing_beyond_a_rows_length_reaches_it():
    world = PagedRows(3)
    check(run(world, [1, 5, 10], [(3, 6), (0, 2)], spare_columns=2, poison=world.poison))
    check(run(PagedRows(3), [1, 5], [(3, 6)], spare_columns=2, spare=(2, 5), poison=world.poison))


def test_layers_do_not_mix_and_null_slots_may_repeat():
    world = PagedRows(5)
    before = world.cache.key.clone()
    kv = world.random(2, 3, world.kv_heads, world.head_dim)
    world.cache.write(LAYER, kv[0], kv[1], torch.tensor([0, 9, 0]))
    assert (world.cache.key != before).flatten(3).any(-1).nonzero().tolist() == [[LAYER, 0, 0], [LAYER, 2, 1]]
    assert torch.equal(world.cache.key[LAYER, 2, 1], kv[0, 1])
    assert torch.equal(world.cache.value[LAYER, 2, 1], kv[1, 1])


def test_attention_in_bf16_rounds_only():
    world = PagedRows(6, dtype=torch.bfloat16)
    ours, expected = run(world, [1, 9], [(4, 5), (0, 3)])
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.double(), expected, rtol=0.02, atol=0.02)


def install(monkeypatch, name, **members):
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


def attend_last(q_QHD, key, value, table, length, features=PLAIN):
    """The last Q tokens of a row of `length`."""
    if not length:
        return torch.zeros_like(q_QHD)
    return prefill_attention(q_QHD, key, value, table.long(), int(length) - len(q_QHD), features)


def flash_attn_with_kvcache(
    q, k_cache, v_cache, *, cache_seqlens, causal, page_table, softmax_scale=None, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None,
):  # fmt: skip
    assert causal
    assert window_size[1] == (0 if window_size[0] >= 0 else -1)
    features = AttentionFeatures(
        scale=softmax_scale,
        softcap=softcap or None,
        alibi_slopes=alibi_slopes,
        window=window_size[0] + 1 if window_size[0] >= 0 else None,
    )
    assert (cache_seqlens.dtype, page_table.dtype) == (torch.int32, torch.int32)
    assert len(q) == len(cache_seqlens) == len(page_table)
    rows = zip(q, page_table, cache_seqlens, strict=True)
    return torch.stack([attend_last(row_q, k_cache, v_cache, table, length, features) for row_q, table, length in rows])


class BatchPrefillWithPagedKVCacheWrapper:
    plans = 0

    def __init__(self, float_workspace_buffer, kv_layout):
        assert (float_workspace_buffer.dtype, kv_layout) == (torch.uint8, "NHD")

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim,
        page_size, *, causal, q_data_type, kv_data_type,
    ):  # fmt: skip
        assert causal
        assert q_data_type == kv_data_type
        assert {t.dtype for t in (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)} == {
            torch.int32
        }
        self.heads, self.page_size = (num_qo_heads, num_kv_heads, head_dim), page_size
        self.starts, self.pages = qo_indptr.tolist(), paged_kv_indptr.tolist()
        self.indices, self.last = paged_kv_indices, paged_kv_last_page_len.tolist()
        type(self).plans += 1

    def run(self, q, paged_kv_cache, out):
        key, value = paged_kv_cache
        assert (q.shape[1], *key.shape[2:]) == self.heads
        assert self.starts[-1] == len(q)
        for row, last in enumerate(self.last):
            assert 1 <= last <= self.page_size
            tokens = slice(self.starts[row], self.starts[row + 1])
            table = self.indices[self.pages[row] : self.pages[row + 1]]
            out[tokens] = attend_last(q[tokens], key, value, table, (len(table) - 1) * self.page_size + last)


def check_backend(backend, decodes, prefills, names=""):
    world = PagedRows(1)
    features = world.features(names)
    q, meta, expected = mixed_batch(world, decodes, prefills, spare_columns=1, features=features)
    for _ in range(2):
        ours = backend.attend(q, world.cache, LAYER, meta, features)
        torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("decodes", "prefills"), BATCHES)
def test_flash_attention_3(monkeypatch, decodes, prefills):
    install(monkeypatch, "flash_attn_interface", flash_attn_with_kvcache=flash_attn_with_kvcache)
    check_backend(FlashAttention(), decodes, prefills)


def test_flash_attention_2_has_another_name_for_the_page_table(monkeypatch):
    def version_2(*args, block_table, **kwargs):
        return flash_attn_with_kvcache(*args, page_table=block_table, **kwargs)

    install(monkeypatch, "flash_attn", flash_attn_with_kvcache=version_2)
    check_backend(FlashAttention(), *BATCHES[-1])


@pytest.mark.parametrize("names", ["window", "softcap scale", "alibi_slopes"])
def test_flash_attention_2_takes_features_of_layers(monkeypatch, names):
    def version_2(*args, block_table, **kwargs):
        return flash_attn_with_kvcache(*args, page_table=block_table, **kwargs)

    install(monkeypatch, "flash_attn", flash_attn_with_kvcache=version_2)
    check_backend(FlashAttention(), *BATCHES[-1], names)


@pytest.mark.parametrize(
    ("name", "module", "names", "said"),
    [
        ("flash_attention", "flash_attn", "sinks window", 'FlashAttention 2 has no sinks.*use "triton"'),
        ("flash_attention", "flash_attn_interface", "sinks alibi_slopes", "3 has no alibi_slopes and no sinks"),
        ("flashinfer", "flashinfer", "window softcap", "FlashInfer is used without softcap and without window"),
    ],
)
def test_attention_features_that_a_library_lacks_are_refused_by_name(monkeypatch, name, module, names, said):
    members = {
        "flash_attn_with_kvcache": flash_attn_with_kvcache,
        "BatchPrefillWithPagedKVCacheWrapper": BatchPrefillWithPagedKVCacheWrapper,
    }
    install(monkeypatch, module, **members)
    backend = select(name, NoGpu(), block_size=256)
    with pytest.raises(ConfigError, match=said) as refused:
        check_backend(backend, *BATCHES[-1], names)
    assert refused.value.field == "talker.attention_backend"


@pytest.mark.parametrize(("decodes", "prefills"), BATCHES)
def test_flashinfer_plans_once_for_all_layers(monkeypatch, decodes, prefills):
    class Wrapper(BatchPrefillWithPagedKVCacheWrapper):
        plans = 0

    install(monkeypatch, "flashinfer", BatchPrefillWithPagedKVCacheWrapper=Wrapper)
    check_backend(FlashInferAttention(CpuDevice()), decodes, prefills)
    assert Wrapper.plans == bool(prefills)


@pytest.mark.parametrize(("decodes", "prefills"), BATCHES)
def test_triton_takes_the_reference_on_the_cpu(decodes, prefills):
    check_backend(TritonPagedAttention(CpuDevice()), decodes, prefills)
    check_backend(TritonPagedAttention(CpuDevice()), decodes, prefills, " ".join(FEATURES))


def select(name, device, dtype=torch.bfloat16, block_size=16, head_dim=64):
    shape = ArShape(num_layers=1, num_kv_heads=2, head_dim=head_dim, hidden_width=128, vocab_size=10, max_positions=64)
    return select_backend("talker", name, device, shape=shape, dtype=dtype, block_size=block_size)


@pytest.mark.parametrize(
    ("name", "device"),
    [("auto", CpuDevice()), ("torch", CpuDevice()), ("auto", MetaDevice()), ("triton", MetaDevice())],
)
def test_plain_torch_serves_other_devices(name, device):
    assert isinstance(select(name, device), TorchPagedAttention)


class NoGpu(CpuDevice):
    """Its type is that of a GPU: enough for a refusal."""

    def __init__(self):
        super().__init__()
        self.torch_device = torch.device("cuda")

    def zeros(self, shape, dtype):
        return torch.zeros(shape, dtype=dtype)


def test_triton_on_another_device_is_refused():
    with pytest.raises(ConfigError, match="'triton' runs on CUDA devices alone"):
        select("triton", CpuDevice())


@pytest.mark.parametrize(
    ("name", "module", "stage", "said"),
    [
        ("flash_attention", None, {}, "not installed; install flash-attn"),
        ("flashinfer", None, {}, "not installed; install flashinfer-python"),
        ("flash_attention", "flash_attn", {"block_size": 16}, "multiple of 256 tokens, not of 16"),
        ("flash_attention", "flash_attn_interface", {"dtype": torch.float32}, "does not compute in torch.float32"),
        ("flash_attention", "flash_attn_interface", {"head_dim": 320}, "no head dimension 320"),
        ("flashinfer", "flashinfer", {"dtype": torch.float32}, "does not compute in torch.float32"),
        ("flashinfer", "flashinfer", {"head_dim": 80}, "no head dimension 80"),
    ],
)
def test_a_library_refuses_stages_it_cannot_serve(monkeypatch, name, module, stage, said):
    if module is not None:
        install(monkeypatch, module)
    with pytest.raises(ConfigError, match=said) as refused:
        select(name, NoGpu(), **stage)
    assert refused.value.field == "talker.attention_backend"


@pytest.mark.gpu
def test_triton_serves_a_gpu_and_the_reference_plain_torch():
    backend = select("auto", open_device("cuda:0"))
    assert isinstance(backend, TritonPagedAttention)
    world = PagedRows(1, head_dim=64, block_size=16, device="cuda")
    q, meta, expected = mixed_batch(world, [70, 0], [(20, 30), (0, 5)], spare_columns=1)
    with plain_torch():
        plain = backend.attend(q, world.cache, LAYER, meta)
    torch.testing.assert_close(plain.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(backend.attend(q, world.cache, LAYER, meta), plain, rtol=1e-5, atol=1e-5)
