"""Transcripts of earlier answers: a later message may refer to an answer's audio by its id."""

import time
import uuid
from collections import OrderedDict

from omni.errors import InputError, quoted


class Transcripts:
    """Texts by the id of their audio, for some time. seconds: how long. most: texts; the oldest goes for a newer one."""

    def __init__(self, seconds: int, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self._texts: OrderedDict[str, tuple[int, str]] = OrderedDict()

    @staticmethod
    def new_id() -> str:
        return f"audio_{uuid.uuid4().hex}"

    def keep(self, audio_id: str, text: str) -> int:
        """Returns the time of expiry, in seconds of Unix time."""
        expires_at = int(time.time()) + self._seconds
        self._texts[audio_id] = expires_at, text
        while len(self._texts) > self._most:
            self._texts.popitem(last=False)
        return expires_at

    def find(self, audio_id: str, field: str) -> str:
        """Raises InputError for an unknown or expired id."""
        expires_at, text = self._texts.get(audio_id, (0, ""))
        if expires_at <= time.time():
            self._texts.pop(audio_id, None)
            problem = f"{quoted(audio_id)} is unknown, or has expired"
            raise InputError(field, problem, "send the transcript as the message's content")
        return text
