"""The files that docs/tour.md names on three paths are those that a request passes through, with the engine in a thread."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from omni import Omni
from omni.api.request import UnreadEvents
from omni.api.request_output import RequestOutput
from omni.api.request_queue import PreparingThread
from omni.api.serial_executor import SerialExecutor
from omni.engine.command_queue import LocalCommandQueue
from omni.engine.orchestrator import Orchestrator
from omni.frontend.chat import MultimodalFrontend
from omni.payload import GeneratedTokens
from omni.payload.copier import PayloadCopier
from omni_ar.inputs import Prompt, PromptHidden, StepInputs
from omni_ar.run.output_processor import OutputProcessor
from omni_ar.run.runner import Runner
from omni_ar.run.source import LocalTokens
from omni_ar.run.worker import ArWorker
from omni_ar.text_conditioning import TextConditioning
from omni_local.connector import LocalSender
from tests.support.entry_points import REPOSITORY
from tests.support.tiny_omni import lengths, picture, user

TOUR = (REPOSITORY / "docs" / "tour.md").read_text().partition("## Files of three paths")[2].split("\n- **")[1:]
LEAVES = {
    "omni/frontend/messages.py",
    "omni/frontend/template/chat_template.py",
    "omni/frontend/encoding/encoder.py",
    "omni/frontend/text.py",
    "omni/engine/admission.py",
    "stages/omni_ar/run/scheduler.py",
    "omni/payload/payload.py",
    "omni/stage/messages.py",
}
"""Called by a file of a path, which continues with their result, or data."""

ROOTS = {"omni", "stages", "plugins", "connectors"}

Point = tuple[type, str, Callable[..., bool]]


def always(*_: Any, **__: Any) -> bool:
    return True


PATHS: tuple[tuple[Point, ...], ...] = (
    (
        (SerialExecutor, "submit", always),
        (PreparingThread, "put", always),
        (MultimodalFrontend, "encode", always),
        (LocalCommandQueue, "put", always),
        (Orchestrator, "_open", always),
        (ArWorker, "feed", lambda _, request, message: isinstance(message.payload.meta, Prompt)),
        (Runner, "execute_model", always),
    ),
    (
        (LocalTokens, "sample", always),
        (OutputProcessor, "_process", always),
        (UnreadEvents, "deliver", lambda _, at, event: isinstance(getattr(event, "meta", None), GeneratedTokens)),
        (RequestOutput, "_text", always),
    ),
    (
        (OutputProcessor, "_process", always),
        (LocalSender, "send", lambda _, payload, *__: isinstance(payload.meta, PromptHidden)),
        (TextConditioning, "push", lambda _, payload: isinstance(payload.meta, PromptHidden)),
        (ArWorker, "feed", lambda _, request, message: isinstance(message.payload.meta, StepInputs)),
        (PayloadCopier, "copy", always),
        (Runner, "execute_model", always),
    ),
)
"""The points at which the object is handed to another thread or stage, or launched."""


def files_on_stack() -> set[str]:
    frame: FrameType | None = sys._getframe(1)
    files = set[str]()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(REPOSITORY) and path.relative_to(REPOSITORY).parts[0] in ROOTS:
            files.add(str(path.relative_to(REPOSITORY)))
        frame = frame.f_back
    return files


@pytest.mark.parametrize("number", range(3))
def test_the_files_of_a_path_are_those_on_the_stack(number: int, omni: Omni, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[tuple[str, str], set[str]] = {}
    for owner, name, applies in PATHS[number]:
        called, key = getattr(owner, name), (owner.__name__, name)

        def tapped(*args: Any, called: Any = called, key: Any = key, applies: Any = applies, **kwargs: Any) -> Any:
            if key not in found and applies(*args):
                found[key] = files_on_stack() | {str(Path(called.__code__.co_filename).relative_to(REPOSITORY))}
            return called(*args, **kwargs)

        monkeypatch.setattr(owner, name, tapped)
    list(omni.generate(user(picture(), "what do you see"), sampling=lengths(4, 4)))
    assert len(found) == len(PATHS[number])
    text = TOUR[number].partition("\n\n")[0].partition("In an engine process:")[0]
    named = set(re.findall(r"\]\(\.\./([^)]+\.py)\)", text))
    assert set.union(*found.values()) == named - LEAVES
