"""The Qwen2.5-Omni family: text, images and sound in, text and speech out.

docs/public.md lists the public names; others may change in any version.
"""
