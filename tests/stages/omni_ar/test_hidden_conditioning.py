"""What the adapter passes on, and when."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from omni.payload import GeneratedTokens, Payload
from omni_ar.hidden_conditioning import HiddenConditioning, HiddenConditioningArgs
from omni_ar.inputs import MultimodalEmbedding, Prompt, PromptHidden, StepInputs, TokenCodes, TokenHidden

NONE, EOS, PAD = -1, 7, 8
PROMPT = Prompt(columns=np.zeros((2, 5), np.int64), positions=np.zeros((3, 5), np.int64), next_position=5)


def hidden(index: int) -> Payload:
    return Payload(TokenHidden(index=index), {"hidden": torch.full((1, 4), float(index))})


def metas(payloads: Sequence[Payload]) -> list[Any]:
    return [payload.meta for payload in payloads]


def test_the_speaker_begins_with_the_first_token_that_was_heard() -> None:
    adapter = HiddenConditioning(HiddenConditioningArgs(prompt=PROMPT, eos=EOS, pad=PAD))
    everything = {"hidden": torch.zeros(3, 4)}
    (embedding,) = adapter.push(Payload(PromptHidden(), everything))
    assert (embedding.meta, embedding.tensors) == (MultimodalEmbedding(name="hidden", index=0), everything)
    assert not adapter.push(Payload(GeneratedTokens(ids=(3,), ends=False)))
    # Of the prompt's last position: that is in the embedding above.
    assert not adapter.push(hidden(0))
    prompt, first = adapter.push(hidden(1))
    assert prompt.meta is PROMPT
    assert (first.meta, float(first.tensors["hidden"][0, 0])) == (MultimodalEmbedding(name="hidden", index=1), 1.0)
    for index in (2, 3):
        (step,) = adapter.push(hidden(index))
        assert isinstance(step.meta, StepInputs)
        assert (step.meta.columns.tolist(), step.meta.pad) == ([[NONE]], None)
        assert float(step.tensors["rows"][0, 0]) == index
    (end,) = adapter.finish("stop")
    assert isinstance(end.meta, StepInputs)
    assert end.meta.pad is not None
    assert (end.meta.columns.tolist(), end.meta.pad.tolist(), end.tensors) == ([[EOS]], [PAD], {})


@pytest.mark.parametrize("tokens", [0, 1])
def test_fewer_than_two_tokens_are_not_spoken(tokens: int) -> None:
    adapter = HiddenConditioning(HiddenConditioningArgs(prompt=PROMPT, eos=EOS, pad=PAD))
    adapter.push(Payload(PromptHidden(), {"hidden": torch.zeros(3, 4)}))
    for index in range(tokens):
        assert not adapter.push(hidden(index))
    assert not adapter.finish("length")


def test_what_no_writer_gives_is_refused() -> None:
    with pytest.raises(TypeError, match="conditioning by hidden states reads no TokenCodes"):
        HiddenConditioning(HiddenConditioningArgs(prompt=PROMPT, eos=EOS, pad=PAD)).push(Payload(TokenCodes()))
