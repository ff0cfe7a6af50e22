"""The table "Phases by case" of docs/step.md: every step of each case launches what the table says, and every row occurs."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from omni.device import CpuDevice, Graph, Phase, Stream, Upload
from omni.sampling import HostRules
from omni.testing.stages.driver import SOURCE
from omni_ar.drafters import PagedDrafter
from omni_ar.model import CodecModel, FrameEnd
from omni_ar.options import ArOptions
from omni_ar.run.launch import StepLaunch
from omni_ar.run.pack_chunks import StepTensors
from omni_ar.run.phases import HAND_OVER
from omni_ar.run.runner import Runner
from tests.stages.omni_ar.test_head_drafts import driver_of
from tests.stages.omni_ar.test_pipeline import Pipelined
from tests.support.ar_driver import TEXT, ArDriver
from tests.support.deep_models import Deep, DeepConditioned, DeepTalker, filled
from tests.support.entry_points import REPOSITORY
from tests.support.small_codec import SmallCodec, codec_prompt
from tests.support.small_text import NothingTwice, SmallText
from tests.support.trained_heads import trained

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("cheap_passes")]

TOKEN_POINT = "token point"


@dataclass(frozen=True)
class Row:
    """graphs: by "decode" and "chunks"; "yes" outside of graphs, "" where the phase is not launched."""

    phase: str
    graphs: dict[str, str]
    conditions: str

    def holds(self, facts: dict[str, bool]) -> bool:
        wanted = self.conditions.split(", ") if self.conditions else []
        return all(any(_fact(facts, word) for word in each.split(" or ")) for each in wanted)


def _fact(facts: dict[str, bool], word: str) -> bool:
    return not facts[word.removeprefix("not ")] if word.startswith("not ") else facts[word]


@cache
def table() -> tuple[Row, ...]:
    text = (REPOSITORY / "docs/step.md").read_text().split("\n## Phases by case\n")[1].split("\n## ")[0]
    lines = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)[1:]
    cells = [[cell.strip().strip("`") for cell in line.split("|")] for line in lines]
    return tuple(Row(phase, {"decode": decode, "chunks": chunks}, given) for phase, decode, chunks, given in cells)


@dataclass
class Step:
    """launched: phases and the token point, each with its graph, or "yes" outside of one."""

    facts: dict[str, bool] = field(default_factory=dict)
    kind: str = ""
    edited: bool = False
    launched: list[tuple[str, str]] = field(default_factory=list)


class StepRecorder(CpuDevice):
    """Records the launches of steps on the main stream."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.present: Step | None = None
        self._graph = "yes"

    def replay(self, stream: Stream, graph: Graph) -> None:
        name = graph.name.removeprefix("ar-").split("-")[0]
        self._graph = {"prompts": "mixed", "propose": "drafts"}.get(name, name)
        super().replay(stream, graph)
        self._graph = "yes"

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        self._note(stream, phase.__name__)
        super().launch(stream, phase, *buffers)

    def moment(self, stream: Stream, name: str) -> None:
        assert name == HAND_OVER
        self._note(stream, TOKEN_POINT)
        super().moment(stream, name)

    def _note(self, stream: Stream, name: str) -> None:
        if self.present is None or stream.name != "ar":
            return
        # Tokens of several steps may be due.
        if name != "accept_received" or not self.present.launched:
            self.present.launched.append((name, self._graph))


