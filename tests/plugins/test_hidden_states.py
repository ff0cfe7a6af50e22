"""Hidden states of every layer and position, compared with transformers', also under pressure."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from omni import AsyncOmni, ConfigError, HiddenStates, InputError, Omni, SamplingParams
from omni.engine import EngineOutput, EngineRequest, RequestFailed, StageFinished, StageOutput
from omni.payload import GeneratedTokens, Payload, RequestHiddenStates
from tests.support.ar_driver import plain_prompt
from tests.support.reference import chat, reference_of, sound, tiny_checkpoint
from tests.support.reference import picture as image
from tests.support.tiny_omni import SHAPE, assert_freed, tiny_plugins, user
from tests.support.tiny_text import VOCAB, TextEngine, write_text_model

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("forked_processes")]

TOLERANCE = 2e-5
"""Of states of the order of 1 to 10, in float32."""
LAYERS = (0, 1, 2, 3)
PRESSURE: dict[str, dict[str, object]] = {
    "calm": {},
    "few blocks": {"text.num_blocks": 9, "text.block_size": 4, "text.max_model_len": 32},
    "small chunks": {"text.max_num_batched_tokens": 5},
    "graphs": {},
    "no cache, ahead": {"text.prefix_cache": False, "text.max_in_flight": 4},
    "few blocks, ahead": {
        "text.num_blocks": 9,
        "text.block_size": 4,
        "text.max_model_len": 32,
        "text.max_in_flight": 4,
    },
}


class Recorder:
    """A sink. reported: whether the stage's end came after the states."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.states: list[Payload] = []
        self.reported = False

    def __call__(self, output: EngineOutput) -> None:
        match output:
            case StageOutput(meta=GeneratedTokens(ids=ids)):
                self.tokens += ids
            case StageOutput():
                self.states.append(Payload(output.meta, output.tensors))
            case StageFinished():
                assert self.states
                self.reported = True
            case RequestFailed(error=error):
                raise error


def reference(model: Any, ids: list[int]) -> Tensor:
    """`[L, T, D]`"""
    with torch.no_grad():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return torch.stack([state[0] for state in states])


def submit(engine: TextEngine, name: str, ids: list[int], **sampling: Any) -> Recorder:
    recorder = Recorder()
    request = EngineRequest(
        name,
        frozenset({"text", "text.hidden_states"}),
        {"text": [Payload(plain_prompt(ids))]},
        sampling={"text": SamplingParams(**sampling)},
    )
    engine.engine.submit(request, recorder)
    return recorder


def expect(model: Any, ids: list[int], recorder: Recorder) -> None:
    assert recorder.reported
    (payload,) = recorder.states
    assert payload.meta == RequestHiddenStates(layers=LAYERS, prompt_tokens=len(ids))
    hidden = payload.tensors["hidden"]
    assert isinstance(hidden, Tensor)
    wanted = reference(model, [*ids, *recorder.tokens[:-1]])
    assert hidden.shape == (wanted.shape[1], wanted.shape[0] * wanted.shape[2])
    states = hidden.unflatten(1, (wanted.shape[0], -1)).transpose(0, 1)
    torch.testing.assert_close(states, wanted, rtol=0, atol=TOLERANCE * float(wanted.abs().max()))


