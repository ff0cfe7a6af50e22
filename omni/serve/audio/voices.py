"""Voices by name, and OpenAI's names."""

from collections.abc import Mapping, Sequence

import msgspec

from omni.errors import ConfigError, quoted

OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "nova"),
    *("onyx", "sage", "shimmer", "verse", "marin", "cedar"),
)
"""Names that clients send by default."""


class VoiceRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str


VoiceName = str | VoiceRef | None
"""A voice in a request's body."""


class Voices:
    """The model's voices by all their names, in any capitalization. The model's own names come first, then those of the table,
    then OpenAI's, which are assigned to the model's voices in turn."""

    def __init__(self, own: Sequence[str], table: Mapping[str, str]) -> None:
        """own: the model's, the default first. table: voices of the model by further names. Raises ConfigError."""
        self.names = (*own, *(name for name in table if name not in own))
        """Names that the model or the table defines."""
        mine = {name.lower(): name for name in own}
        for name, voice in table.items():
            if voice.lower() not in mine:
                problem = f"{quoted(voice)} is not a voice of this model"
                remedy = f"use one of {', '.join(own)}" if own else "leave it out: the model has one voice"
                raise ConfigError(f"--voice {name}", problem, remedy)
        turns = {name: own[index % len(own)] for index, name in enumerate(OPENAI_VOICES)} if own else {}
        self._default_only = not own
        self._by_name = turns | {name.lower(): mine[voice.lower()] for name, voice in table.items()} | mine

    def find(self, given: VoiceName) -> str | None:
        """The model's voice; None is its default. An unknown name is returned as it is, to be refused."""
        name = given.id if isinstance(given, VoiceRef) else given
        if name is None or (self._default_only and name.lower() in OPENAI_VOICES):
            return None
        return self._by_name.get(name.lower(), name)
