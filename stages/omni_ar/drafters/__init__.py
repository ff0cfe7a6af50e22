"""Drafters: they guess the next tokens of each row, which the next step verifies together (docs/speculative.md)."""

from omni_ar.drafters.base import Drafter, DraftRequest, DraftRows, DraftSetup

__all__ = ["DraftRequest", "DraftRows", "DraftSetup", "Drafter"]
