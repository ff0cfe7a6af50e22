"""The stage contract: what a stage kind builds and the messages a stage worker takes and gives."""

from omni.stage.base import StageContext, StageKind, StageUsage, StageWorker
from omni.stage.build import build_model
from omni.stage.lease import Hold, Lease
from omni.stage.messages import Abort, Done, Ended, Failed, Feed, Inbound, Open, Outbound, Produced
from omni.stage.worker import MailboxWorker, release

__all__ = [
    "Abort",
    "Done",
    "Ended",
    "Failed",
    "Feed",
    "Hold",
    "Inbound",
    "Lease",
    "MailboxWorker",
    "Open",
    "Outbound",
    "Produced",
    "StageContext",
    "StageKind",
    "StageUsage",
    "StageWorker",
    "build_model",
    "release",
]
