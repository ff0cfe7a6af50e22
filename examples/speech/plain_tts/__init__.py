"""A family with speech: text in, codec frames by an autoregressive talker, sound by a streaming vocoder."""
