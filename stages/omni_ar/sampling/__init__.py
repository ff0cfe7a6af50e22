"""Sampling on the device, one row of logits per request. Nothing here synchronizes."""