@pytest.mark.parametrize("kind", ["tied", "moe"])
@pytest.mark.parametrize("pressure", PRESSURE)
def test_states_of_many_requests_equal_the_reference(tmp_path: Path, kind: str, pressure: str) -> None:
    model = write_text_model(tmp_path, kind)
    graphs = pressure == "graphs"
    engine = TextEngine(tmp_path, {"text.hidden_layers": LAYERS, **PRESSURE[pressure]}, graphs=graphs)
    prompts = [[(7 * place * place + 11 * index) % VOCAB for place in range(3 + 3 * index)] for index in range(6)]
    prompts.append([*prompts[5][:12], 5, 6])  # a prefix that may be cached
    recorders = [submit(engine, str(index), ids, max_tokens=9) for index, ids in enumerate(prompts)]
    engine.run()
    again = submit(engine, "again", prompts[5], max_tokens=9)
    engine.run()
    for ids, recorder in zip([*prompts, prompts[5]], [*recorders, again], strict=True):
        assert len(recorder.tokens) == 9
        expect(model, ids, recorder)
    counters = engine.engine.counters()["text"]
    assert bool(counters["preemptions"]) == ("few blocks" in pressure)
    assert bool(counters["cached_tokens"]) == ("no cache" not in pressure)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_states_of_accepted_drafts_equal_the_reference(tmp_path: Path, in_flight: int) -> None:
    """Those of rejected ones are overwritten."""
    model = write_text_model(tmp_path, "tied")
    drafts = {"drafter": "fabricated", "drafter_args": {"rate": 0.7}, "draft_tokens": 4, "max_in_flight": in_flight}
    settings = {f"text.{name}": value for name, value in drafts.items()}
    engine = TextEngine(tmp_path, {"text.hidden_layers": LAYERS, **settings}, graphs=in_flight > 1)
    prompts = [[(7 * place * place + 11 * index) % VOCAB for place in range(3 + 3 * index)] for index in range(3)]
    for turn in range(2):
        recorders = [submit(engine, f"{turn}-{n}", ids, max_tokens=20) for n, ids in enumerate(prompts)]
        engine.run()
        for ids, recorder in zip(prompts, recorders, strict=True):
            expect(model, ids, recorder)
    assert engine.engine.counters()["text"]["accepted_drafts"] > 10


def test_a_stop_token_s_request_has_the_states_before_it(tmp_path: Path) -> None:
    model = write_text_model(tmp_path, "tied")
    engine = TextEngine(tmp_path, {"text.hidden_layers": LAYERS, "text.max_in_flight": 4})
    ids = [3, 1, 4, 1, 5]
    whole = submit(engine, "whole", ids, max_tokens=8)
    engine.run()
    stop = whole.tokens[4]
    stopped = submit(engine, "stopped", ids, max_tokens=8, stop_token_ids=[stop])
    engine.run()
    assert len(stopped.tokens) == 1 + whole.tokens.index(stop)
    expect(model, ids, stopped)


def test_requests_without_states_give_none(tmp_path: Path) -> None:
    write_text_model(tmp_path, "tied")
    engine = TextEngine(tmp_path, {"text.hidden_layers": LAYERS})
    recorder = Recorder()
    recorder.states.append(Payload(GeneratedTokens(ids=())))
    request = EngineRequest("a", frozenset({"text"}), {"text": [Payload(plain_prompt([1, 2]))]})
    engine.engine.submit(request, recorder)
    engine.run()
    assert len(recorder.states) == 1


@pytest.mark.parametrize("layer", [-1, 4])
def test_a_layer_that_the_model_lacks_is_refused(tmp_path: Path, layer: int) -> None:
    write_text_model(tmp_path, "tied")
    with pytest.raises(ConfigError, match=r"text\.hidden_layers: .* from 0, the input embeddings, to 3"):
        TextEngine(tmp_path, {"text.hidden_layers": (0, layer)})


# The public interface, on a thinker with pictures and sound.


class Unreadable(list[int]):
    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("broken")


ASKED = chat("what is in the", image(96, 64), sound(0.7), "picture", voice=None)


def messages() -> list[dict[str, Any]]:
    (message,) = ASKED.messages
    text, picture, recording, rest = message.content
    return user(
        text.text,  # type: ignore[union-attr]
        {"type": "image_url", "image_url": picture.image},  # type: ignore[union-attr]
        {"type": "input_audio", "input_audio": recording.samples},  # type: ignore[union-attr]
        rest.text,  # type: ignore[union-attr]
    )


def thinker_states(folder: Path, ids: tuple[int, ...]) -> Tensor:
    """`[L, T, D]` of the prompt and `ids`, from transformers."""
    known = reference_of(folder)
    inputs: Mapping[str, Tensor] = known.inputs(ASKED)
    given = {**inputs, "input_ids": torch.cat([inputs["input_ids"], torch.tensor([ids], dtype=torch.int64)], 1)}
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    with torch.no_grad():
        states = known.model.thinker(**given, output_hidden_states=True).hidden_states
    return torch.stack([state[0] for state in states])


