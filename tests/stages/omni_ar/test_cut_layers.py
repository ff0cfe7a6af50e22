"""Layers whose weights are cut across ranks: a text model of each kind of layer, against the whole model of the same weights."""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from omni.checkpoint import Checkpoint, Cut, Destination, fill_dummy, load_module, stacked_destinations, stream
from omni.errors import CheckpointError
from omni.parallel import Communicator, SilentCommunicator
from omni_ar.attention import AttentionFeatures
from omni_ar.kernels.attention.features import alibi_slopes
from omni_ar.kernels.linear import linear
from omni_ar.kernels.moe import Experts, mix_experts
from omni_ar.kernels.norm import Delta, PartialSum, residual_sum
from omni_ar.layers import (
    Attention,
    DecoderConfig,
    FrameAttention,
    FrameLayers,
    GatedMLP,
    RMSNorm,
    SharedExpertMoE,
    SparseMoE,
)
from omni_ar.layers import linear as linear_layers
from omni_ar.layers import moe as moe_layers
from omni_ar.layers.linear import RowLinear
from omni_ar.layers.parallel import HeadShard, communicator, held_experts, partitioned, whole
from omni_ar.layers.text_model import TextModel
from omni_ar.layers.vocabulary import VocabEmbedding, VocabHead
from tests.stages.omni_ar.one_row import OneRow
from tests.support.published import randomize
from tests.support.ranks import on_ranks
from tests.support.tiers import SLOW, chosen, few

pytestmark = pytest.mark.thorough

TOKENS = 7
PLAIN = DecoderConfig(
    width=24,
    num_layers=2,
    num_heads=8,
    num_kv_heads=4,
    head_dim=8,
    mlp_width=40,
    max_positions=64,
    rope_theta=100.0,
    rms_norm_eps=1e-5,
)
ALL = replace(
    PLAIN,
    attention_bias=True,
    attention_sinks=True,
    num_experts=5,
    top_k=2,
    expert_width=12,
    shared_expert_width=20,
    dense_layers=(0,),
)
CONFIGS = {
    "plain": PLAIN,
    "all": ALL,
    "one kv head": replace(PLAIN, num_kv_heads=1),
    "two kv heads": replace(ALL, num_kv_heads=2),
    "a kv head each": replace(PLAIN, num_kv_heads=8),
    "three heads": replace(ALL, num_heads=3, num_kv_heads=3),
    "six kv heads": replace(PLAIN, num_heads=12, num_kv_heads=6),
    "odd widths": replace(ALL, mlp_width=37, expert_width=11),
    "an odd shared expert": replace(ALL, shared_expert_width=21),
}


def published_of(module: nn.Module) -> dict[str, Tensor]:
    """The weights of a whole module, as a checkpoint has them."""
    stacked, parameters = stacked_destinations(module), dict(module.named_parameters())
    weights = {name: parameters[place.parameter][place.index] for name, place in stacked.items()}
    kept = parameters.keys() - {place.parameter for place in stacked.values()}
    return {name: tensor.detach().clone() for name, tensor in weights.items()} | {
        name: parameters[name].detach() for name in kept
    }


def written(folder: Path, module: nn.Module) -> Checkpoint:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    save_file(published_of(randomize(module, seed=1)), folder / "model.safetensors")
    return Checkpoint(folder)


@torch.inference_mode()
def answer(model: TextModel) -> Tensor:
    """Logits of a prompt and two decodes."""
    ids_T = torch.randint(model.shape.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(2))
    row, given = OneRow(model), (TOKENS - 2, 1, 1)
    pieces = zip(model.embed_tokens(ids_T).split(given), torch.arange(TOKENS)[None].split(given, 1), strict=True)
    return torch.cat([row.run(x_TD.clone(), places_PT) for x_TD, places_PT in pieces])


def check(
    folder: Path,
    config: DecoderConfig,
    size: int,
    vocab_size: int = 50,
    *,
    tied: bool = False,
    expert_parallel: bool = False,
) -> list[TextModel]:
    """Compares ranks with the whole model. Returns the models of the ranks."""
    model = TextModel(config, vocab_size, tied=tied)
    checkpoint = written(folder, model)
    load_module(model, checkpoint)
    expected = answer(model)

    def work(ranks: Communicator) -> tuple[TextModel, Tensor]:
        with partitioned(ranks, expert_parallel=expert_parallel):
            part = TextModel(config, vocab_size, tied=tied)
            load_module(part, Checkpoint(checkpoint.path))
            return part, answer(part)

    models, answers = zip(*on_ranks(size, work), strict=True)
    for ours in answers:
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
        assert torch.equal(ours, answers[0])
    return list(models)


