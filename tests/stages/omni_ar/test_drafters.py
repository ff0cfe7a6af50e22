"""Stages without a drafter, drafters that a stage refuses at its start, and drafters and steps that fail."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.device.meta import MetaDevice
from omni.errors import ConfigError, OmniError, PluginError
from omni.plugin import DrafterEntry
from omni.testing.faults import FaultyDevice
from omni_ar.drafters import (
    CacheShape,
    Drafter,
    DraftModel,
    DraftRequest,
    DraftRows,
    DraftSetup,
    FeatureShape,
    ModelDrafter,
)
from omni_ar.drafters.draft_model import ArDraftModel
from omni_ar.drafters.load import load_drafter
from omni_ar.kernels.step.handoff import REPORTED
from omni_ar.model import ArModel, Batch
from omni_ar.options import ArOptions
from omni_ar.plugin import omni_drafters
from tests.stages.omni_ar.small_drafts import MODEL, PROMPTS, Shaped, answers, driver_of
from tests.support.ar_driver import small_context
from tests.support.small_codec import SmallCodec
from tests.support.small_text import SmallText
from tests.support.tiers import chosen


def test_a_stage_without_a_drafter_has_no_state_of_drafts():
    runner = driver_of().runner
    assert runner._state.drafts is None
    assert runner._buffers.sampled_N.numel() == 0
    assert runner._state.handoff.host.shape[2] == runner._buffers.accepted_NW.shape[1] == 3
    drafted = driver_of("ngram", draft_tokens=2).runner
    assert drafted._state.handoff.host.shape[2] == 3 + 2 + REPORTED


def test_a_stage_without_a_drafter_has_the_same_launches_as_before(monkeypatch: pytest.MonkeyPatch):
    launched: list[str] = []
    real = CpuDevice.launch

    def launch(self: CpuDevice, stream: Any, phase: Any, *buffers: object) -> None:
        launched.append(phase.__name__)
        real(self, stream, phase, *buffers)

    monkeypatch.setattr(CpuDevice, "launch", launch)
    driver = driver_of(prefix_cache=False)
    launched.clear()
    answers(driver, PROMPTS[1:2], max_tokens=3)
    inputs, sampling = (
        ["embed_inputs", "run_forward"],
        ["compute_logits", "sample_rows", "accept_tokens", "post_update"],
    )
    prompt = ["copy_upload", "start_rows", "place_chunks", *inputs, *sampling]
    token = ["prepare_decodes", *inputs, *sampling]
    assert launched == [*prompt, "copy_upload", *token, "copy_upload", "extend_tables", *token]


# Refusals.


REFUSED: list[tuple[Callable[[], ArModel], dict[str, Any], str]] = [
    (SmallCodec, {"drafter": "ngram"}, "text.drafter: is set, and each step of SmallCodec needs the codec frame of"),
    (
        lambda: Shaped(step_columns=("text",)),
        {"drafter": "ngram"},
        "text.drafter: is set, and each step of Shaped has inputs be",
    ),
    (
        lambda: Shaped(step_width=4),
        {"drafter": "ngram"},
        "text.drafter: is set, and each step of Shaped has inputs besides the",
    ),
    (
        lambda: Shaped(prompt_columns=("ids", "sound")),
        {"drafter": "ngram"},
        "and the prompt of Shaped is not a row of its own",
    ),
    (
        SmallText,
        {"drafter": "nram"},
        "text.drafter: 'nram' is not a drafter; known are eagle3, fabricated, mtp, ngram;",
    ),
    (SmallText, {"drafter_args": {"most": 3}}, "text.drafter_args: is given without a drafter; set text.drafter too"),
    (SmallText, {"draft_tokens": 3}, "text.draft_tokens: is given without a drafter; set text.drafter too"),
    (SmallText, {"drafter_args": {}}, "text.drafter_args: is given without a drafter; set text.drafter too"),
    (SmallText, {"adaptive_drafts": False}, "text.adaptive_drafts: is given without a drafter; set text.drafter too"),
    (SmallText, {"adaptive_drafts": True}, "text.adaptive_drafts: is given without a drafter; set text.drafter too"),
    *(
        (
            SmallText,
            {"drafter": name, "drafter_args": {"mst": 3}},
            "text.drafter_args: Object contains unknown field `mst`",
        )
        for name in ("ngram", "fabricated", "mtp", "eagle3")
    ),
    (SmallText, {"drafter": "ngram", "drafter_args": {"fewest": 5}}, "text.drafter_args: fewest and most must be in "),
    (SmallText, {"drafter": "fabricated", "drafter_args": {"rate": 2}}, "text.drafter_args: rate must be from 0 to 1"),
    (SmallText, {"drafter": "fabricated", "drafter_args": {"seed": -1}}, "text.drafter_args: seed must be at least 0"),
    (SmallText, {"drafter": "broken"}, "drafters.broken: importing nowhere failed"),
    (SmallText, {"drafter": "other"}, f"{__name__}:not_a_drafter: gives a dict, no Drafter"),
    (SmallText, {"drafter": "raises"}, f"{__name__}:raises: "),
    (SmallText, {"drafter": "constant"}, f"{__name__}:CONSTANT: is a str, which cannot be called; name a class or a f"),
]


CONSTANT = "drafts"


def not_a_drafter(args: Mapping[str, object], setup: DraftSetup) -> object:
    return {"args": args}


def raises(args: Mapping[str, object], setup: DraftSetup) -> object:
    raise KeyError("weights")


@pytest.mark.parametrize(("make", "options", "said"), REFUSED)
def test_refused_at_start(make: Callable[[], ArModel], options: dict[str, Any], said: str):
    entries = {entry.name: entry for entry in omni_drafters()}
    own = {"other": "not_a_drafter", "raises": "raises", "constant": "CONSTANT"}
    paths = {"broken": "nowhere:Drafter"} | {name: f"{__name__}:{code}" for name, code in own.items()}
    if options.get("drafter") in paths:
        entries |= {name: DrafterEntry(name=name, drafter=path) for name, path in paths.items()}
    with pytest.raises(OmniError) as caught:
        load_drafter(small_context(ArOptions(**options), entries), make(), 64)
    assert said in str(caught.value)


class KeepsSetup(Drafter):
    """given: its arguments and the stage."""

    def __init__(self, *given: object) -> None:
        self.given = given

    def draft(self, rows: DraftRows) -> None:
        raise AssertionError


def test_a_drafter_gets_the_sizes_of_its_stage():
    entries, model = {"keeps": DrafterEntry(name="keeps", drafter=f"{__name__}:KeepsSetup")}, SmallText(vocab=37)
    context = small_context(ArOptions(drafter="keeps", draft_tokens=5), entries)
    drafter = load_drafter(context, model, 48)
    assert isinstance(drafter, KeepsSetup)
    setup = DraftSetup(drafts=5, vocab_size=37, max_model_len=48, model=model, context=context)
    assert drafter.given == ({}, setup)


def test_without_plugins_no_drafter_is_known():
    with pytest.raises(ConfigError, match="'ngram' is not a drafter; known are none;"):
        load_drafter(small_context(ArOptions(drafter="ngram"), {}), SmallText(), 64)


class Head(DraftModel):
    """Makes its features by a matrix over hidden states of a width."""

    cache_shape = CacheShape(num_layers=1, num_kv_heads=1, head_dim=8)

    def __init__(self, layers: tuple[int, ...], reads: int, gives: int, states: int) -> None:
        """states: width of the features that it states."""
        super().__init__()
        self.fc = torch.nn.Linear(reads, gives)
        self._shape = FeatureShape(layers=layers, width=states)

    @property
    def feature_shape(self) -> FeatureShape:
        return self._shape

    def features(self, states_TX: torch.Tensor) -> torch.Tensor:
        features_TH: torch.Tensor = self.fc(states_TX)
        return features_TH

    def forward(self, ids_T: torch.Tensor, features_TH: torch.Tensor | None, batch: Batch) -> torch.Tensor:
        assert features_TH is not None
        return features_TH

    def propose(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        return hidden_RD.argmax(1)


def head(args: Mapping[str, Any], setup: DraftSetup) -> ModelDrafter:
    return ModelDrafter(Head(**args), setup.drafts)


def with_head(*given: object, device: Device | None = None) -> Drafter | None:
    """In a stage of 2 layers of width 24."""
    args = dict(zip(("layers", "reads", "gives", "states"), given, strict=True))
    entries = {"head": DrafterEntry(name="head", drafter=f"{__name__}:head")}
    assert (SmallText().shape.num_layers, SmallText().shape.hidden_width) == (2, 24)
    context = small_context(ArOptions(drafter="head", drafter_args=args), entries)
    return load_drafter(replace(context, device=device or context.device), SmallText(), 64)


UNFIT: list[tuple[tuple[object, ...], str]] = [
    (
        ((0, 3), 48, 8, 8),
        r"reads hidden states \[0, 3\] of stage 'text', which has 2 layers; use numbers from 0, the inp",
    ),
    (((-1,), 24, 8, 8), r"reads hidden states \[-1\] of stage 'text'"),
    (((), 24, 8, 8), r"reads hidden states \[\] of stage 'text'"),
    (((1, 2), 72, 8, 8), r"mat1 and mat2 shapes cannot be multiplied \(1x48 and 72x8\)"),
    (
        ((1, 2), 48, 8, 9),
        r"features gave \[1, 8\], not \[1, 9\]: see FeatureShape.width; the stage's hidden states have w",
    ),
]


@pytest.mark.parametrize(("given", "said"), UNFIT)
def test_a_plugin_s_head_that_does_not_fit_is_refused(given: tuple[object, ...], said: str):
    """By its name, before a step is run."""
    with pytest.raises(PluginError, match=rf"{__name__}:head: .*{said}"):
        with_head(*given)


@pytest.mark.parametrize("layers", [(0,), (2,), (0, 1, 2)])
def test_a_plugin_s_head_may_read_any_hidden_state_of_the_stage(layers: tuple[int, ...]):
    drafter = with_head(layers, 24 * len(layers), 8, 8)
    assert isinstance(drafter, ModelDrafter)


def test_a_rank_that_runs_no_drafter_runs_none_at_start():
    """Its hidden states have no memory, and weights that a plugin has anyway may."""
    assert isinstance(with_head((1,), 24, 8, 8, device=MetaDevice()), ModelDrafter)


class Columns(ArDraftModel):
    """Gives its ids as a matrix."""

    def propose(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        return super().propose(hidden_RD)[:, None]


def test_ids_of_another_shape_are_the_fault_of_the_model():
    driver = driver_of("ngram", made=ModelDrafter(Columns(MODEL, 11), 3), draft_tokens=3, adaptive_drafts=False)
    driver.ask("one", PROMPTS[0], max_tokens=4)
    driver.run()
    assert re.search(
        r"Columns\.propose gave torch.int64 \[1, 1\], not torch.int64 \[1\]: return", str(driver.error("one"))
    )


class Raises(Drafter):
    def draft(self, rows: DraftRows) -> None:
        raise ValueError("no draft today")


def test_a_drafter_that_raises_fails_the_requests_that_decode():
    driver = driver_of("ngram", made=Raises())
    driver.ask("one", PROMPTS[0], max_tokens=1)
    driver.ask("two", PROMPTS[0], max_tokens=2)
    driver.run()
    assert driver.done("one").reason == "length"
    assert "no draft today" in str(driver.error("two"))


class Foresees(Drafter):
    """Gives a request of two tokens a wrong future, and refuses its outputs."""

    def draft(self, rows: DraftRows) -> None:
        rows.proposed_N.index_fill_(0, rows.rows_R, 0)

    def predicted_tokens(self, request: DraftRequest, outputs: Sequence[int]) -> Any:
        return "soon" if request.ids_T.size == 2 else ()

    def finished(self, request: DraftRequest, outputs: Sequence[int]) -> None:
        if request.ids_T.size == 3:
            raise SystemExit("no memory of it")


def test_what_a_drafter_does_on_the_host_fails_one_request():
    driver = driver_of("ngram", made=Foresees())
    prompts = {"first": [5, 6], "second": [5, 6, 7], "third": [5, 6, 7, 8]}
    for name, prompt in prompts.items():
        driver.ask(name, prompt, max_tokens=4)
        driver.run()
    assert "Foresees.predicted_tokens gave a str, no token ids" in str(driver.error("first"))
    assert re.search("giving its outputs to the drafter.*no memory of it", str(driver.error("second")))
    assert driver.done("third").reason == "length"


class Guesses(Drafter):
    """Drafts the same ids for every row."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids_K = torch.tensor(ids)

    def draft(self, rows: DraftRows) -> None:
        rows.drafts_NK.index_copy_(0, rows.rows_R, self._ids_K.expand(rows.rows_R.shape[0], -1))
        rows.proposed_N.index_fill_(0, rows.rows_R, len(self._ids_K))


