"""transformers' towers as encoder models: what they compute from sizes alone is laid out on the host, before they run."""