def facts_of(runner: Runner, step: StepLaunch, upload: Upload | None, tensors: StepTensors) -> dict[str, bool]:
    limits, model, chunks = runner._limits, runner.model, step.packed.chunks
    pipeline = runner._transfers._hidden._pipeline if runner._transfers and runner._transfers._hidden else None
    drafter = runner._drafter
    return {
        "first": pipeline is None or pipeline.first,
        "last": runner.has_last_layers,
        "ranges": pipeline is not None,
        "rank 0": runner._followers is not None,
        "drafter": limits.drafts > 0,
        "weights": isinstance(drafter, PagedDrafter),
        "features": isinstance(drafter, PagedDrafter) and drafter.feature_shape is not None,
        "codec": isinstance(model, CodecModel),
        "frame end": isinstance(model, CodecModel) and model.frame_end is not None,
        "hidden": runner.pages.hidden is not None,
        "check_logits": limits.check_logits,
        "upload": upload is not None,
        "turns": step.area is not None,
        "starts": step.packed.starts is not None,
        "blocks": step.packed.new_blocks is not None,
        "decode rows": step.shape is not None and step.shape.decodes > 0,
        "replay": chunks is not None and chunks.replayed > 0,
        "given": runner._transfers is not None
        and bool(tensors.saved or tensors.embeddings or runner._step_vectors(step.packed)),
        "verifies": step.drafts > 0,
        "drafts next": step.draft_blocks > 0,
        "sampled": step.count > 0,
        "captured": step.captured,
        "log-probabilities": step.logprobs is not None,
        "scored prompt": chunks is not None and chunks.scored_ids.size > 0,
    }


@contextmanager
def recorded() -> Iterator[None]:
    """While entered, runners on a `StepRecorder` record their steps."""
    begin, launch, sample = Runner._begin, Runner._launch, Runner.sample_tokens

    def began(self: Runner, newest_input: int) -> None:
        assert isinstance(self.device, StepRecorder)
        self.device.present = Step()
        begin(self, newest_input)

    def launched(self: Runner, step: StepLaunch, upload: Upload | None, tensors: StepTensors, *more: Any) -> Any:
        assert isinstance(self.device, StepRecorder)
        assert self.device.present is not None
        present = self.device.present
        present.facts = facts_of(self, step, upload, tensors)
        present.kind = "decode" if step.shape is None else "chunks"
        present.facts["tokens due"] = any(name == "accept_received" for name, _ in present.launched)
        present.edited = step.packed.edits is not None
        return launch(self, step, upload, tensors, *more)

    def sampled(self: Runner, context: Any) -> Any:
        step = sample(self, context)
        assert isinstance(self.device, StepRecorder)
        assert self.device.present is not None
        self.device.steps.append(self.device.present)
        self.device.present = None
        return step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "_begin", began)
        patch.setattr(Runner, "_launch", launched)
        patch.setattr(Runner, "sample_tokens", sampled)
        yield


OPTIONS = ArOptions(max_num_seqs=3, block_size=4, graph_chunk_sizes=(4, 9), max_num_batched_tokens=9)
PROMPTS = [[(7 * index + 3 * place * place) % 61 for place in range(2 + 5 * index)] for index in range(5)]


def ask_text(driver: ArDriver, **sampling: Any) -> None:
    """Each request joins when those before it decode."""
    for index, prompt in enumerate(PROMPTS):
        driver.ask(str(index), prompt, **{"max_tokens": 12, **sampling})
        for _ in range(3):
            driver.tick()
    driver.gather_all()


def speak(driver: ArDriver) -> None:
    for index in range(4):
        prompt = codec_prompt([(3 * index + at) % 23 for at in range(6)], [(5 * index + at) % 37 for at in range(6)])
        driver.speak(str(index), prompt, [1, 2, 3], pad=2, max_tokens=12)
    driver.gather_all()


def ask_conditioned(driver: ArDriver) -> None:
    for index, prompt in enumerate(PROMPTS):
        driver.ask(str(index), prompt, sources=(SOURCE, TEXT), max_tokens=12)
        driver.condition(str(index), [1, 2], pad=3)
    driver.gather_all()


class EndingCodec(SmallCodec):
    frame_end = FrameEnd(36, 3)


def alone(model: Any, options: ArOptions, captured: bool, ask: Callable[..., None], **given: Any) -> list[Step]:
    device = StepRecorder()
    driver = ArDriver(model, device, options, captured=captured)
    with recorded():
        ask(driver, **given)
    return device.steps


def headed(captured: bool) -> list[Step]:
    device = StepRecorder()
    adaptive = {"adaptive_drafts": True, "graph_chunk_sizes": (4, 9), "max_num_batched_tokens": 9}
    driver = driver_of(trained("eagle3"), device, 3, captured, **adaptive)
    with recorded():
        ask_text(driver, max_tokens=40)
    return device.steps


