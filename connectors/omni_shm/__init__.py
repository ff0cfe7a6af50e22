"""Connector `"shm"`: payloads between two processes of a host, through shared host memory.

docs/public.md lists the public names; others may change in any version.
"""
