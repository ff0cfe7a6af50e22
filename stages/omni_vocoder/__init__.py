"""Stage kind `"vocoder"`: codes in, streaming waveform out.

docs/public.md lists the public names; others may change in any version.
"""