def cut(size: int, options: ArOptions, captured: bool, ask: Callable[..., None], **more: Any) -> list[Step]:
    """Steps of all ranks."""
    devices = list[StepRecorder]()

    def device() -> StepRecorder:
        devices.append(StepRecorder())
        return devices[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.stages.omni_ar.test_pipeline.CpuDevice", device)
        stage = Pipelined(size, options, captured=captured, **more)
    with recorded():
        ask(stage.driver)
        stage.end()
    assert len(devices) == size
    assert all(each.steps for each in devices)
    return [step for each in devices for step in each.steps]


DRAFTED = replace(OPTIONS, drafter="deep", drafter_args={"noise": 0.1}, draft_tokens=3)
WRONG = replace(DRAFTED, drafter_args={"noise": 50.0})
TALKS: dict[str, Any] = {"kind": lambda fails: DeepTalker()}
CASES: dict[str, Callable[[bool], list[Step]]] = {
    "text": lambda captured: alone(filled(Deep()), OPTIONS, captured, ask_text),
    "checked": lambda captured: alone(filled(Deep()), replace(OPTIONS, check_logits=True), captured, ask_text),
    "scores": lambda captured: alone(filled(Deep()), OPTIONS, captured, ask_text, logprobs=2, prompt_logprobs=1),
    "host processors": lambda captured: alone(
        filled(Deep()), OPTIONS, captured, ask_text, rules=HostRules(host_processors=(NothingTwice(61, most=9),))
    ),
    "hidden states": lambda captured: alone(SmallText(payload=True, emits_tokens=True), OPTIONS, captured, ask_text),
    "ngram": lambda captured: alone(filled(Deep()), replace(OPTIONS, drafter="ngram"), captured, ask_text),
    "draft model": lambda captured: alone(filled(Deep()), DRAFTED, captured, ask_text),
    "head": headed,
    "codes": lambda captured: alone(SmallCodec(), replace(OPTIONS, num_blocks=9), captured, speak),
    "codes that end": lambda captured: alone(EndingCodec(), OPTIONS, captured, speak),
    "pipeline": lambda captured: cut(3, OPTIONS, captured, ask_text),
    "pipeline, codes": lambda captured: cut(2, replace(OPTIONS, num_blocks=9), captured, speak, **TALKS),
    "pipeline, conditioned": lambda captured: cut(
        2, OPTIONS, captured, ask_conditioned, kind=lambda fails: DeepConditioned()
    ),
    "pipeline, drafts": lambda captured: cut(2, DRAFTED, captured, ask_text),
    "pipeline, ngram": lambda captured: cut(2, replace(OPTIONS, drafter="ngram"), captured, ask_text),
    "pipeline, wrong drafts": lambda captured: cut(2, WRONG, captured, lambda driver: ask_text(driver, max_tokens=40)),
}


@cache
def steps(case: str, captured: bool) -> list[Step]:
    return CASES[case](captured)


def expected(step: Step, captured: bool) -> list[tuple[str, str]]:
    launched = ((row.phase, row.graphs[step.kind]) for row in table() if row.holds(step.facts))
    eager = {"sample"} if step.edited else set()
    return [(phase, graph if captured and graph not in eager else "yes") for phase, graph in launched if graph]


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("case", CASES)
def test_steps_launch_the_phases_of_the_table(case: str, captured: bool):
    for step in steps(case, captured):
        wanted, found = expected(step, captured), step.launched
        if captured and step.kind == "decode" and not step.facts["first"]:
            wanted, found = sorted(wanted), sorted(found)  # hidden states arrive before the graph
        assert found == wanted, step.facts


def test_every_row_of_the_table_occurs():
    found = [step for case in CASES for step in steps(case, True)]
    never = [
        (row.phase, kind)
        for row in table()
        for kind, graph in row.graphs.items()
        if graph and not any(step.kind == kind and row.holds(step.facts) for step in found)
    ]
    assert not never
