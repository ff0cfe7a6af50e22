"""Requests that make a model speak a given text.

A model with a thinker and a talker gets a structured output whose only choice is the text; its talker speaks the text that the
thinker writes. A model that writes no text speaks its prompt.
"""

from typing import Any

from omni.api import AsyncOmni
from omni.errors import InputError
from omni.sampling import SamplingParams, StructuredOutput
from omni.serve.sampling import stage_sampling

_READ_ALOUD = "Read this text aloud, word for word:"


def check_speaks(omni: AsyncOmni) -> None:
    """Raises InputError for a model without speech."""
    if not any(output.modality == "audio" for output in omni.pipeline.outputs):
        raise InputError("model", "does not speak", "use a model that gives audio")


def reading_messages(omni: AsyncOmni, text: str, instructions: str) -> list[dict[str, Any]]:
    """The chat whose answer is the text, spoken. Raises InputError for instructions that the model cannot follow."""
    if omni.pipeline.text_stage is None:
        if instructions:
            raise InputError("instructions", "are given, but this model reads the text alone", "leave them out")
        return [{"role": "user", "content": text}]
    # In the user's turn: a talker may leave out the system's.
    asked = f"{instructions}\n\n{_READ_ALOUD}" if instructions else _READ_ALOUD
    return [{"role": "user", "content": f"{asked}\n\n{text}"}]


def reading_sampling(
    omni: AsyncOmni, text: str, given: dict[str, Any], by_stage: dict[str, dict[str, Any]]
) -> dict[str, SamplingParams]:
    """Returns the sampling parameters by stage. given, by_stage: parameters in the request's body. Raises InputError."""
    if omni.pipeline.text_stage is None:
        return stage_sampling(omni, given, by_stage)
    others = given.keys() - {"seed"}
    if others:
        remedy = 'leave it out, or give it in "sampling" for a stage that speaks'
        raise InputError(min(others), "is given, but the text to speak is given too", remedy)
    # Every token has at least one byte, so this token limit never cuts the text.
    most = len(text.encode()) + 1
    return stage_sampling(
        omni, given, by_stage, max_tokens=most, temperature=0.0, structured=StructuredOutput(choice=(text,))
    )
