"""What stands in the null row, which pads captured batches, reaches no other row: not even NaN does."""

from collections.abc import Callable, Sequence

import pytest
import torch

from omni_ar.inputs import Prompt
from omni_ar.layers.deepstack import DeepstackModel
from omni_ar.run.plan import StepPlan
from omni_ar.run.runner import Runner
from omni_ar.run.step import StepContext
from omni_ar.run.worker import ArWorker
from omni_frames.store import SampleBatch
from omni_vocoder.chunks import ChunkShape
from omni_vocoder.worker import VocoderRequest, VocoderWorker
from tests.support.close_calls import Comparison
from tests.support.omni_engine import CHATS, SHAPES, OmniEngine, answers_alone, assert_all_same
from tests.support.reference import tiny_checkpoint

NAN, HUGE = float("nan"), 3e38
ROWS = 7
"""Of every captured batch: more than there are requests, so the last is always a null row."""
SETTINGS: dict[str, object] = {
    f"{stage}.{name}": value
    for stage in ("thinker", "talker")
    for name, value in {"max_num_seqs": ROWS, "graph_batch_sizes": (ROWS,), "graph_chunk_sizes": (64, 512)}.items()
} | {
    "audio_encoder.graph_lengths": (64,),
    "vision_encoder.graph_lengths": (32,),
    "code2wav.max_num_seqs": ROWS,
    "code2wav.graph_batch_sizes": (ROWS,),
    "code2wav.first_chunk_frames": 3,
    "code2wav.chunk_frames": 5,
}


def runners(omni: OmniEngine) -> dict[str, Runner]:
    workers = {stage: omni.engine._workers[stage] for stage in ("thinker", "talker")}
    return {stage: worker._runner for stage, worker in workers.items() if isinstance(worker, ArWorker)}


def poison(runner: Runner, unused_id: int | None) -> None:
    """Makes NaN of the null block, of the null row's state, and of what phases hand to each other.

    unused_id: one whose embedding is NaN; it becomes the row's newest token.
    """
    state, buffers, pages = runner._state, runner._buffers, runner.pages
    null_row = state.fields.shape[0] - 1
    for blocks_LNB in (pages.kv.key, pages.kv.value):
        blocks_LNB[:, 0] = NAN
    for of_blocks in (pages.hidden, state.next_codes[null_row:]):
        if of_blocks is not None:
            of_blocks[:1] = NAN
    if unused_id is not None:
        state.columns.last[null_row] = unused_id
    buffers.hidden.fill_(NAN)
    buffers.codes_ND.fill_(NAN)
    chunks = runner._captured_chunks._buffers
    assert chunks is not None
    for between in (chunks.inputs_TD, chunks.outputs_TD):
        between.fill_(NAN)
    buffers.logits_NV.fill_(HUGE)


def poison_steps(runner: Runner, unused_id: int | None) -> None:
    """Launches poison before every step, into state that no request owns."""
    execute = runner.execute_model

    def execute_model(plan: StepPlan) -> StepContext:
        runner.device.launch(runner.stream, poison, runner, unused_id)
        return execute(plan)

    vars(runner)["execute_model"] = execute_model


def poison_chunks(vocoder: VocoderWorker) -> None:
    """Fills the context of the vocoder's null row with NaN before every chunk."""
    prepare = vocoder.prepare

    def prepare_poisoned(
        requests: Sequence[VocoderRequest], chunk: ChunkShape
    ) -> Callable[[], SampleBatch[VocoderRequest]]:
        vocoder.device.launch(vocoder.stream, lambda: vocoder._state.carried_RW[-1:].fill_(NAN))
        return prepare(requests, chunk)

    vars(vocoder)["prepare"] = prepare_poisoned


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("shape", ["as written", pytest.param("other sizes", marks=pytest.mark.gpu)])
def test_nan_in_the_null_row_reaches_no_other_row(device: str, shape: str) -> None:
    expected = answers_alone(shape)
    omni = OmniEngine(tiny_checkpoint(**SHAPES[shape]), SETTINGS, device, graphs=True)
    requests = [omni.request(asked) for asked in CHATS]
    thinker, vocoder = runners(omni)["thinker"]._model, omni.engine._workers["code2wav"]
    assert isinstance(thinker, DeepstackModel)
    assert isinstance(vocoder, VocoderWorker)
    embeddings = thinker.embed_tokens.weight
    used = {token for one in expected for token in one.result.ids}
    prompts = [request.inputs["thinker"][0].meta for request in requests]
    used |= {int(token) for one in prompts if isinstance(one, Prompt) for token in one.columns.flatten()}
    unused_id = max(set(range(embeddings.shape[0])) - used)
    with torch.inference_mode():
        embeddings[unused_id] = NAN
        omni.device.synchronize()
    poison_steps(runners(omni)["thinker"], unused_id)
    poison_steps(runners(omni)["talker"], None)
    poison_chunks(vocoder)

    results = omni.run_requests(requests, [0, 3, 5, 9, 14])

    comparison = Comparison()
    assert_all_same(results, expected, comparison)
    comparison.assert_rare()
    with torch.inference_mode():
        omni.device.synchronize()
        for runner in runners(omni).values():
            assert runner._buffers.logits_NV[ROWS - 1].isnan().all(), "the null row computed something else"
