"""Logits processors, for any model: what omni finds by a second entry point."""

from omni import hookimpl
from omni.plugin import LogitsProcessorEntry


@hookimpl
def omni_logits_processors() -> list[LogitsProcessorEntry]:
    return [
        LogitsProcessorEntry(name="hurry", processor="omni_bigram.processors.hurry:Hurry"),
        LogitsProcessorEntry(
            name="no_repeat",
            processor="omni_bigram.processors.no_repeat:NoRepeat",
        ),
    ]
