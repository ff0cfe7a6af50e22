"""What the family's edges do: media embeddings into prompt segments, thinker tokens into talker input, frames into codes."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from omni.chunks import TokenChunk
from omni.payload import Payload
from omni_ar.inputs import CodeFrame, Prompt, PromptHidden, Segment, StepInputs
from omni_encoder.inputs import Encoded
from omni_vocoder.inputs import CodeFrames


class TalkerArgs(msgspec.Struct, frozen=True, kw_only=True):
    """What the talker's prompt is made of, but for the thinker's text.

    prompt: complete except for the last text id, the first text token. lead: text tokens that stand in the thinker's prompt
    after `<|im_start|>assistant\\n` already. eos, pad: text ids that end the text and follow it.
    """

    prompt: Prompt
    lead: tuple[int, ...]
    eos: int
    pad: int


class ThinkerToTalker:
    """Feeds the talker one text token per step, as the thinker writes them.

    A step needs its token *and* whether it is the last: the last one that the thinker sampled is replaced by `eos`, an end id or
    not, as the published model does it. So a token is passed on when the next one is known, or the end. Where the text was ended
    from outside, by a stop string or because its form was complete, all that came is text, and `eos` follows it. With fewer than
    two tokens, `eos` counted, there is nothing to say.
    """

    def __init__(self, args: msgspec.Struct | None) -> None:
        assert isinstance(args, TalkerArgs)
        self._args = args
        self._ids = list(args.lead)
        self._sent = 0
        self._ended = False

    def push(self, payload: Payload) -> Sequence[Payload]:
        match payload.meta:
            case TokenChunk(ids=ids, ends=ends):
                self._ids += ids
                self._ended = ends
                return self._known()
            case PromptHidden():
                return (Payload(Segment(name="hidden", index=0), payload.tensors),)
            case other:
                raise TypeError(f"the thinker does not produce {type(other).__name__}")

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


class _MediaToThinker:
    """An encoder's output fills the prompt segment of the same index."""

    def __init__(self, name: str) -> None:
        self._name = name

    def push(self, payload: Payload) -> Sequence[Payload]:
        assert isinstance(payload.meta, Encoded)
        return (Payload(Segment(name=self._name, index=payload.meta.index), payload.tensors),)

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()


def audio_to_thinker(args: msgspec.Struct | None) -> _MediaToThinker:
    return _MediaToThinker("audio")


def image_to_thinker(args: msgspec.Struct | None) -> _MediaToThinker:
    return _MediaToThinker("image")


class TalkerToVocoder:
    """Passes codec frames on; the ids of their first codes are of no use to the vocoder."""

    def __init__(self, args: msgspec.Struct | None) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        if isinstance(payload.meta, CodeFrame):
            return (Payload(CodeFrames(count=1), payload.tensors),)
        return ()

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()
