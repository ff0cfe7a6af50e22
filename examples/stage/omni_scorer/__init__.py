"""A stage kind for omni: scores the rows of tensors that another stage produces."""
