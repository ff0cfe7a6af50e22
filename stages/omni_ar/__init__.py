"""Stage kind "ar": autoregressive stages, and the building blocks that their models are composed of."""
