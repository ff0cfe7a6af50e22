"""The Qwen3-Omni family: thinker, talker, code predictor and code2wav, from the published checkpoint format."""
