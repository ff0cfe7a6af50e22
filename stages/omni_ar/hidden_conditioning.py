"""Streaming conditioning by hidden states: a writer stage's hidden state of each token conditions a step of a speaker stage.

The edge between them names the adapter, `"omni_ar.hidden_conditioning:HiddenConditioning"`, and a front end supplies
its arguments, `HiddenConditioningArgs`.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from omni.payload import GeneratedTokens, Payload
from omni_ar.inputs import MultimodalEmbedding, Prompt, PromptHidden, StepInputs, TokenHidden


class HiddenConditioningArgs(msgspec.Struct, frozen=True, kw_only=True):
    """prompt: the speaker's prompt, complete except for embeddings `hidden`: index 0 holds the hidden states of the writer's
    prompt, index 1 that of its first token. none, eos, pad: ids in the steps' one column: in steps with a hidden state, in the step
    that replaces the last one, and in all later steps."""

    prompt: Prompt
    eos: int
    pad: int
    none: int = -1


class HiddenConditioning:
    """Feeds the speaker one hidden state per step: the first token's is part of the prompt, each later one conditions a step.

    `eos` replaces the last token, whether that is an end id or not. With fewer than two tokens there is no speech. Where a stop
    string or a grammar ends the text, every emitted hidden state is used: the last sampled token was not emitted.
    """

    def __init__(self, args: msgspec.Struct | None) -> None:
        assert isinstance(args, HiddenConditioningArgs)
        self._args = args
        self._begun = False

    def push(self, payload: Payload) -> Sequence[Payload]:
        match payload.meta:
            case PromptHidden():
                return (Payload(MultimodalEmbedding(name="hidden", index=0), payload.tensors),)
            # The state of the position that the token was sampled from: the token before it, or the prompt's last.
            case TokenHidden(index=0) | GeneratedTokens():
                return ()
            case TokenHidden(index=1):
                self._begun = True
                embedding = MultimodalEmbedding(name="hidden", index=1)
                return (Payload(self._args.prompt), Payload(embedding, payload.tensors))
            case TokenHidden():
                step = StepInputs(columns=np.array([[self._args.none]]))
                return (Payload(step, {"vectors": payload.tensors["hidden"]}),)
            case other:
                raise TypeError(f"conditioning by hidden states reads no {type(other).__name__}")

    def finish(self, reason: str) -> Sequence[Payload]:
        if not self._begun:
            return ()
        return (Payload(StepInputs(columns=np.array([[self._args.eos]]), pad=np.array([self._args.pad]))),)
