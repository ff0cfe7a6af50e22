"""A logits processor for omni: makes tokens unlikely that a text has often enough."""