OUTSIDE: dict[tuple[int, int, int], list[int]] = {
    (-1, 3, 3): [0, 0, 0],
    (11, 3, 3): [0, 0, 0],
    (3, 2**40, 3): [1, 0, 0],
    (3, 3, -(2**62)): [1, 1, 0],
    (3, 3, 3): [1, 1, 1],
}
"""Drafts of a stage with 11 ids, and those that steps with positions for all verify."""


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("ids", OUTSIDE)
def test_ids_outside_the_vocabulary_are_not_verified(ids: tuple[int, int, int], captured: bool):
    """Id 3 is made likely, so that some drafts are accepted. The text is that without a drafter."""
    sampling: dict[str, Any] = {"temperature": 1.0, "seed": 5, "logit_bias": {3: 4.0}, "repetition_penalty": 1.1}
    plain = answers(driver_of(), **sampling)
    driver = driver_of("ngram", made=Guesses(ids), draft_tokens=3, adaptive_drafts=False, captured=captured)
    assert answers(driver, **sampling) == plain
    for place, verified in enumerate(OUTSIDE[ids], 1):
        assert (driver.counter(f"drafted_tokens_{place}") > 0) == (verified == 1)
        assert (driver.counter(f"accepted_drafts_{place}") > 0) == (verified == 1)


PHASES = ("start_drafts", "draft_tokens", "prepare_drafts", "sample_positions", "accept_drafts", "record_drafts")


@pytest.mark.plants_faults
@pytest.mark.parametrize(
    ("phase", "after"),
    # Each phase once, before or after it by turns.
    chosen([(phase, index % 2 > 0) for index, phase in enumerate(PHASES)], itertools.product(PHASES, (False, True))),
)
def test_a_step_that_fails_is_run_again_row_by_row(phase: str, after: bool):
    """And its changes of the rows' drafts are dropped."""
    plain, device = answers(driver_of()), FaultyDevice()
    driver = driver_of("fabricated", device, draft_tokens=3, prefix_cache=False)
    assert answers(driver) == plain
    number = 0 if phase == "start_drafts" else 9
    device.faults.plant(("ar", phase), number, after=after)
    assert answers(driver) == plain
    assert driver.counter("retries") == 1
    assert driver.counter("accepted_drafts") > 20


@pytest.mark.parametrize("drafts", [0, 16])
def test_too_many_drafts_or_none(drafts: int):
    with pytest.raises(ValueError, match="draft_tokens must be at least 1, at most 15"):
        ArOptions(draft_tokens=drafts)
