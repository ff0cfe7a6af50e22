"""Connector `"local"`: payloads within one process, by reference."""
