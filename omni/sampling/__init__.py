"""Sampling at a stage: parameters that travel with the request, and host rules."""

from omni.sampling.host_rules import (
    NO_RULES,
    HostLogitsProcessor,
    HostRules,
    LogitsEdit,
    StopMatcher,
    StopVerdict,
    TextRules,
)
from omni.sampling.params import GREEDY, MAX_LOGPROBS, PARAMETERS, SamplingParams, StructuredOutput

__all__ = [
    "GREEDY",
    "MAX_LOGPROBS",
    "NO_RULES",
    "PARAMETERS",
    "HostLogitsProcessor",
    "HostRules",
    "LogitsEdit",
    "SamplingParams",
    "StopMatcher",
    "StopVerdict",
    "StructuredOutput",
    "TextRules",
]
