"""Stage kind `"encoder"`: audio and vision towers as stages of their own, batched and cached by media hash.

docs/public.md lists the public names; others may change in any version.
"""
