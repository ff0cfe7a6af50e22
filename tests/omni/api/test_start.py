"""The start of a model in this process."""

from pathlib import Path

import pytest

from omni.device import CpuDevice
from omni.device.meta import MetaDevice
from omni.stage import StageContext
from tests.support.echo_family import EchoKind
from tests.support.echo_omni import opened


def test_stages_are_checked_without_memory_before_they_are_loaded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A width in config.json that is wrong may need more memory than there is."""
    devices, load = [], EchoKind.load

    def recorded(kind: EchoKind, context: StageContext) -> object:
        devices.append(type(context.device))
        return load(kind, context)

    monkeypatch.setattr(EchoKind, "load", recorded)
    opened(model).close()
    assert devices == [MetaDevice, CpuDevice]
