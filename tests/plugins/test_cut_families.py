"""Models of each family whose weights are cut across ranks, against the whole model of the same checkpoint."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import omni_csm.pipeline
import omni_qwen2_5_omni.pipeline
import omni_qwen2_5_omni.tiny
import omni_qwen3_omni.pipeline
import omni_text.pipeline
from omni.api.settings import layers_of
from omni.checkpoint import Checkpoint, Cut, stacked_destinations, stream
from omni.cli import app
from omni.device import Device, open_device
from omni.device.meta import MetaDevice
from omni.engine import EngineOptions, check_shapes, resolve_pipeline
from omni.errors import ConfigError
from omni.parallel import Communicator, EqualRanks, RankLayout, SilentCommunicator, silent_ranks
from omni.pipeline import Pipeline
from omni.plugin.manager import load_plugins
from omni.stage import StageContext, build_model, module_bytes
from omni_ar.kind import build_rank_model
from omni_ar.layers import GatedMLP, SparseMoE
from omni_ar.layers.parallel import partitioned
from omni_ar.layers.text_model import TextModel
from omni_ar.model import ArModel, ArShape, CodecModel, PromptTokens
from omni_text.config import read_config
from tests.stages.omni_ar.one_row import OneRow
from tests.support.csm_reference import tiny_csm
from tests.support.ranks import on_ranks
from tests.support.reference import temporary_folder, tiny_checkpoint
from tests.support.tiers import SLOW, few
from tests.support.tiny_text import write_text_model

pytestmark = pytest.mark.thorough

TOKENS = 9
KINDS = ("tied", "untied", "moe", "window")


@dataclass(frozen=True, slots=True)
class Case:
    """A stage of a tiny checkpoint."""

    folder: Callable[[], Path]
    pipeline: Callable[[Checkpoint], Pipeline]
    stage: str

    def context(self, load_format: str = "auto") -> StageContext:
        checkpoint = Checkpoint(self.folder())
        stage = self.pipeline(checkpoint).stage(self.stage)
        return StageContext(
            stage=stage,
            options=stage.options,
            checkpoint=checkpoint,
            device=open_device("cpu"),
            dtype=torch.float32,
            load_format=load_format,
        )

    def build(
        self, communicator: Communicator | None, load_format: str = "auto", *, expert_parallel: bool = False
    ) -> ArModel:
        with partitioned(communicator, expert_parallel=expert_parallel):
            return build_model(self.context(load_format), ArModel)  # type: ignore[type-abstract]


@cache
def text_folder(kind: str) -> Path:
    folder = temporary_folder()
    write_text_model(folder, kind)
    return folder


@cache
def qwen2_5_folder() -> Path:
    folder = temporary_folder()
    omni_qwen2_5_omni.tiny.write_tiny(folder, heads=4, kv_heads=2)
    return folder


def qwen3_folder() -> Path:
    return tiny_checkpoint(heads=4, kv_heads=2)


CASES = {
    **{f"text {kind}": Case(partial(text_folder, kind), omni_text.pipeline.pipeline, "text") for kind in KINDS},
    "omni 3 thinker": Case(qwen3_folder, omni_qwen3_omni.pipeline.pipeline, "thinker"),
    "omni 3 talker": Case(qwen3_folder, omni_qwen3_omni.pipeline.pipeline, "talker"),
    "omni 2.5 thinker": Case(qwen2_5_folder, omni_qwen2_5_omni.pipeline.pipeline, "thinker"),
    "omni 2.5 talker": Case(qwen2_5_folder, omni_qwen2_5_omni.pipeline.pipeline, "talker"),
    "csm backbone": Case(tiny_csm, omni_csm.pipeline.pipeline, "backbone"),
}


EXPERTS = {"text moe": 8, "omni 3 thinker": 4, "omni 3 talker": 4}
WAYS = [(case, False) for case in CASES] + [(case, True) for case in EXPERTS]
"""Cases, and whether their experts are divided."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A model's outputs for a prompt, the last two tokens one by one as in decode steps. codes: of greedy frames."""

    embedded_TD: Tensor
    hidden_TD: Tensor
    logits_TV: Tensor
    codes: tuple[Tensor, ...]


