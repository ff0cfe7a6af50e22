"""The text family in the matrix: a tiny Qwen3 with a tokenizer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

from omni.checkpoint import Checkpoint
from omni.config import Layer
from omni.device import Device
from omni.engine import Engine, EngineOptions, EngineRequest, build_engine, resolve_pipeline
from omni.frontend.compile import CompiledSampling
from omni.payload import Payload
from omni.plugin.manager import Plugins, load_plugins
from omni_text.frontend import build as build_frontend
from support.ar_driver import plain_prompt
from support.entry_points import own_entry_points
from support.matrix_family import Family, blocks_for_one
from support.tiny_chat import write_chat_model

_QUESTIONS = (
    "hello",
    "the blue square and the green one, what is in the picture",
    "the blue square and the green one, what is in the",
    "the voice of my",
    "how many people are in the world and who will come to see them",
)


def matrix_plugins(*points: EntryPoint) -> Plugins:
    """The plugins at `points` and the matrix's own processors."""
    plugins = load_plugins([*points, EntryPoint("matrix", "support.matrix_processors", "omni")])
    for record in plugins.records:
        assert record.error is None, record.error
    return plugins


class TextFamily(Family):
    writer = "text"
    stages = ("text",)

    def __init__(self, folder: Path) -> None:
        self.folder = write_chat_model(folder)
        self._checkpoint = Checkpoint(self.folder)
        self._plugins = matrix_plugins(*own_entry_points("ar", "local", "text"))
        self.pipeline = resolve_pipeline(self._checkpoint, self._plugins).pipeline
        vocabulary = build_frontend(self._checkpoint).vocabulary()
        assert vocabulary is not None
        self.vocabulary = vocabulary
        self.ids: Sequence[Sequence[int]] = [vocabulary.encode(question) for question in _QUESTIONS]
        self.prompts = len(self.ids)

    def engine(self, device: Device, settings: Mapping[str, object]) -> Engine:
        plan = resolve_pipeline(self._checkpoint, self._plugins, [Layer("test", settings)])
        return build_engine(plan, self._checkpoint, self._plugins, device, EngineOptions(dtype="float32", graphs=True))

    def few(self, asked: str) -> Mapping[str, int]:
        return {"text": blocks_for_one(max(map(len, self.ids)), self.sets[asked]["text"])}

    def prepared(self, prompt: int, compiled: CompiledSampling, request_id: str, sample_index: int) -> EngineRequest:
        inputs = {"text": [Payload(plain_prompt(self.ids[prompt]))]}
        request = EngineRequest(request_id, frozenset({"text"}), inputs, sampling=compiled.sampling)
        return replace(request, rules=compiled.rules(), sample_index=sample_index)
