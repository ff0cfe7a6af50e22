"""How tokens are chosen at a stage: parameters that travel with the request, and rules that only the host can apply."""

from omni.sampling.host_rules import NO_RULES, HostLogitsProcessor, HostRules, LogitsEdit, StopMatcher, StopVerdict
from omni.sampling.params import MAX_LOGPROBS, SamplingParams, StructuredOutput

__all__ = [
    "MAX_LOGPROBS",
    "NO_RULES",
    "HostLogitsProcessor",
    "HostRules",
    "LogitsEdit",
    "SamplingParams",
    "StopMatcher",
    "StopVerdict",
    "StructuredOutput",
]
