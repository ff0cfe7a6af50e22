"""The adapter against the rules that it carries out, stated the long way."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni.payload import GeneratedTokens, PageSlice, Payload
from omni_ar.inputs import MultimodalEmbedding, Prompt, PromptHidden, StepInputs, TokenCodes
from omni_ar.text_conditioning import TextConditioning, TextConditioningArgs

EOS, PAD = 1000, 1001
IDS = st.integers(0, 99)
CHUNKS = st.lists(st.lists(IDS, max_size=4), max_size=8)


def _args(lead: list[int]) -> TextConditioningArgs:
    columns = np.array([[500, 501, 0], [-1, -1, 9]])
    prompt = Prompt(columns=columns, positions=np.zeros((3, 3), np.int64), next_position=3)
    return TextConditioningArgs(prompt=prompt, lead=tuple(lead), eos=EOS, pad=PAD)


class Heard:
    """What the talker has been given so far: its first text token, and one per step."""

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
    """g0 in the prompt; then g1 to g(N-2), one per step; `eos` in place of g(N-1); then `pad`. Nothing at all if N < 2.

    Where the text was ended from outside, g(N-1) is a token that never came. At any time the talker has every token whose successor
    is known, and no other.
    """
    args, heard, known = _args(lead), Heard(), list(lead)
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


def test_what_the_thinker_never_gives_is_refused() -> None:
    with pytest.raises(TypeError, match="text conditioning reads no TokenCodes"):
        TextConditioning(_args([])).push(Payload(TokenCodes()))
