"""Encodes texts as the ids of a tokenizer of transformers, in any thread."""

from omni.frontend.encoding.control import ControlTokens
from omni.frontend.encoding.encoder import Encoder, Ids
from omni.frontend.limit import PromptLimit

__all__ = ["ControlTokens", "Encoder", "Ids", "PromptLimit"]
