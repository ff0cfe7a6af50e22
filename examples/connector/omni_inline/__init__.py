"""A connector whose pieces carry the bytes of the tensors."""
