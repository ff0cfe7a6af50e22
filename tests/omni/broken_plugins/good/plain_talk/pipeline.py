"""The graph, its adapter and its front end."""

from collections.abc import Sequence

import msgspec

from omni.checkpoint import Checkpoint
from omni.frontend.base import Chat, Frontend, Prepared, TextDecoder
from omni.frontend.chat import message_texts
from omni.payload import Payload
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from plain_talk.stages import Line, Options


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    return Pipeline(
        family="talk",
        stages=(
            Stage(name="writer", kind="write", model="plain_talk.stages:build", options=Options()),
            Stage(name="singer", kind="sing", model="plain_talk.stages:build", options=Options()),
        ),
        edges=(Edge(producer="writer", consumer="singer", adapter="plain_talk.pipeline:Sung", connector="wire"),),
        outputs=(PipelineOutput(modality="text", stage="writer"), PipelineOutput(modality="audio", stage="singer")),
        frontend="plain_talk.pipeline:Reader",
    )


class Sung:
    """The adapter."""

    def __init__(self, args: msgspec.Struct | None) -> None:
        self.pushed = 0

    def push(self, payload: Payload) -> Sequence[Payload]:
        self.pushed += 1
        return [payload]

    def finish(self, reason: str) -> Sequence[Payload]:
        return []


class Letters:
    """The text decoder."""

    def push(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def finish(self) -> str:
        return ""


class Reader(Frontend):
    def __init__(self, checkpoint: Checkpoint) -> None:
        self.path = checkpoint.path

    def text_decoder(self) -> TextDecoder | None:
        return Letters()

    def prepare(self, chat: Chat) -> Prepared:
        text = "".join(message_texts(chat))
        return Prepared(inputs={"writer": [Payload(Line(text=text))]}, prompt_tokens=len(text))
