"""Connector `"shm"`: payloads between two processes of a host, through shared host memory."""
