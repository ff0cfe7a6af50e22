"""The start of a model in this process."""

from pathlib import Path

import pytest

from omni.api.session import Session
from omni.device import CpuDevice
from omni.device.meta import MetaDevice
from omni.errors import ConfigError
from omni.frontend.base import Frontend
from omni.stage import StageContext
from tests.support.echo_family import EchoKind, echo_plugins
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


def test_the_front_end_is_checked_before_stages_are_loaded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(frontend: Frontend) -> None:
        raise ConfigError("--voice", "is unknown", "use another")

    def load(kind: EchoKind, context: StageContext) -> None:
        raise AssertionError("it is loaded")

    monkeypatch.setattr(EchoKind, "load", load)
    with pytest.raises(ConfigError, match="--voice: is unknown"):
        Session(model, device="cpu", plugins=echo_plugins(), check_frontend=refuse)
