"""The conformance suite of stage kinds passes kinds that keep the contract, and finds each broken promise."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from omni.errors import ConfigError
from omni.payload import Payload
from omni.sampling import SamplingParams
from omni.stage import StageContext
from omni.testing import Race, check_stage
from omni.testing.simulation.checker import Access
from omni.testing.stages.accesses import broken_by
from omni_ar.inputs import Prompt
from omni_ar.options import ArOptions
from omni_diffusion.inputs import Voice
from omni_frames.request import CodeFrames
from omni_vocoder.kind import LoadedVocoder, VocoderStageKind
from omni_vocoder.options import VocoderOptions
from tests.omni.testing.kit import adder_faults
from tests.omni.testing.kit.adder import REFUSED, SAMPLES, AdderKind, AdderOptions, sums
from tests.omni.testing.kit.finding import finds
from tests.omni.testing.kit.vocoder_faults import GROUPS, SmallVocoder
from tests.support.frame_bench import random_codes
from tests.support.painter import OPTIONS as PAINTING
from tests.support.small_text import SmallText, greedy
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough
HERE = "tests.omni.testing.kit.test_check_stage"


def build_text(context: StageContext) -> SmallText:
    return SmallText(payload=True, emits_tokens=True)


def build_vocoder(context: StageContext) -> SmallVocoder:
    return SmallVocoder()


def check_adder(kind: Any, **arguments: Any) -> None:
    given = {
        "options": AdderOptions(),
        "inputs": SAMPLES,
        "expected": [sums(each) for each in SAMPLES],
        "refused": REFUSED,
        "seeds": (1, 2),
    }
    check_stage(kind, **{**given, **arguments})


@pytest.mark.parametrize("kind", few(2, [AdderKind(), "tests.omni.testing.kit.adder:AdderKind", AdderKind], SLOW))
def test_a_small_kind_keeps_the_contract(kind: Any):
    check_adder(kind)


def test_outputs_alone_are_expected_by_default():
    check_adder(AdderKind, expected=None, options=AdderOptions(max_num_seqs=5))


def test_the_autoregressive_kind_keeps_the_contract():
    prompts = [np.arange(length) for length in (3, 17)]
    check_stage(
        "omni_ar.kind:ArStageKind",
        options=ArOptions(max_num_seqs=2, block_size=4),
        inputs=[[Payload(Prompt.of(ids))] for ids in prompts],
        model=f"{HERE}:build_text",
        sampling=SamplingParams(max_tokens=4, temperature=0.0),
        seeds=(1,),
        unused=("embeddings", "leases", "scores", "host_processors", "spilled"),
    )


def test_the_vocoder_kind_keeps_the_contract():
    check_stage(
        "omni_vocoder.kind:VocoderStageKind",
        options=VocoderOptions(max_num_seqs=2, first_chunk_frames=2, chunk_frames=4),
        inputs=[_frames(0, 1, 3), _frames(1, 7)],
        model=f"{HERE}:build_vocoder",
        seeds=(1,),
    )


class LoadedWithoutCount(LoadedVocoder):
    """Its footprint remains that of one row."""

    def set_rows(self, rows: int) -> None:
        before = self.footprint
        super().set_rows(rows)
        self.footprint = before


class ForgetsToCount(VocoderStageKind):
    def load(self, context: StageContext) -> LoadedVocoder:
        return LoadedWithoutCount(context, SmallVocoder())


@pytest.mark.parametrize("kind", [VocoderStageKind, ForgetsToCount])
def test_rows_that_the_engine_sets_are_counted(kind: type[VocoderStageKind]):
    def check() -> None:
        check_stage(
            kind,
            options=VocoderOptions(),
            inputs=[_frames(0, 3), _frames(1, 2)],
            model=f"{HERE}:build_vocoder",
            seeds=(1,),
        )

    if kind is VocoderStageKind:
        check()
    else:
        with finds("declares", r"footprint\.rows are 3 after set_rows\(3\), not \(3, 1\); count the buffers again"):
            check()


def test_the_diffusion_kind_keeps_the_contract():
    def spoken(voice: int, *counts: int) -> list[Payload]:
        codes = [torch.from_numpy(random_codes(count, count)) for count in counts]
        return [Payload(Voice(index=voice)), *(Payload(CodeFrames(count=len(c)), {"codes": c}) for c in codes)]

    check_stage(
        "omni_diffusion.kind:DiffusionStageKind",
        options=PAINTING,
        inputs=[spoken(1, 5, 4), spoken(2, 3)],
        refused=[spoken(77, 3)],
        model="tests.support.painter:build_painter",
        sampling=SamplingParams(seed=3),
        tolerance=1e-4,
        seeds=(1,),
    )


def _frames(seed: int, *counts: int) -> list[Payload]:
    drawn = np.random.default_rng(seed)
    codes = [torch.from_numpy(drawn.integers(0, 20, (count, GROUPS))) for count in counts]
    return [Payload(CodeFrames(count=len(each)), {"codes": each}) for each in codes]


def test_tokens_of_the_autoregressive_kind_are_compared_with_the_authors():
    model, ids = SmallText(), [list(range(length)) for length in (3, 9)]
    tokens = [greedy(model, each, 4) for each in ids]
    assert tokens[0] != tokens[1]


@pytest.mark.parametrize(
    ("broken", "found_by", "message"),
    few(
        16,
        [
            (adder_faults.NoOptions, "declares", "options is a frozen msgspec.Struct; give the class"),
            (adder_faults.LoadsNothing, "declares", "returns an omni.stage.LoadedStage.*PlainStage"),
            (adder_faults.AddsTooMuch, "not_before_ready", "gets the expected outputs: Numbers 2 is"),
            (adder_faults.SharesARow, "together", "keep everything by request"),
            (
                adder_faults.WantsAllAtOnce,
                "together|in_parts",
                "keep everything by request|inputs and the end come in any tick",
            ),
            (adder_faults.ReadsEarly, "not_before_ready", "launch nothing that reads an input before Feed.arrived"),
            (adder_faults.WaitsForInputs, "not_before_ready", "tick never waits; ask Feed.arrived once"),
            (adder_faults.IgnoresForeignInputs, "foreign_input", "fails: 'bad' got Done.*raise in `feed`"),
            (adder_faults.NeverEndsEmpty, "without_input", "requests end: the worker stalled"),
            (
                adder_faults.NeverReleases,
                "not_before_ready",
                r"every input is released: input 0 .*call Feed.release\(after\)",
            ),
            (
                adder_faults.ReleasesBeforeItReads,
                "late_devices|alone",
                "overwrites it then .`spoil`.: add_numbers .*call Feed.release with the event that is recorded after",
            ),
            (
                adder_faults.ReusesItsOutput,
                "together|read_late",
                "keep everything by request|as it is until Produced.free",
            ),
            (
                adder_faults.KeepsRows,
                "refused_input|aborted",
                "usage is zero when no request is there; .*'rows': 1.*free in `drop`",
            ),
            (adder_faults.KeepsInputs, "foreign_input|aborted", "every input is released.*in `drop`"),
            (adder_faults.IgnoresPauses, "paused", "paused from the start gives nothing.*between `pause` and `resume`"),
            (
                adder_faults.ForgetsToResume,
                "paused",
                "requests end: the worker stalled, and '0-0' is not over .the",
            ),
            (adder_faults.LosesInputsInAPause, "paused", "go on where it stopped"),
            (
                adder_faults.GivesAfterAnAbort,
                "refused_input|aborted",
                "a request has no output after its end.*drop late results",
            ),
            (
                adder_faults.RaisesInATick,
                "foreign_input|failures",
                "StageWorker.tick does not raise.*end the request with `fail`",
            ),
            (
                adder_faults.LosesAFailedInput,
                "foreign_input|failures",
                "every input is released: input 0 of request .*in `drop`",
            ),
            (adder_faults.ClosesOnce, "declares", "close does not raise .*do nothing the second time"),
            (adder_faults.CountsDown, "not_before_ready", "counters only grow: left did not"),
            (adder_faults.IsAlwaysBusy, "declares", "tick of a worker without work returns False"),
            (adder_faults.SaysNothingMoved, "declares", "tick returns whether anything happened"),
            (adder_faults.Synchronizes, "guarded", "Device.synchronize.*poll an event in `advance`"),
            (adder_faults.WorksOutsidePhases, "guarded", "ones ran outside a phase.*Device.launch"),
            (adder_faults.TakesOneEndForAll, "of_two_producers", "keep Open.inputs, discard the source in `end`"),
            (
                adder_faults.ServesByArrival,
                "by_order",
                "lowest Open.order is served first: .*in the order of Open.order",
            ),
            (adder_faults.IgnoresPriorities, "by_order", "lowest Open.order is served first"),
            (adder_faults.RefusesAndKeeps, "refused_input", "every input is released: input 1 of request 'refused-0'"),
            (adder_faults.RefusesNothing, "refused_input", "'refused-0' got Done.*raise an OmniError in `feed`"),
            (adder_faults.WaitsForTensors, "incomplete_input", "requests end: the worker stalled, and 'bare'"),
            (
                adder_faults.ReportsNothing,
                "not_before_ready",
                "usage is zero, and 'early' is not over; count each record",
            ),
            (adder_faults.ReportsRowsOnly, "not_before_ready", "usage is zero, and 'early' is not over"),
            (adder_faults.CannotReport, "not_before_ready", "usage does not raise .*in any state"),
            (adder_faults.ReportsNames, "declares", "usage returns numbers by name, not "),
            (adder_faults.KeepsRowsWhenClosed, "closed", "close frees all: .*'rows': 1.*override `close`"),
            (adder_faults.KeepsOutputsWhenClosed, "closed", "close frees all: .*'outputs': 1.*outputs that are lent"),
            (adder_faults.CountsNoRows, "counted", "usage counts held resources: 'rows' was zero in every tick"),
            (adder_faults.KeepsRequests, "not_before_ready", "usage is zero when no request is there; .*'records': 1"),
        ],
    ),
)
def test_the_suite_finds_a_broken_kind(broken: Any, found_by: str, message: str):
    with finds(found_by, f"stage contract broken: .*({message})"):
        check_adder(broken)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": SAMPLES[:1]}, "inputs: are those of 1 requests; give 2 or more"),
        ({"expected": []}, "expected: are of 0 requests, inputs of 3; give one for each"),
    ],
)
def test_arguments_that_make_the_check_empty_are_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        check_adder(AdderKind, **arguments)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("spoil", "before the event that it is released with, .*; call Feed.release with the event"),
        ("copy", "an input is read once it has arrived: .*; ask Feed.arrived"),
        ("scatter", "an input is read once it has arrived: .*; ask Feed.arrived"),
        ("fetch", "has its values from Produced.ready on, .*; record `ready` after the work"),
        ("add_more", "ordered by streams and events: .*; launch work that reads a result on the same stream"),
    ],
)
def test_a_race_names_the_broken_promise_and_the_remedy(other: str, message: str):
    own, far = (
        Access(agent=n, tick=1, stream=f"s{n}", by=by, launch=n, operation="add_", writes=bool(n))
        for n, by in enumerate(("add", other), 1)
    )
    error = broken_by(Race("sums (float32 [4])", 0, own, far))
    assert re.search(f"stage contract broken: .*{message}", str(error))
