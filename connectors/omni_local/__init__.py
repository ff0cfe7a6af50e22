"""Connector `"local"`: payloads within one process, by reference.

docs/public.md lists the public names; others may change in any version.
"""
