"""Settings of the front end."""

from pathlib import Path

import pytest

from omni.api.load import layers_of
from omni.errors import ConfigError
from omni.frontend.options import FrontendOptions, frontend_options
from omni.media.options import MediaOptions


def test_a_file_and_overrides_set_options_below_frontend(tmp_path: Path) -> None:
    file = tmp_path / "omni.toml"
    file.write_text("[frontend.media]\nstrict = true\n[engine]\nmax_waiting_requests = 3\n")
    options, settings = frontend_options(layers_of(config=file))
    assert options == FrontendOptions(media=MediaOptions(strict=True))
    assert {setting.path: setting.origin for setting in settings}["frontend.media.strict"] == str(file)
    overridden, _ = frontend_options(layers_of(config=file, overrides={"frontend.media.strict": False}))
    assert overridden == FrontendOptions()


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^frontend\.media\.strickt: there is no option 'strickt'"):
        frontend_options(layers_of(overrides={"frontend.media.strickt": True}))
