"""A failed step runs again for each of its requests alone: only the faulty one fails, and the others' results are unchanged."""

from collections.abc import Mapping, Sequence

import pytest
from torch import Tensor

from omni.plugin import LogitsProcessorEntry
from omni.testing.faults import FaultyDevice
from omni_ar.model import Batch, PromptTokens
from omni_ar.options import ArOptions
from omni_ar.processors import LogitsProcessor, ProcessedRows, ProcessorRegistry
from tests.support.ar_driver import ArDriver
from tests.support.small_text import SmallText, greedy

PROMPTS = [[(11 * index + 5 * place * place) % 60 for place in range(2 + 3 * index)] for index in range(4)]
TOKENS = 10
MODEL = SmallText()
FAILED = "stage 'text' failed while running a step, in phase {phase}: {error} ("
ANSWERS = [greedy(MODEL, prompt, TOKENS) for prompt in PROMPTS]


@pytest.mark.plants_faults
def test_a_prompt_that_no_model_can_embed_fails_alone():
    model = SmallText()
    model.bad_id = 60
    assert all(60 not in answer for answer in ANSWERS)
    driver = ArDriver(model, options=ArOptions(max_num_seqs=5, block_size=2))
    driver.ask_all(PROMPTS[:2], max_tokens=TOKENS)
    driver.tick()
    driver.ask("bad", [3, 60, 9], max_tokens=TOKENS)
    for index, prompt in enumerate(PROMPTS[2:], 2):
        driver.ask(str(index), prompt, max_tokens=TOKENS)
    driver.run()
    assert str(driver.error("bad")).startswith(FAILED.format(phase="embed_inputs", error="ValueError: bad id"))
    assert driver.tokens("bad") == []
    assert driver.all_tokens(4) == ANSWERS
    assert driver.counter("retries") == 1


@pytest.mark.plants_faults
def test_a_token_that_no_model_can_embed_fails_its_request():
    bad = next(token for token in ANSWERS[2][3:-1] if all(token not in (*PROMPTS[i], *ANSWERS[i]) for i in (0, 1, 3)))
    first = ANSWERS[2].index(bad)
    assert bad not in PROMPTS[2]
    model = SmallText()
    model.bad_id = bad
    driver = ArDriver(model)
    driver.ask_all(PROMPTS, max_tokens=TOKENS)
    driver.run()
    assert "in phase embed_inputs: ValueError: bad id" in str(driver.error("2"))
    assert driver.all_tokens(4) == [*ANSWERS[:2], ANSWERS[2][: first + 1], ANSWERS[3]]
    assert driver.counter("retries") == 1


class ExitingText(SmallText):
    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        if 60 in prompt.columns_CT:
            raise SystemExit(3)
        return super().embed_prompt(prompt)


class Exit(LogitsProcessor):
    width = 0

    def pack(self, args: Mapping[str, object], vocab_size: int) -> Sequence[float]:
        return ()

    def apply(self, logits_RV: Tensor, rows: ProcessedRows) -> Tensor:
        raise SystemExit(3)


@pytest.mark.plants_faults
@pytest.mark.parametrize(
    ("model", "prompt", "processors", "phase"),
    [
        (ExitingText(), [3, 60, 9], None, "embed_inputs"),
        (MODEL, [3, 5, 9], {"exit": {}}, "sample_rows"),
    ],
    ids=["a model", "a processor"],
)
def test_code_of_a_plugin_that_exits_fails_its_request_alone(
    model: SmallText, prompt: list[int], processors: dict[str, dict[str, object]] | None, phase: str
):
    entry = LogitsProcessorEntry(name="exit", processor=f"{__name__}:Exit")
    options = ArOptions(max_num_seqs=5, block_size=2)
    driver = ArDriver(model, options=options, processors=ProcessorRegistry({"exit": entry}, model.shape.vocab_size))
    driver.ask_all(PROMPTS, max_tokens=TOKENS)
    driver.ask("bad", prompt, max_tokens=TOKENS, processors=processors)
    driver.run()
    assert str(driver.error("bad")).startswith(FAILED.format(phase=phase, error="SystemExit: 3"))
    assert driver.tokens("bad") == []
    assert driver.all_tokens(4) == ANSWERS
    assert driver.counter("retries") == 1


class OverwhelmedText(SmallText):
    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        if batch.attention.num_decode == 4:
            raise ValueError("too many")
        return super().forward(x_TD, batch)


@pytest.mark.plants_faults
def test_a_batch_that_the_model_cannot_stand_goes_on_one_by_one():
    driver = ArDriver(OverwhelmedText())
    driver.ask_all(PROMPTS, max_tokens=TOKENS)
    driver.run()
    assert driver.all_tokens(4) == ANSWERS
    assert driver.counter("retries") > 1


TEXT_PHASES = [
    "copy_upload",
    "start_rows",
    "extend_tables",
    "prepare_decodes",
    "place_chunks",
    "run_forward",
    "compute_logits",
    "sample_rows",
    "accept_tokens",
    "post_update",
]


@pytest.mark.parametrize("phase", TEXT_PHASES)
def test_a_fault_in_a_batch_of_one_is_reported_with_stage_and_phase(phase: str):
    device = FaultyDevice()
    driver = ArDriver(MODEL, device, ArOptions(max_num_seqs=1, block_size=2))
    device.faults.plant(("ar", phase), 0, after=True)
    driver.ask("r", PROMPTS[0], max_tokens=TOKENS)
    driver.ask("next", PROMPTS[1], max_tokens=TOKENS)
    driver.run()
    assert str(driver.error("r")).startswith(FAILED.format(phase=phase, error="PlantedError: planted"))
    assert driver.tokens("next") == ANSWERS[1]
    assert driver.counter("retries") == 0
