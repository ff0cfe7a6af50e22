"""The example's own attention over the paged cache against the same model without a cache: in batches, in chunks, preempted,
captured, beside the prefix cache; and as docs/attention.md shows it."""

import math
import re
import runpy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from omni_ar.model import LayerSink
from omni_ar.options import ArOptions
from tests.support.ar_driver import ArDriver
from tests.support.entry_points import REPOSITORY

HOME = REPOSITORY / "examples" / "attention"
EXAMPLE = runpy.run_path(str(HOME / "relative_bias.py"))
PROMPTS = [[(7 * index + 3 * place) % 61 for place in range(1 + 9 * index)] for index in range(4)]
TOKENS = 12


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(5)
    made = EXAMPLE["RelativeBiasModel"]().requires_grad_(False)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, 1.5 * parameter.shape[-1] ** -0.5)
    return made


def attended(layer: Any, x_TD: Tensor) -> Tensor:
    """One query after the other, without masks or pages."""
    q_THW, k_THW, v_THW = layer.qkv(x_TD).view(len(x_TD), 3, EXAMPLE["HEADS"], -1).unbind(1)
    rows = []
    for place in range(len(x_TD)):
        distances = [min(place - key, EXAMPLE["DISTANCES"] - 1) for key in range(place + 1)]
        scores = torch.einsum("hw,lhw->hl", q_THW[place], k_THW[: place + 1]) / math.sqrt(q_THW.shape[2])
        weights = (scores + layer.bias.weight[distances].T).softmax(-1)
        rows.append(torch.einsum("hl,lhw->hw", weights, v_THW[: place + 1]).flatten())
    out_TD: Tensor = layer.out(torch.stack(rows))
    return out_TD


def greedy(model: Any, prompt: Sequence[int]) -> list[int]:
    ids = list(prompt)
    for _ in range(TOKENS):
        x_TD = model.table.weight[ids]
        for layer in model.layers:
            x_TD = x_TD + attended(layer.attention, layer.attention_norm(x_TD))
            x_TD = x_TD + layer.mlp(layer.mlp_norm(x_TD))
        ids.append(int((model.norm(x_TD[-1]) @ model.table.weight.T).argmax()))
    return ids[len(prompt) :]


@pytest.fixture(scope="module")
def expected(model: Any) -> list[list[int]]:
    answers = [greedy(model, prompt) for prompt in PROMPTS]
    assert sum(len(set(answer)) for answer in answers) > 4 * len(answers), "a degenerate model shows nothing"
    return answers


CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "one batch": ({}, False),
    "chunks": ({"max_num_batched_tokens": 7}, False),
    "few blocks": ({"num_blocks": 12, "max_model_len": 44}, False),
    "captured": ({"max_num_batched_tokens": 30}, True),
}


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_the_model_without_a_cache(model: Any, expected: list[list[int]], case: str) -> None:
    options, captured = CASES[case]
    stage = ArDriver(model, options=ArOptions(max_num_seqs=4, block_size=4, **options), captured=captured)
    for turn in range(2):  # the second finds the prefixes of the first
        for index, prompt in enumerate(PROMPTS):
            stage.ask(f"{turn}.{index}", prompt, max_tokens=TOKENS, ignore_eos=True)
            stage.tick()
        stage.run()
        assert [stage.tokens(f"{turn}.{index}") for index in range(len(PROMPTS))] == expected
    assert (stage.counter("preemptions") > 0) == (case == "few blocks")
    assert (stage.counter("cached_tokens") > 0) == (case != "few blocks")


class PlusOne(nn.Module):
    def forward(self, x_TD: Tensor, batch: Any) -> Tensor:
        return x_TD + 1


def test_states_of_layers_are_stored(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model._modules, "layers", nn.ModuleList([PlusOne(), PlusOne()]))
    width = EXAMPLE["WIDTH"]
    sink = LayerSink((0, 1, 2), torch.zeros(2, 4, 3 * width), torch.tensor([6, 1, 3]))
    x_TD = torch.randn(3, width)
    hidden_TD = model.forward(x_TD, SimpleNamespace(layers=sink))
    sink.check()
    stored_TLD = sink.pages.flatten(0, 1)[sink.slots_T].unflatten(1, (3, width))
    torch.testing.assert_close(stored_TLD, torch.stack([x_TD, x_TD + 1, model.norm(x_TD + 2)], 1))
    assert torch.equal(hidden_TD, stored_TLD[:, 2])


def test_the_tutorial_stores_states_as_the_example_does() -> None:
    source, page = (
        (HOME / "relative_bias.py").read_text(),
        (REPOSITORY / "docs" / "tutorials" / "family.md").read_text(),
    )
    (shown,) = re.findall(r"```python\n( *def forward[^`]*batch.layers.*?)```", page, re.DOTALL)
    assert shown in source


def test_docs_show_the_attention_as_it_is() -> None:
    source, page = (HOME / "relative_bias.py").read_text(), (REPOSITORY / "docs" / "attention.md").read_text()
    (shown,) = re.findall(r"```python\n(class BiasedAttention.*?)```", page, re.DOTALL)
    assert shown.rstrip() in source
    assert "def _attend" in shown