@torch.inference_mode()
def run(model: ArModel) -> Ran:
    shape, generator = model.shape, torch.Generator().manual_seed(5)
    # A model that is conditioned by vectors has a table of few text ids.
    columns_CT = torch.randint(4 if shape.step_width else 41, (len(shape.prompt_columns), TOKENS), generator=generator)
    x_TD = model.embed_prompt(PromptTokens(columns_CT, ()))
    positions_PT = torch.arange(TOKENS).expand(shape.position_axes, TOKENS)
    hidden: list[Tensor] = []
    hook = model.register_forward_hook(lambda _, __, hidden_TD: hidden.append(hidden_TD))
    row, given = OneRow(model), (TOKENS - 2, 1, 1)
    pieces = zip(x_TD.split(given), positions_PT.split(given, 1), strict=True)
    logits_TV = torch.cat([row.run(piece_TD.clone(), places_PT) for piece_TD, places_PT in pieces])
    hook.remove()
    hidden_TD = torch.cat(hidden)
    codes: tuple[Tensor, ...] = ()
    if isinstance(model, CodecModel):
        frames = model.predict_codes(hidden_TD, logits_TV.argmax(1) % 7, lambda logits_RV, _: logits_RV.argmax(1))
        codes = (frames.codes_RG, frames.next_RD, model.embed_codes(frames.codes_RG))
    return Ran(x_TD, hidden_TD, logits_TV, codes)


def assert_close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@cache
def whole_run(case: str) -> Ran:
    return run(CASES[case].build(None))


