"""Stage kind `"vocoder"`: codes in, streaming waveform out."""