@pytest.mark.parametrize("process", ["thread", "process"])
def test_users_may_request_states_of_chosen_layers(process: str) -> None:
    folder = tiny_checkpoint(3, **SHAPE)
    overrides = {"engine.process": process, "thinker.hidden_layers": [3, 0, 1]}
    with Omni(folder, device="cpu", plugins=tiny_plugins(), overrides=overrides) as omni:
        prompt = omni.hidden_states(messages())
        longer = omni.hidden_states(messages(), layers=[1, 3], sampling=SamplingParams(max_tokens=6), device="cpu")
        assert omni.modalities == ("text", "audio")
        assert_freed(omni)
    assert isinstance(prompt, HiddenStates)
    assert (prompt.layers, longer.layers) == ((3, 0, 1), (1, 3))
    assert len(longer.result.tokens) == 6
    assert prompt.generated.shape[1] == 0
    wanted = thinker_states(folder, longer.result.tokens[:-1])
    assert longer.states.shape == wanted[[1, 3]].shape
    peak = float(wanted.abs().max())
    torch.testing.assert_close(longer.states, wanted[[1, 3]], rtol=0, atol=TOLERANCE * peak)
    torch.testing.assert_close(prompt.states, wanted[[3, 0, 1], : prompt.prompt_tokens], rtol=0, atol=TOLERANCE * peak)
    assert longer.prompt.shape[1] == longer.prompt_tokens == prompt.states.shape[1]


def test_coroutines_ask_too_and_mistakes_are_named() -> None:
    async def ask() -> HiddenStates:
        overrides = {"thinker.hidden_layers": [2]}
        async with AsyncOmni(folder, device="cpu", plugins=tiny_plugins(), overrides=overrides) as omni:
            for arguments, words in (
                ({"layers": [0]}, r"layers: 0 is not kept; use some of 2, or load the model with other thinker"),
                ({"layers": 2}, r"layers: is 2; give a list of layers: \[2\]"),
                ({"layers": []}, r"layers: is \[\]; give a list of layers: \[2\]"),
                ({"layers": "2"}, r"layers: is '2'; give a list of layers: \[2\]"),
                ({"layers": [True]}, r"layers: True is not kept"),
                (
                    {"layers": Unreadable([2])},
                    r"layers: cannot be read: RuntimeError: broken; give plain Python values",
                ),
                ({"layers": [[2]]}, r"layers: \[2\] is not kept"),
                ({"device": "gpu"}, r"device: 'gpu' is not a device; use \"cpu\", \"cuda\" or \"cuda:N\""),
                ({"device": "cuda:99"}, r"device: 'cuda:99' does not exist here; there (is|are) \d+ CUDA devices?"),
                ({"device": 1}, r"device: is 1; use \"cpu\""),
                ({"device": torch.device("meta")}, r"device: 'meta' is not a device"),
                ({"stage": ["thinker"]}, r"stage: is \['thinker'\]; give the name of a stage"),
                ({"priority": "high"}, r"priority: "),
                ({"sampling": {"talkr": SamplingParams()}}, r"talkr"),
                ({"stage": "thnker"}, r"stage: the pipeline has no 'thnker'; use one of .*thinker"),
                (
                    {"stage": "talker"},
                    r"stage: 'talker' keeps no hidden states; thinker keeps some; .*talker\.hidden_layers",
                ),
            ):
                with pytest.raises(InputError, match=words):
                    await omni.hidden_states("hello", **arguments)
            for chats in (["hello", "bye"], [messages(), messages()]):
                with pytest.raises(InputError, match="messages: are a list of chats; give one chat, and call it for"):
                    await omni.hidden_states(chats)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="unexpected keyword argument 'layer'"):
                await omni.hidden_states("hello", layer=2)  # type: ignore[call-arg]
            first, second = await asyncio.gather(omni.hidden_states("hello"), omni.hidden_states("hello"))
            assert torch.equal(first.states, second.states)
            return first

    folder = tiny_checkpoint(3, **SHAPE)
    states = asyncio.run(ask())
    assert states.states.shape[:2] == (1, states.prompt_tokens)
    words = r"'thinker' keeps no hidden states; .* overrides=.*thinker\.hidden_layers"
    with Omni(folder, device="cpu", plugins=tiny_plugins()) as omni, pytest.raises(InputError, match=words):
        omni.hidden_states("hello")