@pytest.mark.parametrize("size", few(1, [4, 2], SLOW))
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_ranks_equal_the_whole_model(config: DecoderConfig, size: int, tmp_path: Path) -> None:
    for model in check(tmp_path, config, size):
        heads, kv = config.num_heads, config.num_kv_heads
        cut = heads % size == 0 and (kv % size == 0 or size % kv == 0)
        attention = model.decoder.layers[0].self_attn
        assert isinstance(attention, Attention)
        assert attention.num_heads == (heads // size if cut else heads)
        assert attention.num_kv_heads == (max(kv // size, 1) if cut else kv)
        assert attention.o_proj.in_features == attention.num_heads * config.head_dim
        last = model.decoder.layers[1].mlp
        if isinstance(last, SharedExpertMoE):
            widths = (config.expert_width, config.shared_expert_width)
            share = 1 if any(width % size for width in widths) else size
            held = (last.experts_down.shape[2], last.shared_expert.down_proj.in_features)
            assert held == tuple(width // share for width in widths)


EIGHT = replace(ALL, num_experts=8, top_k=3)
EXPERTS = {
    "divided": EIGHT,
    "no shared expert": replace(EIGHT, shared_expert_width=0, dense_layers=()),
    "an odd width": replace(EIGHT, expert_width=11),
    "an odd shared expert": replace(EIGHT, shared_expert_width=21),
    "five experts": ALL,
    "five of an odd width": replace(ALL, expert_width=11),
    "one for each of four ranks": replace(EIGHT, num_experts=4, top_k=1),
}


@pytest.mark.parametrize("size", few(1, [4, 2], SLOW))
@pytest.mark.parametrize("config", EXPERTS.values(), ids=EXPERTS)
def test_ranks_divide_the_experts_of_a_mixture(config: DecoderConfig, size: int, tmp_path: Path) -> None:
    for rank, model in enumerate(check(tmp_path, config, size, expert_parallel=True)):
        mlp = model.decoder.layers[1].mlp
        assert isinstance(mlp, SparseMoE)
        shared, width = config.shared_expert_width, config.expert_width
        divided = config.num_experts % size == 0 and shared % size == 0
        by_width = not divided and width % size == 0 and shared % size == 0
        held = config.num_experts // size if divided else config.num_experts
        assert mlp.gate.out_features == config.num_experts
        assert mlp.experts_down.shape == (held, config.width, width // size if by_width else width)
        assert mlp.experts_gate_up.shape[0] == held
        assert mlp._held == range(rank * held, (rank + 1) * held) if divided else range(held)
        if isinstance(mlp, SharedExpertMoE):
            part = shared // size if divided or by_width else shared
            assert mlp.shared_expert.down_proj.in_features == part


def test_other_layers_are_cut_as_without_divided_experts(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    by_width, by_expert = check(tmp_path / "a", EIGHT, 2), check(tmp_path / "b", EIGHT, 2, expert_parallel=True)
    for one, other in zip(by_width, by_expert, strict=True):
        shapes, others = ({name: p.shape for name, p in model.named_parameters()} for model in (one, other))
        experts = {name for name in shapes if "experts_" in name}
        assert {name for name in shapes if shapes[name] != others[name]} == experts
        # The same memory, and the same numbers in another order.
        assert sum(p.numel() for p in one.parameters()) == sum(p.numel() for p in other.parameters())


@pytest.mark.parametrize(
    ("vocab_size", "tied"),
    chosen([(3, True), (5, False), (9, True), (50, False)], itertools.product((3, 5, 9, 50), (True, False))),
)
@pytest.mark.parametrize("size", few(1, [4, 2], SLOW))
def test_any_vocabulary_is_cut(size: int, vocab_size: int, tied: bool, tmp_path: Path) -> None:
    models = check(tmp_path, PLAIN, size, vocab_size, tied=tied)
    rows = -(-vocab_size // size)
    for rank, model in enumerate(models):
        assert model.embed_tokens.weight.shape == model.lm_head.weight.shape == (rows, PLAIN.width)
        assert (model.embed_tokens.weight is model.lm_head.weight) == tied
        filler = model.embed_tokens.weight[max(vocab_size - rank * rows, 0) :]
        assert not filler.any()
        assert model.shape.vocab_size == vocab_size


def test_embeddings_have_the_bits_of_the_table(tmp_path: Path) -> None:
    table_VD = torch.randn(11, 6)
    (tmp_path / "config.json").write_text("{}")
    save_file({"weight": table_VD}, tmp_path / "model.safetensors")
    ids = torch.tensor([[10, 0, 3], [4, 4, 7]])

    def work(ranks: Communicator) -> Tensor:
        embedding = VocabEmbedding(11, 6, ranks)
        load_module(embedding, Checkpoint(tmp_path))
        embedded: Tensor = embedding(ids)
        return embedded

    for embedded in on_ranks(4, work):
        assert torch.equal(embedded, table_VD[ids])


def test_slopes_are_cut_with_their_heads() -> None:
    features = AttentionFeatures(alibi_slopes=alibi_slopes(8))

    def work(ranks: Communicator) -> Tensor | None:
        with partitioned(ranks):
            return Attention(24, 8, 4, 8, qk_norm_eps=None, features=features).features.alibi_slopes

    parts = [part for part in on_ranks(4, work) if part is not None]
    assert torch.equal(torch.cat(parts), alibi_slopes(8))
    assert [len(part) for part in parts] == [2] * 4


@pytest.mark.parametrize("tokens", [1, 5, 40])
@pytest.mark.parametrize("expert_parallel", [False, True])
@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (GatedMLP, (24, 16)),
        (SparseMoE, (24, 16, 5, 2, True)),
        (SparseMoE, (24, 16, 6, 2, False)),
        (SharedExpertMoE, (24, 16, 5, 2, True, 8)),
        (SharedExpertMoE, (24, 16, 6, 2, True, 8)),
        # Rows that are not a multiple of 16 bytes go through every held expert (`run_every_expert`).
        (SharedExpertMoE, (23, 15, 6, 4, False, 8)),
    ],
)
def test_feed_forwards_alone_and_with_their_norm(
    kind: type[nn.Module], sizes: tuple[int, ...], expert_parallel: bool, tokens: int, tmp_path: Path
) -> None:
    mlp: Any = kind(*sizes)
    width, checkpoint = sizes[0], written(tmp_path, mlp)
    x_TD, norm = torch.randn(tokens, width), RMSNorm(width, 1e-5).requires_grad_(False)
    expected = (mlp(x_TD), *mlp.fused_mlp(norm, x_TD, x_TD * 2))

    def work(ranks: Communicator) -> tuple[Tensor, ...]:
        with partitioned(ranks, expert_parallel=expert_parallel):
            part: Any = kind(*sizes)
        load_module(part, Checkpoint(checkpoint.path))
        y_TD, sum_TD = part.fused_mlp(norm, x_TD, x_TD * 2)
        # Added up where the next layer would, or whole.
        return part(x_TD), residual_sum(torch.zeros_like(x_TD), y_TD), sum_TD

    for ours in on_ranks(2, work):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_layers_of_code_groups_are_whole_and_others_follow_the_partition() -> None:
    def work(ranks: Communicator) -> None:
        with partitioned(ranks):
            frame = FrameLayers(PLAIN)
            with whole():
                assert communicator() is None
                apart = GatedMLP(24, 40)
            assert communicator() is ranks
            cut = GatedMLP(24, 40)
        assert communicator() is None
        assert not any(isinstance(module, RowLinear) for module in (*frame.modules(), *apart.modules()))
        kv_heads = [module.num_kv_heads for module in frame.modules() if isinstance(module, FrameAttention)]
        assert kv_heads == [PLAIN.num_kv_heads] * PLAIN.num_layers
        assert isinstance(cut.down_proj, RowLinear)

    on_ranks(2, work)


def test_layers_that_are_built_whole_hold_all_experts() -> None:
    def work(ranks: Communicator) -> None:
        with partitioned(ranks, expert_parallel=True):
            with whole():
                assert SparseMoE(24, 16, 6, 2, True).experts_down.shape[0] == 6
            assert SparseMoE(24, 16, 6, 2, True).experts_down.shape[0] == 3
        with partitioned(ranks):
            assert SparseMoE(24, 16, 6, 2, True).experts_down.shape[0] == 6

    on_ranks(2, work)


def test_a_rank_reads_the_bytes_of_its_experts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    width, inner, experts = 24, 16, 6
    checkpoint = written(tmp_path, SparseMoE(width, inner, experts, 2, True))
    read: list[int] = []
    real = stream._read

    def counted(extent: Any, slot: Any) -> None:
        read.append(extent.stop - extent.start)
        real(extent, slot)

    monkeypatch.setattr(stream, "_read", counted)
    with partitioned(SilentCommunicator(1, 3), expert_parallel=True):
        load_module(SparseMoE(width, inner, experts, 2, True), checkpoint)
    assert sum(read) == 4 * (experts * width + experts // 3 * 3 * inner * width)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda weights: weights.pop("experts.4.up_proj.weight"), "missing"),
        (lambda weights: weights.pop("experts.1.down_proj.weight"), "missing"),
        (
            lambda weights: weights.update({"experts.6.up_proj.weight": torch.zeros(16, 24)}),
            r"^experts\.6\.up_proj\.weight: is unexpected",
        ),
        (
            lambda weights: weights.update({"experts.5.down_proj.weight": torch.zeros(24, 15)}),
            r"^experts\.5\.down_proj\.weight: wrong tensor shape: expected \(24, 16\), found \(24, 15\)",
        ),
        (
            lambda weights: weights.update({"experts.0.gate_proj.weight": torch.zeros(15, 24)}),
            r"^experts\.0\.gate_proj\.weight: wrong tensor shape: expected \(16, 24\), found \(15, 24\)",
        ),
    ],
)
def test_errors_of_weights_are_those_of_a_whole_mixture(
    rank: int, change: Callable[[dict[str, Tensor]], object], text: str, tmp_path: Path
) -> None:
    """Except that a missing one is an error of the rank that holds it, and of no other."""
    written(tmp_path, SparseMoE(24, 16, 6, 2, True))
    weights = load_file(tmp_path / "model.safetensors")
    before = set(weights)
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    with partitioned(SilentCommunicator(rank, 2), expert_parallel=True):
        part = SparseMoE(24, 16, 6, 2, True)
    if text != "missing":
        with pytest.raises(CheckpointError, match=text):
            load_module(part, Checkpoint(tmp_path))
        return
    (missing,) = before - set(weights)
    if int(missing.split(".")[1]) // 3 != rank:
        load_module(part, Checkpoint(tmp_path))
        return
    with pytest.raises(CheckpointError, match=f"no weights for 1 parameters of the model: {missing} "):
        load_module(part, Checkpoint(tmp_path))


def test_random_experts_differ_between_ranks_and_routers_do_not() -> None:
    parts = []
    for rank in (0, 1):
        with partitioned(SilentCommunicator(rank, 2), expert_parallel=True):
            parts.append(SharedExpertMoE(24, 16, 6, 2, True, 8).requires_grad_(False))
        fill_dummy(parts[-1], seed=3)
    first, second = (dict(part.named_parameters()) for part in parts)
    differ = {name for name in first if not torch.equal(first[name], second[name])}
    shared = {"shared_expert.gate_up_proj.weight", "shared_expert.down_proj.weight"}
    assert differ == {"experts_gate_up", "experts_down"} | shared


def test_a_partition_of_one_rank_is_the_whole_model(tmp_path: Path) -> None:
    (model,) = check(tmp_path, ALL, 1)
    assert model.shape.num_kv_heads == ALL.num_kv_heads


# Faults that the comparison above must detect.


def no_sum(self: RowLinear, x_TD: Tensor) -> Tensor:
    return linear(x_TD, self.weight, self.bias if self._communicator.rank == 0 else None)


def bias_of_each_rank(self: RowLinear, x_TD: Tensor) -> Delta:
    return PartialSum(linear(x_TD, self.weight, self.bias), self._communicator)


def no_bias(self: RowLinear, x_TD: Tensor) -> Delta:
    return PartialSum(linear(x_TD, self.weight), self._communicator)


def other_columns(size: int, dim: int) -> Cut | None:
    ranks = communicator()
    if ranks is None or size % ranks.size:
        return None
    share, rank = size // ranks.size, (ranks.rank + dim) % ranks.size
    return Cut(dim, rank * share, (rank + 1) * share, size)


def first_kv_heads(self: HeadShard, dim: int, head_dim: int) -> Cut:
    return Cut(dim, 0, self.num_kv_heads * head_dim, self.all_kv_heads * head_dim)


def first_sinks(self: HeadShard, dim: int, head_dim: int = 1) -> Cut:
    first = self.first_head if head_dim > 1 else 0
    return Cut(dim, first * head_dim, (first + self.num_heads) * head_dim, self.all_heads * head_dim)


def ids_of_every_rank(self: VocabEmbedding, ids: Tensor) -> Tensor:
    local = (ids - self._rows.start).clamp(0, self._rows.length - 1)
    return self._communicator.all_reduce(nn.functional.embedding(local, self.weight))


def own_logits(self: VocabHead, x_RD: Tensor) -> Tensor:
    return linear(x_RD, self.weight).repeat(1, self._communicator.size)[:, : self.out_features]


def experts_without_a_sum(self: SparseMoE, *inputs: Any) -> tuple[Delta, Tensor]:
    y_TD, x_TD = FUSED_MLP(self, *inputs)
    return (y_TD.part if isinstance(y_TD, PartialSum) else y_TD), x_TD


def weights_over_held_experts(x_TD: Tensor, delta_TD: Tensor | None, norm: Any, experts: Experts) -> Any:
    held = experts.router_ED[experts.first : experts.first + experts.num_held]
    return mix_experts(x_TD, delta_TD, norm, experts._replace(router_ED=held, first=0))


def shared_expert_of_each_rank(x_TD: Tensor, delta_TD: Tensor | None, norm: Any, experts: Experts) -> Any:
    y_TD, sum_TD = mix_experts(x_TD, delta_TD, norm, experts)
    if experts.num_held == experts.num_experts:  # the whole model, which the ranks are compared with
        return y_TD, sum_TD
    alone = experts._replace(gate_up_EXD=experts.gate_up_EXD * 0)
    return y_TD + mix_experts(x_TD, delta_TD, norm, alone)[0], sum_TD


def first_experts(x_TD: Tensor, delta_TD: Tensor | None, norm: Any, experts: Experts) -> Any:
    return mix_experts(x_TD, delta_TD, norm, experts._replace(first=0))


def experts_of_the_first_rank(num_experts: int) -> range | None:
    held = HELD(num_experts)
    return range(len(held)) if held is not None else None


def loaded_at_a_wrong_offset(self: SparseMoE, name: str) -> dict[str, Destination]:
    places = STACKED(self, name)
    held = len(self._held)
    if held == self.gate.out_features:
        return STACKED(self, name)
    return {
        name: dataclasses.replace(place, index=((place.index[0] + 1) % held, *place.index[1:]))  # type: ignore[operator]
        if not place.empty
        else place
        for name, place in places.items()
    }


HELD, STACKED = held_experts, SparseMoE.stacked_weights
FUSED_MLP = SparseMoE.fused_mlp
FAULTS: list[tuple[Any, str, Callable[..., Any]]] = [
    (RowLinear, "in_parts", no_sum),
    (RowLinear, "in_parts", bias_of_each_rank),
    (RowLinear, "in_parts", no_bias),
    (linear_layers, "width_cut", other_columns),
    (HeadShard, "kv_heads_cut", first_kv_heads),
    (HeadShard, "heads_cut", first_sinks),
    (VocabEmbedding, "forward", ids_of_every_rank),
    (VocabHead, "forward", own_logits),
    (SparseMoE, "fused_mlp", experts_without_a_sum),
]


@pytest.mark.parametrize(("owner", "name", "fault"), FAULTS, ids=[fault.__name__ for _, _, fault in FAULTS])
def test_a_planted_fault_is_seen(
    owner: Any, name: str, fault: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(AssertionError, match="not close"):
        check(tmp_path, ALL, 2)


EXPERT_FAULTS: list[tuple[Any, str, Callable[..., Any]]] = [
    (moe_layers, "mix_experts", weights_over_held_experts),
    (moe_layers, "mix_experts", shared_expert_of_each_rank),
    (moe_layers, "mix_experts", first_experts),
    (moe_layers, "held_experts", experts_of_the_first_rank),
    (SparseMoE, "stacked_weights", loaded_at_a_wrong_offset),
    (SparseMoE, "fused_mlp", experts_without_a_sum),
]


@pytest.mark.parametrize(
    ("owner", "name", "fault"), EXPERT_FAULTS, ids=[fault.__name__ for _, _, fault in EXPERT_FAULTS]
)
def test_a_planted_fault_of_divided_experts_is_seen(
    owner: Any, name: str, fault: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TextModel(EIGHT, 50, tied=False)
    written(tmp_path, model)
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(AssertionError, match="not close"):
        check(tmp_path, EIGHT, 2, expert_parallel=True)
