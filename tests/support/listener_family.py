"""A model family of two: one writes, the other answers, each step of it conditioned by the hidden state of a written token.

    writer ──► listener

What is written can be asked for without an answer.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec
import numpy as np
import torch

from omni.checkpoint import Checkpoint
from omni.engine import EngineRequest
from omni.hookspecs import hookimpl
from omni.payload import Payload
from omni.pipeline import Edge, Output, Pipeline, Stage
from omni.plugin.entries import ModelFamily
from omni.plugin.manager import Plugins, load_plugins
from omni.sampling import HostRules, SamplingParams
from omni.stage import StageContext
from omni_ar.inputs import Prompt, StepInputs, TokenHidden
from omni_ar.options import ArOptions
from support.ar_driver import plain_prompt
from support.entry_points import own_entry_points
from support.hidden_model import HiddenText
from support.listener_model import TEXTS, Condition, Listener, answered

WRITER, LISTENER = "writer", "listener"
TEXT, ANSWER = "text", "answer"
PAD = 2
_WIDTH = 40
_HERE = "support.listener_family"


class ListenArgs(msgspec.Struct, frozen=True, kw_only=True):
    """prompt: the listener's, which it gets with the first token; None if it has it from the front end."""

    prompt: Prompt | None = None


class ToListener:
    """Each token's hidden state conditions one step. Every fourth step has a text id instead."""

    def __init__(self, args: msgspec.Struct | None) -> None:
        assert args is None or isinstance(args, ListenArgs)
        self._prompt = args.prompt if args is not None else None

    def push(self, payload: Payload) -> Sequence[Payload]:
        if not isinstance(payload.meta, TokenHidden):
            return ()
        index = payload.meta.index
        tensors = {"rows": payload.tensors["hidden"]} if has_row(index) else {}
        step = Payload(StepInputs(columns=np.array([[text_of(index)]])), tensors)
        return (step,) if index or self._prompt is None else (Payload(self._prompt), step)

    def finish(self, reason: str) -> Sequence[Payload]:
        return (Payload(StepInputs(columns=np.empty((1, 0), np.int64), pad=np.array([PAD]))),)


def has_row(index: int) -> bool:
    return index % 4 != 2


def text_of(index: int) -> int:
    """What the step hears beside the hidden state of token `index`."""
    return (3 * index + 1) % TEXTS


def write_checkpoint(folder: Path, credit: int = 64) -> Path:
    """credit: of the edge. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "listener", "credit": credit}))
    return folder


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    options = ArOptions(max_num_seqs=3, block_size=3)
    return Pipeline(
        family="listener",
        stages=(
            Stage(name=WRITER, kind="ar", model=f"{_HERE}:build_writer", options=options),
            Stage(name=LISTENER, kind="ar", model=f"{_HERE}:build_listener", options=options),
        ),
        edges=(
            Edge(producer=WRITER, consumer=LISTENER, adapter=f"{_HERE}:ToListener", credit=checkpoint.config["credit"]),
        ),
        outputs=(Output(modality=TEXT, stage=WRITER), Output(modality=ANSWER, stage=LISTENER)),
        frontend=f"{_HERE}:none",
    )


def writer() -> HiddenText:
    return HiddenText(_WIDTH)


def listener() -> Listener:
    return Listener(_WIDTH)


def build_writer(context: StageContext) -> HiddenText:
    return writer().to(context.device.torch_device, context.dtype)


def build_listener(context: StageContext) -> Listener:
    return listener().to(context.device.torch_device, context.dtype)


def ask(
    request_id: str,
    written: Sequence[int],
    heard: Sequence[int],
    *,
    from_frontend: bool = False,
    priority: int = 0,
    sampling: Mapping[str, SamplingParams] = {},
    rules: HostRules | None = None,
) -> EngineRequest:
    """written, heard: the prompts of the two. from_frontend: whether the listener has its prompt at once, and not by the edge."""
    prompt = plain_prompt(heard)
    inputs = {WRITER: [Payload(plain_prompt(written))]} | ({LISTENER: [Payload(prompt)]} if from_frontend else {})
    edges = {} if from_frontend else {f"{WRITER}->{LISTENER}": ListenArgs(prompt=prompt)}
    told = {WRITER: rules} if rules is not None else {}
    return EngineRequest(request_id, frozenset({TEXT, ANSWER}), inputs, edges, sampling, priority, rules=told)


def conditions(prompt: Sequence[int], tokens: Sequence[int]) -> list[Condition]:
    """What the listener hears of a writer that was given `prompt` and gave out `tokens`, the long way."""
    with torch.inference_mode():
        rows_TW = writer().emitted_whole([*prompt, *tokens])[len(prompt) - 1 : -1]
    return [(text_of(index), row_W if has_row(index) else None) for index, row_W in enumerate(rows_TW)]


def answer(written: Sequence[int], tokens: Sequence[int], heard: Sequence[int], max_tokens: int) -> list[int]:
    """What the listener says greedily to that."""
    with torch.inference_mode():
        return answered(listener(), heard, conditions(written, tokens), PAD, max_tokens)


def listener_plugins() -> Plugins:
    """The family, and what it needs."""
    plugins = load_plugins([EntryPoint("listener", _HERE, "omni"), *own_entry_points("ar", "local")])
    for record in plugins.records:
        assert record.error is None, record.error
    return plugins


@hookimpl
def omni_model_families() -> Sequence[ModelFamily]:
    return [
        ModelFamily(
            name="listener", model_types=("listener",), pipeline=f"{_HERE}:pipeline", tiny=f"{_HERE}:write_checkpoint"
        )
    ]
