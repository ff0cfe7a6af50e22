"""Streaming text conditioning: a writer stage's text conditions a speaker stage while it is still being written.

The edge between them names the adapter, `"omni_ar.text_conditioning:TextConditioning"`, and a front end supplies its
arguments, `TextConditioningArgs`.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from omni.payload import GeneratedTokens, Payload
from omni_ar.inputs import MultimodalEmbedding, Prompt, PromptHidden, StepInputs


class TextConditioningArgs(msgspec.Struct, frozen=True, kw_only=True):
    """The speaker's prompt, without the text of the writer. prompt: complete except for the last id of its first column, the first
    text token. Steps have that column. lead: text tokens that are already at the end of the writer's prompt. eos, pad: text ids
    that end the text and follow it."""

    prompt: Prompt
    lead: tuple[int, ...]
    eos: int
    pad: int


class TextConditioning:
    """Feeds the speaker one text token per step, as the writer generates them, and the writer's prompt hidden states as
    embedding `hidden`.

    A step depends on its token *and* on whether it is the last: `eos` replaces the last token that the writer sampled,
    whether that is an end id or not. So a token is passed on once the next one, or the end, is known. Where a stop
    string or a complete grammar ended the text, all emitted tokens are text, and `eos` follows them. With fewer than
    two tokens, `eos` included, there is no speech.
    """

    def __init__(self, args: msgspec.Struct | None) -> None:
        assert isinstance(args, TextConditioningArgs)
        self._args = args
        self._ids = list(args.lead)
        self._sent = 0
        self._ended = False

    def push(self, payload: Payload) -> Sequence[Payload]:
        match payload.meta:
            case GeneratedTokens(ids=ids, ends=ends):
                self._ids += ids
                self._ended = ends
                return self._known()
            case PromptHidden():
                return (Payload(MultimodalEmbedding(name="hidden", index=0), payload.tensors),)
            case other:
                raise TypeError(f"text conditioning reads no {type(other).__name__}")

    def finish(self, reason: str) -> Sequence[Payload]:
        if not self._ended and reason != "length" and len(self._ids) > len(self._args.lead):
            self._ids.append(self._args.eos)
        if len(self._ids) < 2:
            return ()
        end = StepInputs(columns=_column([self._args.eos]), pad=np.array([self._args.pad], np.int64))
        return (*self._known(), Payload(end))

    def _known(self) -> list[Payload]:
        inputs: list[Payload] = []
        if self._sent == 0 and len(self._ids) >= 2:
            columns = self._args.prompt.columns.copy()
            columns[0, -1] = self._ids[0]
            inputs.append(Payload(msgspec.structs.replace(self._args.prompt, columns=columns)))
            self._sent = 1
        certain = self._ids[self._sent : -1] if self._sent else []
        if certain:
            inputs.append(Payload(StepInputs(columns=_column(certain))))
            self._sent += len(certain)
        return inputs


def _column(ids: list[int]) -> NDArray[np.int64]:
    return np.array([ids], np.int64)
