"""The adapters that families share, and conditioning by text or hidden states against its rules, stated the long way."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni.payload import Encoded, GeneratedTokens, PageSlice, Payload
from omni_ar.adapters import EncodedToEmbedding, FramesToCodes, TokensToCodes, audio_embeddings, image_embeddings
from omni_ar.hidden_conditioning import HiddenConditioning, HiddenConditioningArgs
from omni_ar.inputs import MultimodalEmbedding, Prompt, PromptHidden, StepInputs, TokenCodes, TokenHidden
from omni_ar.text_conditioning import TextConditioning, TextConditioningArgs
from omni_frames.request import CodeFrames


@pytest.mark.parametrize(("factory", "name"), [(audio_embeddings, "audio"), (image_embeddings, "image")])
def test_media_fill_the_embedding_of_their_index(factory: Callable[[None], EncodedToEmbedding], name: str) -> None:
    adapter, embeddings = factory(None), torch.zeros(5, 8)

    (payload,) = adapter.push(Payload(Encoded(index=3), {"embeddings": embeddings}))

    assert payload.meta == MultimodalEmbedding(name=name, index=3)
    assert payload.tensors["embeddings"] is embeddings
    assert adapter.finish("stop") == ()


def test_frames_pass_on_as_codes_and_their_ids_do_not() -> None:
    adapter, pages = FramesToCodes(None), PageSlice(torch.zeros(2, 4, 8, dtype=torch.int64), np.arange(1))

    assert adapter.push(Payload(GeneratedTokens(ids=(4,)))) == ()
    (payload,) = adapter.push(Payload(TokenCodes(), {"codes": pages}))

    assert payload.meta == CodeFrames(count=1)
    assert payload.tensors == {"codes": pages}
    assert adapter.finish("stop") == ()


def test_codes_go_on_without_the_one_that_ends_them() -> None:
    adapter = TokensToCodes(None)
    (frames,) = adapter.push(Payload(GeneratedTokens(ids=(5, 6), ends=False)))
    assert isinstance(frames.meta, CodeFrames)
    assert frames.meta.codes is not None
    assert (frames.meta.count, frames.meta.codes.tolist(), frames.tensors) == (2, [[5], [6]], {})
    (last,) = adapter.push(Payload(GeneratedTokens(ids=(9, 40), ends=True)))
    assert isinstance(last.meta, CodeFrames)
    assert last.meta.codes is not None
    assert last.meta.codes.tolist() == [[9]]
    assert not adapter.push(Payload(GeneratedTokens(ids=(40,), ends=True)))
    assert not adapter.finish("stop")


EOS, PAD = 1000, 1001
IDS = st.integers(0, 99)
CHUNKS = st.lists(st.lists(IDS, max_size=4), max_size=8)


def _args(lead: list[int]) -> TextConditioningArgs:
    columns = np.array([[500, 501, 0], [-1, -1, 9]])
    prompt = Prompt(columns=columns, positions=np.zeros((3, 3), np.int64), next_position=3)
    return TextConditioningArgs(prompt=prompt, lead=tuple(lead), eos=EOS, pad=PAD)


class TalkerTokens:
    """The talker's text tokens so far: its first one, and one per step."""

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []
        self.steps: list[int] = []
        self.pad: int | None = None

    def take(self, payload: Payload) -> None:
        assert not payload.tensors
        match payload.meta:
            case Prompt() as prompt:
                assert not self.steps
                self.prompts.append(prompt)
            case StepInputs(columns=columns, pad=pad):
                assert self.pad is None
                assert columns.shape[0] == 1
                self.steps += columns[0].tolist()
                self.pad = None if pad is None else int(pad[0])


@given(chunks=CHUNKS, lead=st.lists(IDS, max_size=3), end=st.sampled_from(["end id", "length", "outside"]))
def test_thinker_to_talker(chunks: list[list[int]], lead: list[int], end: str) -> None:
    """g0 in the prompt; then g1 to g(N-2), one per step; `eos` in place of g(N-1); then `pad`. No token if N < 2.

    Where the text was ended from outside, g(N-1) is a token that never arrived. At any time the talker has every token whose
    successor is known, and no other.
    """
    args, heard, known = _args(lead), TalkerTokens(), list(lead)
    adapter = TextConditioning(args)

    for place, chunk in enumerate(chunks, 1):
        known += chunk
        ends = end == "end id" and place == len(chunks)
        for payload in adapter.push(Payload(GeneratedTokens(ids=tuple(chunk), ends=ends))):
            heard.take(payload)
        spoken = [int(prompt.columns[0, -1]) for prompt in heard.prompts] + heard.steps
        assert spoken == ([] if len(known) < 2 else known[:-1])
        assert heard.pad is None
    for payload in adapter.finish("length" if end == "length" else "stop"):
        heard.take(payload)

    if end == "outside" and len(known) > len(lead):
        known.append(EOS)
    if len(known) < 2:
        assert (heard.prompts, heard.steps, heard.pad) == ([], [], None)
        return
    assert [int(prompt.columns[0, -1]) for prompt in heard.prompts] == known[:1]
    assert heard.steps == [*known[1:-1], EOS]
    assert heard.pad == PAD
    assert args.prompt.columns[0, -1] == 0, "the request's own prompt was written to"
    assert (heard.prompts[0].columns[:, :-1] == args.prompt.columns[:, :-1]).all()
    assert heard.prompts[0].columns[1, -1] == 9


