"""A small random model whose decode steps are conditioned by a text id and a device row, and the same model as a reference
implementation.

Shape legend: T tokens, R rows, D width, W width of step rows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.engine import EngineRequest
from omni.hookspecs import hookimpl
from omni.payload import Payload
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from omni.plugin.entries import ModelFamily
from omni.plugin.manager import Plugins
from omni.sampling import HostRules, SamplingParams
from omni.stage import StageContext
from omni_ar.inputs import Prompt, StepInputs, TokenHidden
from omni_ar.model import ArShape, NextTokens
from omni_ar.options import ArOptions
from tests.support.ar_driver import plain_prompt
from tests.support.hidden_model import HiddenText
from tests.support.plugins import family_of, plugins_of
from tests.support.small_text import WIDTH, SmallText, random_matrix

TEXTS = 23

Condition = tuple[int, Tensor | None]
"""The conditioning of a step: a text id, and a row `[W]` if there is one."""


class ConditionedText(SmallText):
    """heard: width of the rows."""

    def __init__(self, heard: int = 64, vocab: int = 53, positions: int = 96) -> None:
        super().__init__(vocab, positions)
        generator = torch.Generator().manual_seed(heard)
        self.heard = heard
        self.text_table = random_matrix(TEXTS, WIDTH, generator)
        self.hearing = random_matrix(WIDTH, heard, generator)

    @property
    def shape(self) -> ArShape:
        return replace(super().shape, step_columns=("text",), step_width=self.heard)

    def embed_next(self, step: NextTokens) -> Tensor:
        heard_RD = torch.tanh(step.vectors_RE @ self.hearing.T / 8)
        return self._embed(step.ids_R) + self.text_table[step.columns_SR[0]] + heard_RD


class WordlessConditionedText(ConditionedText):
    """Steps have rows alone."""

    @property
    def shape(self) -> ArShape:
        return replace(super().shape, step_columns=())

    def embed_next(self, step: NextTokens) -> Tensor:
        none_1R = torch.zeros_like(step.ids_R)[None]
        return super().embed_next(replace(step, columns_SR=none_1R))


def answered(
    model: ConditionedText, prompt: Sequence[int], heard: Sequence[Condition], pad: int, max_tokens: int
) -> list[int]:
    """Greedy tokens, with a full recomputation for each. heard: text ids of the first steps after the prompt. pad: that of later
    ones."""
    made: list[int] = []
    inputs = [model.embeddings[token] for token in prompt]
    while True:
        scores = (model.head @ model.layers.whole(torch.stack(inputs))[-1]).tolist()
        made.append(max(range(len(scores)), key=scores.__getitem__))
        if len(made) == max_tokens:
            return made
        text, row_W = heard[len(made) - 1] if len(made) <= len(heard) else (pad, None)
        row_W = torch.zeros(model.heard) if row_W is None else row_W
        embedded_RD = model.embed_next(
            NextTokens(torch.tensor(made[-1:]), torch.tensor([[text]]), torch.empty(1, 0), row_W[None])
        )
        inputs.append(embedded_RD[0])


# A model family of two: one writes, the other answers, each step of it conditioned by the hidden state of a written token.
#
# writer ──► answerer
#
# The writer's text is an output too.

WRITER, ANSWERER = "writer", "answerer"
TEXT, ANSWER = "text", "answer"
PAD = 2
_WIDTH = 40
_HERE = "tests.support.conditioned"


class ConditionArgs(msgspec.Struct, frozen=True, kw_only=True):
    """prompt: the answerer's, which it gets with the first token; None if it has it from the front end."""

    prompt: Prompt | None = None


class ToAnswerer:
    """Each token's hidden state conditions one step. Every fourth step has a text id instead."""

    def __init__(self, args: msgspec.Struct | None) -> None:
        assert args is None or isinstance(args, ConditionArgs)
        self._prompt = args.prompt if args is not None else None

    def push(self, payload: Payload) -> Sequence[Payload]:
        if not isinstance(payload.meta, TokenHidden):
            return ()
        index = payload.meta.index
        tensors = {"vectors": payload.tensors["hidden"]} if has_row(index) else {}
        step = Payload(StepInputs(columns=np.array([[text_of(index)]])), tensors)
        return (step,) if index or self._prompt is None else (Payload(self._prompt), step)

    def finish(self, reason: str) -> Sequence[Payload]:
        return (Payload(StepInputs(columns=np.empty((1, 0), np.int64), pad=np.array([PAD]))),)


def has_row(index: int) -> bool:
    return index % 4 != 2


def text_of(index: int) -> int:
    """The text id of the step that the hidden state of token `index` conditions."""
    return (3 * index + 1) % TEXTS


def write_checkpoint(folder: Path, credit: int = 64) -> Path:
    """credit: of the edge. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "conditioned", "credit": credit}))
    return folder


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    options = ArOptions(max_num_seqs=3, block_size=3)
    return Pipeline(
        family="conditioned",
        stages=(
            Stage(name=WRITER, kind="ar", model=f"{_HERE}:build_writer", options=options),
            Stage(name=ANSWERER, kind="ar", model=f"{_HERE}:build_answerer", options=options),
        ),
        edges=(
            Edge(producer=WRITER, consumer=ANSWERER, adapter=f"{_HERE}:ToAnswerer", credit=checkpoint.config["credit"]),
        ),
        outputs=(PipelineOutput(modality=TEXT, stage=WRITER), PipelineOutput(modality=ANSWER, stage=ANSWERER)),
        frontend=f"{_HERE}:none",
    )


def writer() -> HiddenText:
    return HiddenText(_WIDTH)


def answerer() -> ConditionedText:
    return ConditionedText(_WIDTH)


def build_writer(context: StageContext) -> HiddenText:
    return writer().to(context.device.torch_device, context.dtype)


def build_answerer(context: StageContext) -> ConditionedText:
    return answerer().to(context.device.torch_device, context.dtype)


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
    """written, heard: the prompts of the two. from_frontend: whether the front end gives the answerer its prompt, instead of the
    edge."""
    prompt = plain_prompt(heard)
    inputs = {WRITER: [Payload(plain_prompt(written))]} | ({ANSWERER: [Payload(prompt)]} if from_frontend else {})
    edges = {} if from_frontend else {f"{WRITER}->{ANSWERER}": ConditionArgs(prompt=prompt)}
    stage_rules = {WRITER: rules} if rules is not None else {}
    return EngineRequest(
        request_id,
        frozenset({TEXT, ANSWER}),
        inputs,
        edges=edges,
        sampling=sampling,
        priority=priority,
        rules=stage_rules,
    )


def conditions(prompt: Sequence[int], tokens: Sequence[int]) -> list[Condition]:
    """The answerer's conditioning by a writer with this prompt and these tokens, everything recomputed."""
    with torch.inference_mode():
        rows_TW = writer().emitted_whole([*prompt, *tokens])[len(prompt) - 1 : -1]
    return [(text_of(index), row_W if has_row(index) else None) for index, row_W in enumerate(rows_TW)]


def answer(written: Sequence[int], tokens: Sequence[int], heard: Sequence[int], max_tokens: int) -> list[int]:
    """The answerer's greedy tokens for that."""
    with torch.inference_mode():
        return answered(answerer(), heard, conditions(written, tokens), PAD, max_tokens)


def conditioned_plugins() -> Plugins:
    """The family, and its stage kinds and connectors."""
    return plugins_of("ar", "local", conditioned=_HERE)


@hookimpl
def omni_model_families() -> Sequence[ModelFamily]:
    return [family_of("conditioned", _HERE)]
