"""Chat templates of checkpoints: rendered as transformers renders them, within bounds of time and memory."""

from omni.frontend.template.chat_template import MAX_SOURCE, ChatTemplate, Turns
from omni.frontend.template.effort import MAX_MADE, SECONDS

__all__ = ["MAX_MADE", "MAX_SOURCE", "SECONDS", "ChatTemplate", "Turns"]
