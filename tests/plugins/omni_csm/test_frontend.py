"""From turns to stage inputs: ids, embeddings, sounds; and refusals."""

import pytest
import torch

from omni.checkpoint import Checkpoint
from omni.errors import InputError
from omni.frontend.base import Chat, Message, Prepared, TextPart
from omni_ar.inputs import Prompt
from omni_csm.frontend import CsmFrontend, build
from omni_encoder.inputs import MediaItem
from tests.support.csm_reference import csm_reference_of, speak, tiny_csm, turn
from tests.support.received import tensors_of
from tests.support.reference import picture, says, sound, with_tokens

TURNS = speak(
    turn("user", "how are you", 0.4, 1), turn("assistant", "I am well", 1.1, 2), turn("user", "so", 0.4, 1), "on"
)


@pytest.fixture(scope="module")
def frontend() -> CsmFrontend:
    return build(Checkpoint(tiny_csm()))


def _prompt(prepared: Prepared) -> Prompt:
    (payload,) = prepared.inputs["backbone"]
    assert isinstance(payload.meta, Prompt)
    return payload.meta


NAMED = speak(turn("user", "who are you", 0.4, 1, name="3"), turn("assistant", "I am", 0.5, 2, name="12"), "well")
SAID_BY = [speak("hello", voice="7"), speak(turn("user", "hello", name="7")), NAMED]


@pytest.mark.parametrize("chat", [TURNS, speak("hello"), *SAID_BY], ids=["turns", "text", "voice", "name", "names"])
def test_ids_and_sounds_are_those_of_the_processor(frontend: CsmFrontend, chat: Chat) -> None:
    prepared, inputs = frontend.prepare(chat), csm_reference_of(tiny_csm()).inputs(chat)
    prompt = _prompt(prepared)
    assert prompt.columns.tolist() == inputs["input_ids"].tolist()
    assert prompt.positions.tolist() == [list(range(prompt.length))]
    assert prepared.prompt_tokens == prompt.next_position == prompt.length
    clips = [tensors_of(payload)["samples"] for payload in prepared.inputs.get("audio_encoder", ())]
    if clips:
        assert torch.equal(torch.cat(clips), inputs["input_values"][0, 0])
    assert len(clips) == len(prompt.placeholders) == len(chat.messages) - 1


def test_embeddings_lie_where_the_sounds_stand(frontend: CsmFrontend) -> None:
    prepared = frontend.prepare(TURNS)
    prompt = _prompt(prepared)
    metas = [payload.meta for payload in prepared.inputs["audio_encoder"]]
    media = [meta for meta in metas if isinstance(meta, MediaItem)]
    assert len(media) == len(metas)
    ids, audio = prompt.columns[0], frontend._config.audio_token
    for slot, item in zip(prompt.placeholders, media, strict=True):
        assert (slot.index, slot.key, len(slot.positions)) == (item.index, item.key, item.length)
        assert (ids[slot.positions] == audio).all()
        assert ids[slot.positions[0] - 1] != audio
        assert ids[slot.positions[-1] + 1] == frontend._config.audio_eos
    assert sum(ids == audio) == sum(len(slot.positions) for slot in prompt.placeholders)
    assert media[0].key == media[2].key != media[1].key


@pytest.mark.parametrize(
    ("chat", "message"),
    [
        (speak("hello", voice="ethan"), "voice: 'ethan' is not a speaker"),
        (speak("hello", voice="²"), "voice: '²' is not a speaker"),
        (speak(turn("user", "so", 0.3, name="ann"), "b"), r"messages\[0\].name: 'ann' is not a speaker"),
        (speak(turn("user", "so", name="ann")), r"messages\[0\].name: 'ann' is not a speaker"),
        (speak("a", turn("user", "b", name="2"), voice="1"), r"messages\[1\].name: is '2', but voice is '1'"),
        (speak(turn("user", "so", name="x" * 10**6)), r"^messages\[0\].name: 'x{196}\.\.\. is not a speaker"),
        (speak(" \n"), r"messages\[0\].content: holds no text"),
        (speak(turn("user", "hello", 0.3)), r"messages\[0\].content: holds 1 sound .* give the text alone"),
        (speak("hello", "you"), r"messages\[0\].content: holds 0 sounds .* give the text and its sound"),
        (speak(says("user", "a", sound(0.3), sound(0.3)), "b"), r"messages\[0\].content: holds 2 sounds"),
        (speak(says("user", "a", picture(32, 32))), "^picture: is a picture, which this model does not take"),
        (with_tokens(speak("say <|AUDIO|>")), r"messages\[0\].content: holds '<\|AUDIO\|>', a placeholder of sound"),
    ],
)
def test_invalid_chats_are_refused(frontend: CsmFrontend, chat: Chat, message: str) -> None:
    with pytest.raises(InputError, match=message):
        frontend.prepare(chat)


def test_reserved_words_in_pieces_are_found(frontend: CsmFrontend) -> None:
    pieces = Message("user", (TextPart("<|AU"), TextPart("DIO|>")))
    with pytest.raises(InputError, match="a placeholder of sound"):
        frontend.prepare(with_tokens(speak(pieces)))
