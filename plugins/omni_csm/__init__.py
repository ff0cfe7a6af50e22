"""CSM: text and earlier turns with their sound in, speech out.

docs/public.md lists the public names; others may change in any version.
"""
