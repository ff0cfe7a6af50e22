"""Voices by name, and OpenAI's names."""

from collections.abc import Sequence

OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "nova"),
    *("onyx", "sage", "shimmer", "verse", "marin", "cedar"),
)
"""Names that clients send without a choice of their own."""


def voice_for(voices: Sequence[str], name: str | None) -> str | None:
    """The model's voice for a name: its own in any capitalization, or for one of OpenAI's always the same of the model's.
    Other names are returned as they are, to be refused. None is the default voice."""
    known = {voice.lower(): voice for voice in voices}
    if name is None or not voices:
        return name if name is None or name.lower() not in OPENAI_VOICES else None
    given = name.lower()
    if given not in known and given in OPENAI_VOICES:
        return voices[OPENAI_VOICES.index(given) % len(voices)]
    return known.get(given, name)
