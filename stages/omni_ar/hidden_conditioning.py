"""Streaming conditioning by hidden states: a stage that speaks hears what another emits for each token, as soon as it is there.

The edge between them names the adapter, `"omni_ar.hidden_conditioning:HiddenConditioning"`, and a front end gives its arguments,
`HiddenConditioningArgs`.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from omni.payload import GeneratedTokens, Payload
from omni_ar.inputs import MultimodalEmbedding, Prompt, PromptHidden, StepInputs, TokenHidden


class HiddenConditioningArgs(msgspec.Struct, frozen=True, kw_only=True):
    """prompt: of the speaker, complete but for embeddings `hidden`: 0 is what is emitted for the writer's prompt, 1 for its first
    token.

    none, eos, pad: in the steps' one column, where a row is heard, in place of the last row, and from then on.
    """

    prompt: Prompt
    eos: int
    pad: int
    none: int = -1


class HiddenConditioning:
    """Feeds the speaker one row per step.

    The first token's is part of the prompt, and each later step hears one. The last token is not heard, an end id or not: `eos` is,
    in its place. With fewer than two tokens there is nothing to say. Where a stop string or a grammar ends the text, all that was
    given out is heard: the last token is one that nobody gets.
    """

    def __init__(self, args: msgspec.Struct | None) -> None:
        assert isinstance(args, HiddenConditioningArgs)
        self._args = args
        self._begun = False

    def push(self, payload: Payload) -> Sequence[Payload]:
        match payload.meta:
            case PromptHidden():
                return (Payload(MultimodalEmbedding(name="hidden", index=0), payload.tensors),)
            # It is of the position that a token was sampled from: that of the token before, or the prompt's last.
            case TokenHidden(index=0):
                return ()
            case TokenHidden(index=1):
                self._begun = True
                return (
                    Payload(self._args.prompt),
                    Payload(MultimodalEmbedding(name="hidden", index=1), payload.tensors),
                )
            case TokenHidden():
                step = StepInputs(columns=np.array([[self._args.none]]))
                return (Payload(step, {"rows": payload.tensors["hidden"]}),)
            case GeneratedTokens():
                return ()
            case other:
                raise TypeError(f"conditioning by hidden states reads no {type(other).__name__}")

    def finish(self, reason: str) -> Sequence[Payload]:
        if not self._begun:
            return ()
        return (Payload(StepInputs(columns=np.array([[self._args.eos]]), pad=np.array([self._args.pad]))),)
