"""transformers' towers as encoder models: values that depend on sizes alone are computed on the host in advance."""
