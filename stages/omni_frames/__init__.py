"""Transfer of code frames from a producer's memory into a consumer's rows, and of samples to the host.

docs/public.md lists the public names; others may change in any version.
"""