@pytest.mark.parametrize("size", few(1, [4, 2], SLOW))
@pytest.mark.parametrize(("case", "by_expert"), WAYS)
def test_ranks_equal_the_whole_model(case: str, by_expert: bool, size: int) -> None:
    expected = whole_run(case)

    def work(ranks: Communicator) -> tuple[Ran, int, int]:
        model = CASES[case].build(ranks, expert_parallel=by_expert)
        divided = {part.experts_down.shape[0] for part in model.modules() if isinstance(part, SparseMoE)}
        assert not by_expert or divided == {EXPERTS[case] // size}
        with partitioned(ranks):
            return run(model), sum(p.numel() for p in model.parameters()), model.shape.num_kv_heads

    whole = CASES[case].build(None)
    first, *others = on_ranks(size, work)
    ran, held, kv_heads = first
    assert held < sum(p.numel() for p in whole.parameters())
    assert kv_heads == max(whole.shape.num_kv_heads // size, 1)
    assert torch.equal(ran.embedded_TD, expected.embedded_TD)
    assert_close(ran.hidden_TD, expected.hidden_TD)
    assert_close(ran.logits_TV, expected.logits_TV)
    for ours, theirs in zip(ran.codes, expected.codes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for other, *_ in others:
        assert torch.equal(other.hidden_TD, ran.hidden_TD)
        assert torch.equal(other.logits_TV, ran.logits_TV)
        assert all(map(torch.equal, other.codes, ran.codes))


def published(model: nn.Module) -> dict[str, tuple[Tensor, Cut | None]]:
    """The place of each weight in the parameters, by its name below the model, and the part of the weight that it holds."""
    places: dict[str, tuple[Tensor, Cut | None]] = {name: (tensor, None) for name, tensor in model.named_parameters()}
    stacked = stacked_destinations(model)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for place in stacked.values():
        places.pop(place.parameter, None)
    return places | {name: (parameters[place.parameter][place.index], place.cut) for name, place in stacked.items()}


@pytest.mark.parametrize("size", few(1, [4, 2], SLOW))
@pytest.mark.parametrize(("case", "by_expert"), WAYS)
def test_each_rank_holds_its_slice_of_every_weight(case: str, by_expert: bool, size: int) -> None:
    whole = {name: tensor for name, (tensor, _) in published(CASES[case].build(None)).items()}
    ranks = on_ranks(size, lambda ranks: published(CASES[case].build(ranks, expert_parallel=by_expert)))
    for rank, places in enumerate(ranks):
        assert places.keys() >= whole.keys()
        for name, weight in whole.items():
            held, cut = places[name]
            if cut is None:
                assert torch.equal(held, weight), name
                continue
            rows = weight.movedim(cut.dim, 0)
            filled = torch.cat([rows, torch.zeros(size, *rows.shape[1:])])[cut.start : cut.stop]
            assert torch.equal(held.movedim(cut.dim, 0), filled), f"{name} of rank {rank}"
    for name, weight in whole.items():
        # Together they hold all of it. An expert is held by one of them.
        cuts = [places[name][1] for places in ranks]
        covered = {entry for cut in cuts if cut is not None for entry in range(cut.start, cut.stop)}
        if by_expert and ".experts." in name:
            assert cuts.count(None) == 1
            assert not covered
        else:
            assert cuts[0] is None or covered >= set(range(weight.shape[cuts[0].dim])), name


@pytest.mark.parametrize("case", ["text moe", "omni 3 talker"])
def test_random_weights_differ_in_cut_parameters_alone(case: str) -> None:
    CASES[case].folder()  # written once, before there are threads
    first, second = on_ranks(2, lambda ranks: published(CASES[case].build(ranks, "dummy")))
    cut = {name for name, (_, part) in first.items() if part is not None}
    assert cut
    assert cut < first.keys()
    for name, (weight, _) in first.items():
        other, _ = second[name]
        assert torch.equal(weight, other) == (name not in cut), name


def with_experts_divided(context: StageContext) -> StageContext:
    return replace(context, stage=msgspec.structs.replace(context.stage, expert_parallel=True))


@pytest.mark.parametrize("by_expert", [False, True])
def test_the_stage_kind_builds_in_the_partition_of_its_ranks(by_expert: bool) -> None:
    expected = whole_run("omni 3 thinker").logits_TV

    def work(ranks: Communicator) -> tuple[int, int, Tensor]:
        context = CASES["omni 3 thinker"].context()
        context = with_experts_divided(context) if by_expert else context
        own = EqualRanks(rank=ranks.rank, size=ranks.size, communicator=ranks, channel=NoChannel(), tensor=ranks)
        model = build_rank_model(replace(context, ranks=own))
        held = {part.experts_down.shape[0] for part in model.modules() if isinstance(part, SparseMoE)}
        assert held == {EXPERTS["omni 3 thinker"] // (2 if by_expert else 1)}
        return model.shape.num_kv_heads, model.shape.vocab_size, run(model).logits_TV

    for kv_heads, vocab_size, logits_TV in on_ranks(2, work):
        assert (kv_heads, vocab_size) == (1, expected.shape[1])
        assert_close(logits_TV, expected)


@pytest.mark.parametrize("device", [open_device("cpu"), MetaDevice()], ids=["cpu", "meta"])
@pytest.mark.parametrize("layout", [RankLayout(2), RankLayout(2, 2)], ids=str)
@pytest.mark.parametrize("case", [case for case in CASES if case not in EXPERTS])
def test_a_model_without_experts_cannot_divide_them(case: str, layout: RankLayout, device: Device) -> None:
    context = replace(with_experts_divided(CASES[case].context()), device=device, ranks=silent_ranks(1, layout))
    name = context.stage.name
    problem = rf"^{name}\.expert_parallel: is true, and the model of stage '{name}' has no experts; leave it out$"
    with pytest.raises(ConfigError, match=problem):
        build_rank_model(context)


def build_shared(context: StageContext) -> TextModel:
    config = read_config(context.checkpoint)
    decoder = msgspec.structs.replace(config.decoder, shared_expert_width=6)
    return TextModel(decoder, config.vocab_size, tied=config.tied, device=context.device.torch_device)


@pytest.mark.parametrize(
    ("model", "layout", "said"),
    [
        (None, RankLayout(3), "the 8 experts of a layer; set text.tensor_parallel to a divisor of 8"),
        (None, RankLayout(3, 3), "the 8 experts of a layer; set text.tensor_parallel to a divisor of 8"),
        ("build_shared", RankLayout(4), "the width 6 of the shared expert; set text.tensor_parallel to a divisor of 6"),
    ],
)
def test_ranks_that_do_not_divide_the_experts_are_refused(model: str | None, layout: RankLayout, said: str) -> None:
    """In the second case those of rank 3, whose layer has none."""
    context = with_experts_divided(CASES["text moe"].context("dummy"))
    stage = msgspec.structs.replace(context.stage, model=f"{__name__}:{model}" if model else context.stage.model)
    context = replace(context, stage=stage, device=MetaDevice(), ranks=silent_ranks(3 % layout.size, layout))
    problem = rf"^text\.expert_parallel: is true, and text\.tensor_parallel={layout.tensor} does not divide {said}"
    with pytest.raises(ConfigError, match=problem):
        build_rank_model(context)


def test_a_rank_of_layers_without_experts_is_accepted() -> None:
    """The second of three layers is dense; ranks 2 and 3 have it alone."""
    context = with_experts_divided(CASES["text moe"].context())
    options = msgspec.structs.replace(context.options, pipeline_layers=(1, 1, 1))
    context = replace(context, options=options, ranks=silent_ranks(3, RankLayout(2, 3)))
    model = build_rank_model(context)
    assert not any(isinstance(part, SparseMoE) for part in model.modules())
    assert any(isinstance(part, GatedMLP) for part in model.modules())


def cut_settings(stage: str) -> dict[str, str]:
    return {f"{stage}.tensor_parallel": "2", f"{stage}.place": "cpu,cpu/2", f"{stage}.expert_parallel": "true"}


def test_a_start_refuses_it_before_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def unread(*_: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(stream, "_read", unread)
    monkeypatch.setattr(stream, "copy_extent", unread)
    checkpoint, plugins = Checkpoint(text_folder("untied")), load_plugins()
    options = EngineOptions(device="cpu", dtype="float32")
    plan = resolve_pipeline(checkpoint, plugins, layers_of(overrides=cut_settings("text")))
    with pytest.raises(ConfigError, match=r"^text\.expert_parallel: .* has no experts; leave it out$"):
        check_shapes(plan, checkpoint, plugins, options)
    checkpoint = Checkpoint(text_folder("moe"))
    plan = resolve_pipeline(checkpoint, plugins, layers_of(overrides=cut_settings("text")))
    check_shapes(plan, checkpoint, plugins, options)


def test_explain_counts_the_experts_of_a_rank() -> None:
    case = CASES["text moe"]
    asked = [f"--set={name}={value}" for name, value in cut_settings("text").items()]
    done = CliRunner().invoke(app, ["explain", str(case.folder()), "--device", "cpu", *asked, "--json"])
    found = json.loads(done.stdout)
    whole, part = (module_bytes(case.build(ranks, expert_parallel=True)) for ranks in (None, SilentCommunicator(1, 2)))
    assert part < 0.6 * whole
    assert [found["memory"][place]["stages"]["text"]["weights"] for place in ("cpu", "cpu/2")] == [part, part]


@pytest.mark.parametrize(
    ("case", "ranks", "said"),
    [
        ("text untied", 2, []),
        ("text untied", 3, ["attention of 3 of 3", "feed-forward of 3 of 3"]),
        ("text moe", 3, ["attention of 3 of 3", "feed-forward of 1 of 1"]),
        ("text moe", 16, ["attention of 3 of 3", "experts of 2 of 2"]),
    ],
)
def test_a_start_warns_of_widths_that_the_ranks_do_not_divide(
    case: str, ranks: int, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    context = CASES[case].context()
    for rank in range(ranks):
        build_rank_model(replace(context, ranks=silent_ranks(rank, RankLayout(ranks))))
    build_rank_model(replace(context, ranks=silent_ranks(0, RankLayout(ranks)), device=MetaDevice()))
    assert [record.getMessage() for record in caplog.records] == [
        f"text: tensor_parallel={ranks} does not divide the {each} layers: every rank holds and computes them whole"
        for each in said
    ]


class OwnShape(TextModel):
    """A model that makes its shape itself."""

    @property
    def shape(self) -> ArShape:
        return replace(super().shape, num_kv_heads=self._config.num_kv_heads)


def build_own(context: StageContext) -> TextModel:
    config = read_config(context.checkpoint)
    model = OwnShape(config.decoder, config.vocab_size, tied=config.tied, device=torch.device("cpu"))
    model.load(context)
    return model


def test_kv_heads_are_those_of_the_layers_at_any_count_of_a_family() -> None:
    case, expected = CASES["text untied"], whole_run("text untied")

    def work(ranks: Communicator) -> tuple[str, int, Tensor]:
        own = EqualRanks(rank=ranks.rank, size=ranks.size, communicator=ranks, channel=NoChannel(), tensor=ranks)
        context = case.context()
        stage = msgspec.structs.replace(context.stage, model=f"{__name__}:build_own")
        model = build_rank_model(replace(context, stage=stage, ranks=own))
        return type(model).__name__, model.shape.num_kv_heads, run(model).logits_TV

    for name, kv_heads, logits_TV in on_ranks(2, work):
        assert (name, kv_heads) == ("OwnShape", 1)
        assert_close(logits_TV, expected.logits_TV)


class NoChannel:
    """A channel without a user."""

    descriptor = None

    def send(self, message: bytes) -> None:
        raise NotImplementedError

    def take(self) -> bytes | None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
