"""Engines in processes of their own: `group` has the engines, `select` whether they are in processes.

Imports nothing: `early` starts a process before torch is imported.
"""
