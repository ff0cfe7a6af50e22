"""A model family for omni: a small causal language model."""
