"""Logits processors: changes to logits that plugins provide and requests select by name (`SamplingParams.processors`)."""

from omni_ar.processors.base import HistoryProcessor, LogitsProcessor, ProcessedRows
from omni_ar.processors.registry import NamedProcessor, ProcessorRegistry

__all__ = ["HistoryProcessor", "LogitsProcessor", "NamedProcessor", "ProcessedRows", "ProcessorRegistry"]
