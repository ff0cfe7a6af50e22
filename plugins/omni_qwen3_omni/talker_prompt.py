"""The talker's prompt: the user turns of the thinker's prompt, then the opening of the talker's own turn.

System turns and earlier answers are left out, and rotary positions count over the rest.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omni.frontend.media import EncodedChat
from omni.frontend.mrope import mrope_positions
from omni.frontend.turns import in_turns_of, last_turn_of
from omni_ar.inputs import Placeholder, Prompt
from omni_ar.text_conditioning import TextConditioningArgs
from omni_qwen3_omni.config import OmniConfig

NO_CODE = -1
"""The value of the codec column at a position without a codec id."""

_OPENING = 3
"""The number of tokens of `<|im_start|>assistant\\n`."""

_FIRST_TEXT = 0
"""The adapter replaces it by the first text token."""


@dataclass(frozen=True, slots=True)
class TalkerPlan:
    """args: for the edge's adapter. hidden_from: thinker prompt positions whose hidden states the talker's prompt needs."""

    args: TextConditioningArgs
    hidden_from: NDArray[np.int64]


def talker_args(config: OmniConfig, chat: EncodedChat, voice: str) -> TalkerPlan:
    """The talker's prompt for a chat of the thinker."""
    talker, ids = config.talker, chat.ids_T
    assert talker is not None
    in_user_turn = in_turns_of(config.user, ids, config.im_start)
    kept = np.flatnonzero(in_user_turn)
    user = ids[kept]
    pictures = zip(chat.media["image"], chat.positions["image"], strict=True)
    media = np.isin(user, (config.audio_token, config.image_token))
    start = last_turn_of(config.assistant, ids, config.im_start)
    opening, lead = ids[start : start + _OPENING], ids[start + _OPENING :]
    text = np.concatenate([user, opening, [config.tts_pad] * 4, [config.tts_bos, _FIRST_TEXT]])
    codec = np.concatenate(
        [
            np.full(len(user) + len(opening), NO_CODE),
            [talker.codec_nothink, talker.codec_think_bos, talker.codec_think_eos],
            [talker.speakers[voice], talker.codec_pad, talker.codec_bos],
        ]
    )
    # transformers counts positions over the user ids, followed by one text pad per token of the opening.
    rotary_ids = np.concatenate([user, np.full(len(text) - len(user), config.tts_pad)])
    positions, next_position = mrope_positions(
        rotary_ids,
        [each.grid for each, places in pictures if in_user_turn[places[0]]],
        image_token=config.image_token,
        merge=config.spatial_merge_size,
        per_second=config.position_id_per_seconds,
    )
    places = np.flatnonzero(media)
    hidden = Placeholder(name="hidden", index=0, positions=places, key=chat.prefix_key())
    prompt = Prompt(
        columns=np.stack([text, codec]).astype(np.int64),
        positions=positions,
        next_position=next_position,
        placeholders=(hidden,) if places.size else (),
    )
    args = TextConditioningArgs(prompt=prompt, lead=tuple(lead.tolist()), eos=config.tts_eos, pad=config.tts_pad)
    return TalkerPlan(args, kept[media])
