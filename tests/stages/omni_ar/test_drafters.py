"""Stages without a drafter, drafters that a stage refuses at its start, and drafters and steps that fail."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from omni.device.cpu import CpuDevice
from omni.errors import OmniError
from omni.plugin import DrafterEntry
from omni.testing.faults import FaultyDevice
from omni_ar.drafters import Drafter, DraftRows, DraftSetup
from omni_ar.drafters.load import load_drafter
from omni_ar.kernels.step.draft_state import REPORTED
from omni_ar.model import ArModel
from omni_ar.options import ArOptions
from omni_ar.plugin import omni_drafters
from tests.stages.omni_ar.small_drafts import PROMPTS, answers, driver_of
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


def test_a_stage_without_a_drafter_launches_what_it_did(monkeypatch: pytest.MonkeyPatch):
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
        SmallText,
        {"drafter": "nram"},
        "text.drafter: 'nram' is not a drafter; known are eagle3, fabricated, mtp, ngram;",
    ),
    (SmallText, {"drafter_args": {"most": 3}}, "text.drafter_args: is given without a drafter; set text.drafter too"),
    (SmallText, {"draft_tokens": 3}, "text.draft_tokens: is given without a drafter; set text.drafter too"),
    (SmallText, {"adaptive_drafts": True}, "text.adaptive_drafts: is given without a drafter; set text.drafter too"),
    (SmallText, {"drafter": "ngram", "drafter_args": {"mst": 3}}, "text.drafter_args: Object contains unknown field `"),
    (SmallText, {"drafter": "ngram", "drafter_args": {"fewest": 5}}, "text.drafter_args: fewest and most must be in "),
    (SmallText, {"drafter": "fabricated", "drafter_args": {"rate": 2}}, "text.drafter_args: rate must be from 0 to 1"),
    (SmallText, {"drafter": "broken"}, "drafters.broken: importing nowhere failed"),
    (SmallText, {"drafter": "other"}, f"{__name__}:not_a_drafter: gives a dict, no Drafter"),
    (SmallText, {"drafter": "raises"}, f"{__name__}:raises: "),
]


def not_a_drafter(args: Mapping[str, object], setup: DraftSetup) -> object:
    return {"args": args}


def raises(args: Mapping[str, object], setup: DraftSetup) -> object:
    raise KeyError("weights")


@pytest.mark.parametrize(("make", "options", "said"), REFUSED)
def test_refused_at_start(make: Callable[[], ArModel], options: dict[str, Any], said: str):
    entries = {entry.name: entry for entry in omni_drafters()}
    paths = {"broken": "nowhere:Drafter", "other": f"{__name__}:not_a_drafter", "raises": f"{__name__}:raises"}
    if options.get("drafter") in paths:
        entries |= {name: DrafterEntry(name=name, drafter=path) for name, path in paths.items()}
    with pytest.raises(OmniError) as caught:
        load_drafter(small_context(ArOptions(**options), entries), make(), 64)
    assert said in str(caught.value)


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
