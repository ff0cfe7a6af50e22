"""The stage contract: stage kinds, loaded stages, stage workers and their messages."""

from omni.payload.copier import PayloadCopier, Receipt, Transfer, as_matrix
from omni.stage.base import (
    Footprint,
    LoadedStage,
    StageContext,
    StageKind,
    StageUsage,
    StageWorker,
    TensorParallelKind,
    WarmStage,
    module_bytes,
)
from omni.stage.listeners import Listener, Listeners
from omni.stage.loaded import MeasuredRowStage, MeasuredStage, PlainStage, build_model, capture_progress, dry_run
from omni.stage.memory_errors import NoRoomError, memory_errors
from omni.stage.messages import (
    Abort,
    Done,
    Ended,
    Failed,
    Feed,
    Inbound,
    Lease,
    Open,
    Outbound,
    Pause,
    Produced,
    Resume,
)
from omni.stage.returned import method_name, returned_tensor
from omni.stage.rows import MOST_CPU_ROWS, MOST_ROWS, ROW_NUMBERS, RowCost, RowStage, most_rows, rows_or_default
from omni.stage.worker import MailboxWorker, together

__all__ = [
    "MOST_CPU_ROWS",
    "MOST_ROWS",
    "ROW_NUMBERS",
    "Abort",
    "Done",
    "Ended",
    "Failed",
    "Feed",
    "Footprint",
    "Inbound",
    "Lease",
    "Listener",
    "Listeners",
    "LoadedStage",
    "MailboxWorker",
    "MeasuredRowStage",
    "MeasuredStage",
    "NoRoomError",
    "Open",
    "Outbound",
    "Pause",
    "PayloadCopier",
    "PlainStage",
    "Produced",
    "Receipt",
    "Resume",
    "RowCost",
    "RowStage",
    "StageContext",
    "StageKind",
    "StageUsage",
    "StageWorker",
    "TensorParallelKind",
    "Transfer",
    "WarmStage",
    "as_matrix",
    "build_model",
    "capture_progress",
    "dry_run",
    "memory_errors",
    "method_name",
    "module_bytes",
    "most_rows",
    "returned_tensor",
    "rows_or_default",
    "together",
]
