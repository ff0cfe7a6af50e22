"""The user's sound, and the turns in it."""

import asyncio
from collections.abc import Callable

from omni.errors import InputError
from omni.serve.errors import HttpError
from omni.serve.realtime.channel import EventChannel
from omni.serve.realtime.conversation import Conversation
from omni.serve.realtime.ids import new_id
from omni.serve.realtime.input_buffer import FIELD, InputBuffer
from omni.serve.realtime.items import LEAST_MS, Item, ItemPart, read_sound
from omni.serve.realtime.memory import SessionMemory
from omni.serve.realtime.server_events import (
    AudioCleared,
    AudioCommitted,
    ItemAdded,
    ItemDone,
    SpeechStarted,
    SpeechStopped,
)
from omni.serve.realtime.settings import Settings
from omni.serve.realtime.turns import TurnDetector, TurnEnd, TurnStart

_LARGE = 2**18
"""Characters of base64 that are decoded beside the event loop: more than four seconds of sound."""
_MOST_BYTES = 2**30
"""Limit of one event's sound, which is never reached: the event itself has a lower one."""


class TurnCollector:
    """Collects sound until a turn has ended. most_seconds: maximum length of a turn, which ends then. on_speech: the user starts to
    speak, and a response may be interrupted. on_item: a turn is in the conversation. on_turn: the same, and a response is
    requested."""

    def __init__(
        self,
        channel: EventChannel,
        conversation: Conversation,
        memory: SessionMemory,
        settings: Settings,
        *,
        most_seconds: float,
        on_speech: Callable[[], None],
        on_item: Callable[[Item], None],
        on_turn: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._conversation = conversation
        self._settings = settings
        self._most_seconds = most_seconds
        self._on_speech = on_speech
        self._on_item = on_item
        self._on_turn = on_turn
        self._buffer = InputBuffer(memory)
        self._memory = memory
        self._detector: TurnDetector | None = None
        self._item_id = new_id("item")
        self._detect()

    def use(self, settings: Settings) -> None:
        """Applies changed settings. Raises InputError for another audio format while the buffer holds sound of the present one."""
        before, after = self._settings, settings
        if before.input_format is not after.input_format:
            if len(self._buffer) and (self._detector is None or self._detector.speaking):
                problem = "cannot change while the input audio buffer holds sound"
                raise InputError("session.audio.input.format", problem, "commit or clear it first")
            # The waiting sound contains no speech.
            self._buffer.clear()
            position = self._buffer.end * after.input_format.rate // before.input_format.rate
            self._buffer.restart(position)
        self._settings = after
        if before.turn_detection != after.turn_detection or before.input_format is not after.input_format:
            self._detect()

    async def append(self, data: str) -> None:
        """Appends the sound in `data`, base64. Raises InputError, OverloadedError."""
        format = self._settings.input_format
        if len(data) < _LARGE:
            samples = read_sound(data, format, "audio", _MOST_BYTES, least_ms=0)
        else:
            samples = await asyncio.to_thread(read_sound, data, format, "audio", _MOST_BYTES, least_ms=0)
        detector = self._detector
        if detector is None:
            self._check_length(len(samples))
        self._buffer.append(samples)
        if detector is None:
            return
        turns = detector.push(samples) if len(data) < _LARGE else await asyncio.to_thread(detector.push, samples)
        for turn in turns:
            if isinstance(turn, TurnStart):
                self._start(turn)
            else:
                self._end(turn)
        if not detector.speaking:
            self._forget(detector)
        elif len(self._buffer) > self._most_seconds * format.rate:
            detector.reset()
            self._end(TurnEnd(self._buffer.end))

    def commit(self) -> None:
        """Ends the turn. Raises InputError if there is too little sound."""
        if 1000 * len(self._buffer) < LEAST_MS * self._settings.input_format.rate:
            held = self._ms(len(self._buffer))
            problem = f"holds {held} ms of sound, less than {LEAST_MS} ms"
            raise HttpError(
                400, "input_audio_buffer_commit_empty", FIELD, problem, "append more before it is committed"
            )
        self._conversation.check_full()
        self._commit(self._buffer.end)
        if self._detector is not None:
            self._detector.reset()

    def clear(self) -> None:
        self._buffer.clear()
        if self._detector is not None:
            self._detector.reset()
        self._item_id = new_id("item")
        self._channel.put(AudioCleared())

    def _start(self, turn: TurnStart) -> None:
        turns = self._settings.turn_detection
        assert turns is not None
        rate = self._settings.input_format.rate
        start = max(turn.at - turns.prefix_padding_ms * rate // 1000, self._buffer.begin)
        self._buffer.drop_before(start)
        self._channel.put(SpeechStarted(item_id=self._item_id, audio_start_ms=self._ms(start)))
        if turns.interrupt_response:
            self._on_speech()

    def _end(self, turn: TurnEnd) -> None:
        turns = self._settings.turn_detection
        assert turns is not None
        self._channel.put(SpeechStopped(item_id=self._item_id, audio_end_ms=self._ms(turn.at)))
        try:
            self._conversation.check_full()
        except InputError:
            self._buffer.drop_before(turn.at)
            raise
        self._commit(turn.at)
        if turns.create_response:
            self._on_turn()

    def _commit(self, until: int) -> None:
        """The sound before a position becomes an item of the user."""
        format = self._settings.input_format
        # Its memory is counted already.
        part = ItemPart("input_audio", sound=self._buffer.take(until), format=format)
        item = Item("user", [part], self._item_id)
        self._item_id = new_id("item")
        before = self._conversation.add(item, held=True)
        self._channel.put(AudioCommitted(item_id=item.id, previous_item_id=before))
        self._channel.put(ItemAdded(item=item.described(), previous_item_id=before))
        self._channel.put(ItemDone(item=item.described(), previous_item_id=before))
        self._on_item(item)

    def _forget(self, detector: TurnDetector) -> None:
        """Drops sound that is too old for the start of a turn."""
        turns = self._settings.turn_detection
        assert turns is not None
        kept_ms = turns.prefix_padding_ms + detector.lookback_ms
        self._buffer.drop_before(self._buffer.end - kept_ms * self._settings.input_format.rate // 1000)

    def _check_length(self, more: int) -> None:
        most = self._most_seconds * self._settings.input_format.rate
        if len(self._buffer) + more > most:
            raise InputError(FIELD, f"would hold more than {self._most_seconds:g} s", "commit or clear it")

    def _detect(self) -> None:
        turns, rate = self._settings.turn_detection, self._settings.input_format.rate
        self._detector = TurnDetector(turns, rate, self._buffer.end) if turns is not None else None

    def _ms(self, position: int) -> int:
        return position * 1000 // self._settings.input_format.rate
