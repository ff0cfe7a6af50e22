"""The matrix on a model whose every token emits a hidden state: what is said and what is read of it are the same in each cell.

What is told alone, one step at a time, is what the long way gives.
"""

import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.config import Layer
from omni.device import Device
from omni.engine import Engine, EngineOptions, EngineRequest, build_engine, resolve_pipeline
from omni.frontend.compile import CompiledSampling
from omni.frontend.vocabulary import Vocabulary
from omni.payload import Payload
from omni.sampling import NO_RULES
from tests.support.ar_driver import plain_prompt
from tests.support.entry_points import own_entry_points
from tests.support.hidden_family import CLERK, READER, WRITER, model_of, write_checkpoint
from tests.support.hidden_model import ReadOut
from tests.support.matrix import (
    AGAINST,
    GREEDY,
    NEAR,
    PLAYED,
    SAYS_THE_SAME,
    SETS,
    Cell,
    Family,
    blocks_for_one,
    covering,
    product,
)
from tests.support.matrix_families import matrix_plugins
from tests.support.matrix_run import AsAsked, cut, run_cell
from tests.support.tiers import chosen

pytestmark = pytest.mark.thorough

# The hidden-state family in the matrix. Its ids write single letters.
#
# Shape legend: V vocabulary.

LETTERS = '{}":, ' + string.ascii_lowercase + string.digits + string.ascii_uppercase[:19]
_LENGTHS = (3, 14, 13, 5, 18)


class HiddenFamily(Family):
    writer = WRITER
    stages = (WRITER,)
    prompts = len(_LENGTHS)
    vocabulary = Vocabulary(tuple(letter.encode() for letter in LETTERS), lambda text: [LETTERS.index(c) for c in text])

    def __init__(self, folder: Path) -> None:
        self._checkpoint = Checkpoint(write_checkpoint(folder, readers=(READER, CLERK), credit=4))
        self._plugins = matrix_plugins(
            *own_entry_points("ar", "local"), EntryPoint("hidden", "tests.support.hidden_family", "omni")
        )
        self.pipeline = resolve_pipeline(self._checkpoint, self._plugins).pipeline
        self.ids: Sequence[Sequence[int]] = [
            # The longer ones begin alike.
            [(7 * place + 5 + number * (place > 11 or length < 12)) % len(LETTERS) for place in range(length)]
            for number, length in enumerate(_LENGTHS)
        ]
        self.model = model_of(self._checkpoint)
        self._readout = ReadOut(self._checkpoint.config["width"])

    def engine(self, device: Device, settings: Mapping[str, object]) -> Engine:
        plan = resolve_pipeline(self._checkpoint, self._plugins, [Layer("test", settings)])
        return build_engine(plan, self._checkpoint, self._plugins, device, EngineOptions(dtype="float32", graphs=True))

    def few(self, asked: str) -> Mapping[str, int]:
        return {WRITER: blocks_for_one(max(map(len, self.ids)), self.sets[asked][WRITER])}

    def prepared(self, prompt: int, compiled: CompiledSampling, request_id: str, sample_index: int) -> EngineRequest:
        ids = self.ids[prompt]
        inputs = {WRITER: [Payload(plain_prompt(ids, payload_positions=self.read_positions(prompt)))]}
        modalities = frozenset({"text", "read", "filed"})
        request = EngineRequest(request_id, modalities, inputs, sampling=compiled.sampling)
        return replace(request, rules=compiled.rules(), sample_index=sample_index)

    def read_positions(self, prompt: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Of the prompt, whose hidden states are read."""
        return np.arange(0, len(self.ids[prompt]), 3)

    def said(self, asked: str, prompt: int) -> list[int]:
        """All tokens that the long way gives: everything recomputed for each, by transformers' processors."""
        compiled = self.compiled(asked)
        params = compiled.sampling[WRITER]
        host_processors = compiled.rules().get(WRITER, NO_RULES).host_processors
        rules = AsAsked(params, len(self.ids[prompt]), host_processors)
        ids = list(self.ids[prompt])
        with torch.inference_mode():
            while len(ids) < len(self.ids[prompt]) + (params.max_tokens or 0):
                logits_V: Tensor = self.model.head @ self.model.whole(ids)[-1]
                ids.append(int(rules(torch.tensor([ids]), logits_V[None].clone()).argmax()))
                over = [processor.push(ids[-1]) for processor in host_processors]
                if any(over) or ids[-1] in (params.stop_token_ids or ()):
                    break
        return ids[len(self.ids[prompt]) :]

    def readings(self, prompt: int, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The numbers that readers must give for the prompt and for `tokens`, the long way, one after the other."""
        ids = self.ids[prompt]
        rows = self._readout.read(self.model.emitted_whole([*ids, *tokens]).numpy())
        of_prompt, of_tokens = rows[self.read_positions(prompt)], rows[len(ids) - 1 : -1]
        return torch.from_numpy(of_prompt).flatten(), torch.from_numpy(of_tokens).flatten()


CHOSEN = covering(PLAYED)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> HiddenFamily:
    return HiddenFamily(tmp_path_factory.mktemp("matrix") / "model")


@pytest.mark.parametrize("asked", SETS)
def test_alone_it_is_told_what_the_long_way_gives(family: HiddenFamily, asked: str) -> None:
    for prompt in range(family.prompts):
        told = family.alone(asked, prompt)
        params = family.sets[asked][WRITER]
        stops = params.stop or ()
        given, held = cut(family.said(asked, prompt), stops, family.vocabulary)
        assert (told.tokens, list(told.end(WRITER)[1])) == (given, held)
        # A token's hidden state comes with the next one, given out or not. Who reaches the limit, or says an end, has none.
        ended = told.end(WRITER)[0] == "stop" and (held or params.structured is not None)
        of_prompt, of_tokens = family.readings(prompt, [*given, 0] if ended else given)
        for reader in ("read", "filed"):
            np.testing.assert_allclose(told.numbers(f"{reader} of the prompt"), of_prompt, rtol=0, atol=NEAR)
            np.testing.assert_allclose(told.numbers(f"{reader} of the tokens"), of_tokens, rtol=0, atol=NEAR)


@pytest.mark.parametrize("asked", [name for name in SETS if name != GREEDY])
def test_each_set_changes_what_is_said(family: HiddenFamily, asked: str) -> None:
    against = AGAINST.get(asked, GREEDY)
    same = [family.alone(asked, n).tokens == family.alone(against, n).tokens for n in range(family.prompts)]
    assert all(same) if asked in SAYS_THE_SAME else sum(same) <= family.prompts // 2


def test_texts_with_a_form_have_it(family: HiddenFamily) -> None:
    told = [family.alone("JSON schema", prompt) for prompt in range(family.prompts)]
    texts = [b"".join(map(family.vocabulary.written, one.tokens)) for one in told if one.end(WRITER)[0] == "stop"]
    assert len(texts) > 2
    assert {json.loads(text)["color"] for text in texts} <= {"red", "blue"}


@pytest.mark.parametrize("cell", chosen(CHOSEN[::2], CHOSEN), ids=str)
def test_each_request_is_told_what_it_is_told_alone(family: HiddenFamily, cell: Cell) -> None:
    run_cell(family, cell)


@pytest.mark.slow
@pytest.mark.parametrize("asked", PLAYED)
def test_every_cell_of_the_matrix(family: HiddenFamily, asked: str) -> None:
    for cell in product([asked]):
        run_cell(family, cell)
