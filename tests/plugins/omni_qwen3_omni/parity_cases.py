"""Requests that the parity tests compare with transformers, alone and under pressure."""

from omni.frontend.base import Chat
from tests.support.reference import chat, picture, says, sound

VOICES = ("ethan", "chelsie", "aiden", "serena")

CASES: dict[str, Chat] = {
    "text": chat("hello world, what is the number of people?"),
    "one word": chat("hello"),
    "unusual text": chat("Grüße 你好 🎉\n\n  two  lines"),
    "image": chat("what is in the picture", picture(96, 64)),
    "image first": chat(picture(64, 128, 1), "what is it"),
    "image alone": chat(picture(64, 64, 2)),
    "audio": chat("what did she say", sound(1.7)),
    "audio first": chat(sound(0.9, 1), "who is it"),
    "audio alone": chat(sound(2.3, 2)),
    "image and audio": chat(picture(64, 96, 3), sound(0.8, 3), "which picture has this sound"),
    "audio and image": chat(sound(1.1, 4), "has the sound of", picture(96, 96, 4)),
    "several images": chat(picture(64, 64, 5), picture(128, 64, 6), "and", picture(32, 32, 7), "which is first"),
    "several audios": chat(sound(0.4, 5), sound(2.05, 6), "or", sound(1.0, 7)),
    "several long audios": chat(sound(1.0, 14), "or", sound(2.05, 15), sound(1.33, 16)),
    "several of both": chat(sound(0.5, 8), picture(64, 64, 8), sound(1.2, 9), "then", picture(96, 32, 9)),
    "one image twice": chat(picture(64, 64, 5), "or", picture(64, 64, 5)),
    "system prompt": chat(says("system", "you are a voice"), says("user", "who are you")),
    "multi-turn": chat(
        says("user", "hello"), says("assistant", "hello, how can I help"), says("user", "tell me a word")
    ),
    "multi-turn with media": chat(
        says("system", "you see and hear"),
        says("user", "what is it", picture(64, 96, 10)),
        says("assistant", "a red square"),
        says("user", sound(0.7, 10), "and this", picture(64, 64, 11)),
        says("assistant", "a blue circle, and a sound"),
        says("user", "which was first"),
    ),
    "last turn is the assistant's": chat(says("user", "say more"), says("assistant", "more")),
    "text only": chat("hello world", voice=None),
    "text only with media": chat("what is it", sound(0.6, 12), picture(64, 64, 12), voice=None, max_text=30),
    "long prompt": chat("the number of the people in the world and the time of the day " * 12),
    "long text": chat("tell me more", max_text=60, max_codes=90),
    "speech outlives the text": chat("say it", max_text=3, max_codes=60),
    "text outlives the speech": chat("say it", max_text=50, max_codes=5),
}
"""Every kind of input."""

MIXED: list[Chat] = [
    chat("hello world, tell me a long one", max_text=30, max_codes=45),
    chat(picture(64, 96, 1), "what is it", voice="chelsie", max_text=5, max_codes=40),
    chat(sound(1.4, 1), "who is it", voice="aiden", max_text=22, max_codes=9),
    chat(sound(0.6, 2), picture(96, 64, 2), "which is first", max_text=12, max_codes=25),
    chat("only write", sound(0.6, 2), voice=None, max_text=25),
    chat(
        says("system", "you are kind"),
        says("user", "what is it", picture(64, 96, 1)),
        says("assistant", "a circle"),
        says("user", sound(2.2, 3), "and now", picture(32, 64, 3)),
        voice="aiden",
        max_text=9,
        max_codes=16,
    ),
    chat("one", max_text=1),
    chat("two", max_text=2, max_codes=12, voice="chelsie"),
]
"""Of different lengths, to join one by one."""
