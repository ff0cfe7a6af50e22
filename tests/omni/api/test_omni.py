"""The synchronous interface, on a family that echoes."""

import gc
import signal
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from omni import Omni, Output, SamplingParams
from omni.errors import InputError, OmniError, StageError
from tests.support.echo_family import BREAK, GATES, RATE, SAMPLES, echo_model, echo_plugins, eventually, pitch
from tests.support.echo_omni import ENDLESS


def sung(text: str) -> torch.Tensor:
    return torch.tensor([pitch(character) for character in text]).repeat_interleave(SAMPLES)


def together(outputs: list[Output]) -> str:
    return "".join(output.text for output in outputs)


def test_streams_text_and_audio(omni: Omni) -> None:
    outputs = list(omni.generate("hello"))
    assert together(outputs) == "hello"
    audio = [output for output in outputs if output.audio is not None]
    assert torch.equal(torch.cat([output.audio for output in audio if output.audio is not None]), sung("hello"))
    assert {output.sample_rate for output in audio} == {RATE}
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert all(output.tokens or output.text or output.audio is not None for output in outputs[:-1])
    assert [chr(token) for output in outputs for token in output.tokens] == list("hello")
    last = outputs[-1]
    assert last.finish_reasons == {"writer": "stop", "singer": "stop"}
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.tokens) == (5, {"writer": 5})


def test_a_whole_result_has_text_sound_and_finish_reasons(omni: Omni, tmp_path: Path) -> None:
    result = omni.generate([{"role": "user", "content": "hello"}], voice="high", stream=False)
    assert result.text == "hello"
    assert result.audio is not None
    assert result.audio.dtype == torch.float32
    assert torch.equal(result.audio, sung("hello"))
    assert result.error is None
    result.save(tmp_path / "a.wav")
    samples, rate = soundfile.read(tmp_path / "a.wav")
    assert rate == RATE
    np.testing.assert_allclose(samples, result.audio.numpy(), atol=2**-15)


def test_without_speech_a_result_has_no_sound(omni: Omni) -> None:
    result = omni.generate("hello", modalities=("text",), stream=False)
    assert (result.text, result.audio, result.sample_rate) == ("hello", None, None)
    assert result.finish_reasons == {"writer": "stop"}
    with pytest.raises(InputError, match="this result has none"):
        result.save("never.wav")


def test_without_text_a_result_has_sound_alone(omni: Omni) -> None:
    result = omni.generate("hello", modalities=["audio"], stream=False)
    assert result.text == ""
    assert result.audio is not None


def test_metrics_add_up(omni: Omni) -> None:
    metrics = omni.generate("hello", stream=False).metrics
    assert metrics.queued is not None
    assert metrics.prepare is not None
    assert metrics.ttft is not None
    assert metrics.first_audio is not None
    assert metrics.rtf is not None
    assert (
        0 <= metrics.queued <= metrics.queued + metrics.prepare <= metrics.ttft <= metrics.first_audio <= metrics.total
    )
    assert metrics.audio_seconds == pytest.approx(5 * SAMPLES / RATE)
    assert metrics.first_audio <= metrics.rtf * metrics.audio_seconds <= metrics.total
    writer = metrics.stages["writer"]
    assert writer.counts == {"tokens": 5}
    assert writer.tokens_per_second == pytest.approx(5 / writer.seconds)
    assert writer.seconds <= metrics.total
    assert metrics.stages["singer"].tokens_per_second is None


@pytest.mark.parametrize("sampling", [SamplingParams(max_tokens=3), {"writer": SamplingParams(max_tokens=3)}])
def test_sampling_reaches_the_text_stage(omni: Omni, sampling: Any) -> None:
    result = omni.generate("hello", sampling=sampling, stream=False)
    assert result.text == "hel"
    assert result.finish_reasons["writer"] == "length"


def test_a_request_with_priority_and_salt_is_answered(omni: Omni) -> None:
    assert omni.generate("hello", priority=-2, cache_salt="mine", stream=False).text == "hello"
    assert set(omni.counters()) == {"writer", "singer"}


def test_a_list_gives_results_in_order(omni: Omni) -> None:
    texts = [f"request {index} " * (index % 7 + 1) for index in range(60)]
    requests: list[Any] = [[{"role": "user", "content": text}] if len(text) % 2 else text for text in texts]
    assert [result.text for result in omni.generate(requests, stream=False)] == texts
    assert [result.text for result in omni.generate(tuple(texts[:3]), stream=False)] == texts[:3]


def test_a_list_streams_mixed(omni: Omni) -> None:
    texts = ["a" * 50, "b" * 50, "c" * 50]
    got: dict[int, list[Output]] = defaultdict(list)
    order = []
    for output in omni.generate(texts):
        got[output.index].append(output)
        order.append(output.index)
    assert [together(got[index]) for index in range(3)] == texts
    assert [sum(output.finished for output in got[index]) for index in range(3)] == [1, 1, 1]
    assert order != sorted(order), "the requests ran one after the other"