@pytest.mark.parametrize(
    ("reason", "ends", "steps"), [("stop", True, [[EOS]]), ("length", False, [[EOS]]), ("stop", False, [[3], [EOS]])]
)
def test_the_last_token_is_spoken_only_if_the_text_was_ended_from_outside(
    reason: str, ends: bool, steps: list[list[int]]
) -> None:
    adapter = TextConditioning(_args([]))
    adapter.push(Payload(GeneratedTokens(ids=(1, 2, 3), ends=ends)))

    metas = [payload.meta for payload in adapter.finish(reason)]

    assert [column.columns[0].tolist() for column in metas if isinstance(column, StepInputs)] == steps
    assert len(metas) == len(steps)


def test_hidden_states_pass_at_once() -> None:
    pages = PageSlice(torch.zeros(2, 4, 8), np.arange(3))

    (payload,) = TextConditioning(_args([])).push(Payload(PromptHidden(), {"hidden": pages}))

    assert payload.meta == MultimodalEmbedding(name="hidden", index=0)
    assert payload.tensors == {"hidden": pages}


def test_outputs_that_condition_nothing_are_refused() -> None:
    with pytest.raises(TypeError, match="text conditioning reads no TokenCodes"):
        TextConditioning(_args([])).push(Payload(TokenCodes()))
    with pytest.raises(TypeError, match="conditioning by hidden states reads no TokenCodes"):
        hidden_conditioning().push(Payload(TokenCodes()))


PROMPT = Prompt(columns=np.zeros((2, 5), np.int64), positions=np.zeros((3, 5), np.int64), next_position=5)


def hidden(index: int) -> Payload:
    return Payload(TokenHidden(index=index), {"hidden": torch.full((1, 4), float(index))})


def first_of(payload: Payload, name: str) -> float:
    tensor = payload.tensors[name]
    assert isinstance(tensor, torch.Tensor)
    return float(tensor[0, 0])


def hidden_conditioning() -> HiddenConditioning:
    return HiddenConditioning(HiddenConditioningArgs(prompt=PROMPT, eos=EOS, pad=PAD))


def test_speech_begins_with_the_first_token_that_was_heard() -> None:
    adapter = hidden_conditioning()
    everything = {"hidden": torch.zeros(3, 4)}
    (embedding,) = adapter.push(Payload(PromptHidden(), everything))
    assert (embedding.meta, embedding.tensors) == (MultimodalEmbedding(name="hidden", index=0), everything)
    assert not adapter.push(Payload(GeneratedTokens(ids=(3,), ends=False)))
    # Of the prompt's last position: that is in the embedding above.
    assert not adapter.push(hidden(0))
    prompt, first = adapter.push(hidden(1))
    assert prompt.meta is PROMPT
    assert (first.meta, first_of(first, "hidden")) == (MultimodalEmbedding(name="hidden", index=1), 1.0)
    for index in (2, 3):
        (step,) = adapter.push(hidden(index))
        assert isinstance(step.meta, StepInputs)
        assert (step.meta.columns.tolist(), step.meta.pad) == ([[-1]], None)
        assert first_of(step, "vectors") == index
    (end,) = adapter.finish("stop")
    assert isinstance(end.meta, StepInputs)
    assert end.meta.pad is not None
    assert (end.meta.columns.tolist(), end.meta.pad.tolist(), end.tensors) == ([[EOS]], [PAD], {})


@pytest.mark.parametrize("tokens", [0, 1])
def test_fewer_than_two_tokens_are_not_spoken(tokens: int) -> None:
    adapter = hidden_conditioning()
    adapter.push(Payload(PromptHidden(), {"hidden": torch.zeros(3, 4)}))
    for index in range(tokens):
        assert not adapter.push(hidden(index))
    assert not adapter.finish("length")
