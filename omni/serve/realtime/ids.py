"""Ids of a session's objects."""

import uuid


def new_id(kind: str) -> str:
    """kind: such as `"item"`."""
    return f"{kind}_{uuid.uuid4().hex}"