def test_one_failing_request_of_a_list_fails_alone(omni: Omni) -> None:
    bad_image = [{"role": "user", "content": [{"type": "image_url", "image_url": b"no picture"}]}]
    requests: list[Any] = ["one", "", f"two{BREAK}three", bad_image, "crash", "four"]
    results = omni.generate(requests, stream=False)
    kinds = [InputError, StageError, InputError, StageError]
    assert [type(result.error) for result in results] == [type(None), *kinds, type(None)]
    assert [result.text for result in results] == ["one", "", "tw", "", "", "four"]
    assert "messages[0].content[0].image_url" in str(results[3].error)
    assert "'frontend' failed while preparing the request: ValueError: a bug" in str(results[4].error)
    outputs = list(omni.generate(requests))
    errors = {output.index: output.error for output in outputs if output.finished}
    assert [type(errors[index]) for index in range(6)] == [type(result.error) for result in results]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [("", InputError, "hold no text"), (f"a{BREAK}", StageError, "a broken character"), ("crash", StageError, "a bug")],
)
def test_a_single_failing_request_raises(
    omni: Omni, prompt: str, error: type[OmniError], words: str, stream: bool
) -> None:
    with pytest.raises(error, match=words):
        list(omni.generate(prompt)) if stream else omni.generate(prompt, stream=False)
    assert omni.generate("still there", stream=False).text == "still there"


def test_an_unknown_voice_is_the_front_ends_to_refuse(omni: Omni) -> None:
    with pytest.raises(InputError, match="use one of low, high"):
        omni.generate("hello", voice="shrill", stream=False)


@pytest.mark.parametrize("messages", [[], 3, None, ["a", {"role": "user", "content": "b"}]])
def test_invalid_messages_are_refused(omni: Omni, messages: Any) -> None:
    with pytest.raises(InputError, match="messages"):
        omni.generate(messages, stream=False)


def test_closing_the_stream_cancels_the_request(omni: Omni) -> None:
    stream = omni.generate("abc", sampling=ENDLESS)
    assert next(stream).index == 0
    assert not omni.idle
    stream.close()
    assert eventually(lambda: omni.idle)
    assert list(stream) == []


def test_a_dropped_stream_cancels_its_request(omni: Omni) -> None:
    """UnreadEvents, left in its loop, or in a cycle that the collector finds."""
    omni.generate("abc", sampling=ENDLESS)
    assert eventually(lambda: omni.idle)
    for output in omni.generate(["abc", "def"], sampling=ENDLESS):
        if output.audio is not None:
            break
    assert eventually(lambda: omni.idle)
    cycle: list[Any] = [omni.generate("abc", sampling=ENDLESS)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert eventually(lambda: omni.idle)


def test_a_stream_that_was_read_leaves_its_finalizer_nothing_to_do(omni: Omni, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = omni.generate("abc")
    assert [*stream]
    given: list[object] = []
    monkeypatch.setattr(omni._client.executor, "soon", given.append)
    del stream
    gc.collect()
    assert given == []


def test_a_token_has_the_bytes_that_the_front_end_knows(omni: Omni) -> None:
    assert omni.token_text(ord("a")) == b"a"


def test_ctrl_c_cancels_the_request(omni: Omni) -> None:
    GATES["ctrl-c"].clear()
    timer = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    stream = omni.generate("wait ctrl-c")
    # Where the suite runs in the background of a shell, the signal is ignored from the start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    GATES["ctrl-c"].set()
    assert eventually(lambda: omni.idle)


def test_a_request_can_be_given_up_while_it_is_prepared(omni: Omni) -> None:
    GATES["slow"].clear()
    stream = omni.generate(["wait slow", "wait slow"], sampling=ENDLESS)
    stream.close()
    assert eventually(lambda: omni.idle), "nothing has reached the engine"
    GATES["slow"].set()
    assert omni.generate("next", stream=False).text == "next"
    assert eventually(lambda: omni.idle)


def test_an_open_model_describes_itself(omni: Omni) -> None:
    assert omni.voices == ("low", "high")
    assert omni.modalities == ("text", "audio")
    assert [stage.name for stage in omni.pipeline.stages] == ["writer", "singer"]


def test_a_model_that_does_not_speak(tmp_path: Path) -> None:
    with Omni(echo_model(tmp_path, speaks=False), device="cpu", plugins=echo_plugins()) as omni:
        assert omni.generate("hello", stream=False).audio is None
        with pytest.raises(InputError, match="does not give 'audio'; use 'text'"):
            omni.generate("hello", modalities=("text", "audio"))
