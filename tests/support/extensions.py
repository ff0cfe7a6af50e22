"""A third party's plugin that extends pipelines of other families.

`quiet` puts a stage behind the one that gives the sound. `mood` puts a classifier on the thinker's hidden states, beside everything
else. Neither knows a family's code or checkpoint.
"""

from dataclasses import dataclass, field
from typing import cast

import msgspec
import torch

from omni import hookimpl
from omni.device import COMPLETED
from omni.payload import AudioChunk, Payload, RequestHiddenStates
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from omni.plugin import PipelineExtension, StageKindEntry
from omni.stage import Feed, MailboxWorker, Open, PlainStage, Produced, StageContext, StageUsage

LAYER = 2
_HERE = __name__


class QuietOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """volume: factor of every sample."""

    volume: float = 0.5


class MoodOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """moods: names of the classes."""

    moods: tuple[str, ...] = ("calm", "glad", "sad")


class Mood(msgspec.Struct, frozen=True, kw_only=True):
    """label: the class. scores: of all, in order. positions: read."""

    label: str
    scores: tuple[float, ...]
    positions: int


def classify(hidden_nD: torch.Tensor, moods: int) -> torch.Tensor:
    """Scores `[moods]`: a fixed projection of the mean over the positions."""
    weights_DM = torch.linspace(-1, 1, hidden_nD.shape[1] * moods, dtype=torch.float64).reshape(-1, moods)
    return hidden_nD.double().mean(0) @ weights_DM.sin()


@dataclass(slots=True, eq=False)
class Inputs:
    """A request's inputs in host memory, in order. ended: no further one comes."""

    feeds: list[Feed] = field(default_factory=list)
    ended: bool = False
    paused: bool = False


class HostWorker(MailboxWorker[Inputs]):
    """Answers each input with a struct, on the host."""

    def open(self, message: Open) -> Inputs:
        return Inputs()

    def feed(self, request: Inputs, message: Feed) -> None:
        request.feeds.append(message)

    def end(self, request: Inputs, source: str) -> None:
        request.ended = True

    def pause(self, request: Inputs) -> None:
        request.paused = True

    def resume(self, request: Inputs) -> None:
        request.paused = False

    def drop(self, request: Inputs) -> None:
        for feed in request.feeds:
            feed.release(COMPLETED)
        request.feeds.clear()

    def advance(self) -> bool:
        moved = False
        for request_id, request in list(self.requests.items()):
            while not request.paused and request.feeds and request.feeds[0].arrived:
                feed = request.feeds.pop(0)
                self.outbox.append(Produced(request_id, Payload(self.answer(feed.payload)), COMPLETED))
                feed.release(COMPLETED)
                moved = True
            if request.ended and not request.feeds:
                self.finish(request_id, "stop", {})
                moved = True
        return moved

    def answer(self, payload: Payload) -> msgspec.Struct:
        raise NotImplementedError

    def usage(self) -> StageUsage:
        return {"requests": len(self.requests)}

    def counters(self) -> dict[str, int]:
        return {}


class QuietWorker(HostWorker):
    def __init__(self, name: str, options: QuietOptions) -> None:
        super().__init__(name)
        self._volume = options.volume

    def answer(self, payload: Payload) -> msgspec.Struct:
        chunk = payload.meta
        assert isinstance(chunk, AudioChunk)
        return AudioChunk(samples=chunk.samples * self._volume, sample_rate=chunk.sample_rate)


class MoodWorker(HostWorker):
    def __init__(self, name: str, options: MoodOptions) -> None:
        super().__init__(name)
        self._moods = options.moods

    def answer(self, payload: Payload) -> msgspec.Struct:
        assert isinstance(payload.meta, RequestHiddenStates)
        hidden_nD = payload.tensors["hidden"]
        assert isinstance(hidden_nD, torch.Tensor)
        scores = classify(hidden_nD, len(self._moods)).tolist()
        label = self._moods[scores.index(max(scores))]
        return Mood(label=label, scores=tuple(scores), positions=len(hidden_nD))


class QuietKind:
    name = "quiet"
    options = QuietOptions

    def load(self, context: StageContext) -> PlainStage:
        return PlainStage(QuietWorker(context.stage.name, cast(QuietOptions, context.options)))


class MoodKind:
    name = "mood"
    options = MoodOptions

    def load(self, context: StageContext) -> PlainStage:
        return PlainStage(MoodWorker(context.stage.name, cast(MoodOptions, context.options)))


class HiddenOnly:
    """The adapter of the classifier: the text is not for it."""

    def __init__(self, args: msgspec.Struct | None) -> None: ...

    def push(self, payload: Payload) -> tuple[Payload, ...]:
        return (payload,) if isinstance(payload.meta, RequestHiddenStates) else ()

    def finish(self, reason: str) -> tuple[Payload, ...]:
        return ()


def quiet(pipeline: Pipeline) -> Pipeline:
    (voice,) = (output for output in pipeline.outputs if output.modality == "audio")
    return pipeline.extended(
        stages=[Stage(name="quiet", kind="quiet", options=QuietOptions())],
        edges=[Edge(producer=voice.stage, consumer="quiet")],
        outputs=[PipelineOutput(modality="audio", stage="quiet")],
    )


def mood(pipeline: Pipeline) -> Pipeline:
    thinker = pipeline.stage("thinker")
    options = msgspec.structs.replace(thinker.options, hidden_layers=(LAYER,))
    edge = Edge(producer="thinker", consumer="mood", adapter=f"{_HERE}:HiddenOnly", memory="host", hidden_states=True)
    return pipeline.extended(
        stages=[
            msgspec.structs.replace(thinker, options=options),
            Stage(name="mood", kind="mood", options=MoodOptions()),
        ],
        edges=[edge],
        outputs=[PipelineOutput(modality="mood", stage="mood")],
    )


def broken(pipeline: Pipeline) -> Pipeline:
    return pipeline.extended(edges=[pipeline.edge("nobody", "thinker")])


@hookimpl
def omni_stage_kinds() -> list[StageKindEntry]:
    return [
        StageKindEntry(name="quiet", kind=f"{_HERE}:QuietKind"),
        StageKindEntry(name="mood", kind=f"{_HERE}:MoodKind"),
    ]


@hookimpl
def omni_pipeline_extensions() -> list[PipelineExtension]:
    return [
        PipelineExtension(name="quiet", extend=f"{_HERE}:quiet"),
        PipelineExtension(name="mood", extend=f"{_HERE}:mood", families=("qwen3_omni", "qwen2_5_omni")),
        PipelineExtension(name="broken", extend=f"{_HERE}:broken"),
    ]
