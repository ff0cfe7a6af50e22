"""The plugin's hooks, found by entry point. Imports no torch."""

from omni import hookimpl
from omni.plugin import LogitsProcessorEntry


@hookimpl
def omni_logits_processors() -> list[LogitsProcessorEntry]:
    return [LogitsProcessorEntry(name="variety", processor="omni_variety.processor:VarietyProcessor")]
