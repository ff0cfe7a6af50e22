"""What a row has room for. Beyond these a request is refused with the field's name."""

MAX_STOP_IDS = 16
"""Stop ids, the stage's own included."""

MAX_BIASED_IDS = 1024
"""Ids with a logit bias."""

MAX_BAD_WORDS = 256
"""Bad words, each of one token or of several. A text is often two: with a space before it, and without."""

MAX_BAD_WORD_LENGTH = 16
"""Tokens of a bad word."""

MAX_EDITED_IDS = 1024
"""Ids to which the host processors of a request add something before one token; what they rule out by mask is not counted."""
