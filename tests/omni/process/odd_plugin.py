"""An echo family whose messages cannot pass between two processes, for some prompts."""

import json
import logging
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec

from omni.checkpoint import Checkpoint
from omni.device import COMPLETED
from omni.frontend.base import Chat, Prepared, TextPart
from omni.hookspecs import hookimpl
from omni.payload import Payload
from omni.pipeline import Pipeline, PipelineOutput, Stage
from omni.plugin.entries import ModelFamily, StageKindEntry
from omni.plugin.manager import Plugins, load_plugins
from omni.stage import Feed, PlainStage, Produced, StageContext
from tests.support.echo_family import EchoFrontend, EchoOptions, EchoWorker
from tests.support.entry_points import own_entry_points

_log = logging.getLogger(__name__)


class Note(msgspec.Struct, frozen=True):
    text: str


def _local_struct() -> msgspec.Struct:
    class Local(msgspec.Struct):
        number: int = 1

    return Local()


OUTPUTS = {
    "an unknown type out": _local_struct(),
    "a wrong field out": Note(text=5),  # type: ignore[arg-type]
    "no Unicode out": Note(text="\udcff"),
}
INPUTS = {"an unknown type in": _local_struct(), "a wrong field in": Note(text=5)}  # type: ignore[arg-type]


@hookimpl
def omni_model_families() -> list[ModelFamily]:
    return [ModelFamily(name="odd", model_types=("odd",), pipeline=f"{__name__}:pipeline")]


@hookimpl
def omni_stage_kinds() -> list[StageKindEntry]:
    return [StageKindEntry(name="odd", kind=f"{__name__}:OddKind")]


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    writer = Stage(name="writer", kind="odd", model=f"{__name__}:Note", options=EchoOptions())
    output = PipelineOutput(modality="text", stage="writer")
    return Pipeline(family="odd", stages=(writer,), outputs=(output,), frontend=f"{__name__}:OddFrontend")


class OddFrontend(EchoFrontend):
    def prepare(self, chat: Chat) -> Prepared:
        prepared = super().prepare(chat)
        (part,) = chat.messages[-1].content
        assert isinstance(part, TextPart)
        meta = INPUTS.get(part.text)
        return prepared if meta is None else replace(prepared, inputs={"writer": [Payload(meta)]})


class OddWorker(EchoWorker):
    def feed(self, request, message: Feed) -> None:
        super().feed(request, message)
        text = "".join(map(chr, request.ids))
        if text in OUTPUTS:
            self.outbox.append(Produced(message.request_id, Payload(OUTPUTS[text]), COMPLETED, for_user=True))
        if text == "log":
            for number in range(100):
                _log.info("record %d", number)
            _log.warning("no Unicode: \udcff")
            _log.warning("%d", "no number")


class OddKind:
    name = "odd"
    options = EchoOptions

    def load(self, context: StageContext) -> PlainStage:
        assert isinstance(context.options, EchoOptions)
        return PlainStage(OddWorker(context.options.tokens_per_tick))


def odd_model(folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "odd", "speaks": False}))
    return folder


def odd_plugins() -> Plugins:
    return load_plugins([EntryPoint("odd", __name__, "omni"), *own_entry_points("local", "shm", "cuda_ipc")])
