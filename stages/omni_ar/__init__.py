"""Stage kind "ar": autoregressive stages, and the building blocks that their models are composed of.

docs/public.md lists the public names; others may change in any version.
"""
