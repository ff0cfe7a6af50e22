"""Drafters: they guess the next tokens of each row, which the next step verifies together (docs/speculative.md)."""

from omni_ar.drafters.base import (
    CacheShape,
    DraftChunks,
    Drafter,
    DraftRequest,
    DraftRows,
    DraftSetup,
    FeatureShape,
    PagedDrafter,
    RowPages,
)
from omni_ar.drafters.model import DraftModel, ModelDrafter

__all__ = [
    "CacheShape",
    "DraftChunks",
    "DraftModel",
    "DraftRequest",
    "DraftRows",
    "DraftSetup",
    "Drafter",
    "FeatureShape",
    "ModelDrafter",
    "PagedDrafter",
    "RowPages",
]
