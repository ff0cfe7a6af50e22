"""The Qwen3-Omni family: thinker, talker, code predictor and code2wav, from the published checkpoint format.

docs/public.md lists the public names; others may change in any version.
"""
