"""Errors that reach a user. Each names the field that is wrong, what is wrong with it, and how to mend it."""


class OmniError(Exception):
    """Base of every error omni raises on purpose."""


class _FieldError(OmniError):
    """`field` (dotted path into what the user gave), `problem` and `remedy`, as one sentence."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


class ConfigError(_FieldError):
    """A setting, an override or a pipeline is wrong. Raised before any weight is read."""


class InputError(_FieldError):
    """A request is wrong. Raised for that request alone."""


class OverloadedError(_FieldError):
    """As many requests wait as may. Raised for the request that came too late; later it may be let in."""


class CheckpointError(_FieldError):
    """A checkpoint folder or one of its files is wrong."""


class PluginError(OmniError):
    """A plugin that the pipeline needs could not be loaded, or two plugins claim one name."""


class StageError(OmniError):
    """A request failed while it ran; the message names the stage and what it was doing."""

    def __init__(self, stage: str, doing: str, problem: str) -> None:
        super().__init__(f"stage {stage!r} failed while {doing}: {problem}")
        self.stage = stage
        self.doing = doing
        self.problem = problem


class SyncError(OmniError):
    """The host would have waited for the device. phase: the phase being launched, None outside of phases."""

    def __init__(self, operation: str, phase: str | None, remedy: str) -> None:
        where = f"in phase {phase}" if phase is not None else "outside of phases"
        super().__init__(f"{operation} {where} makes the host wait for the device; {remedy}")
        self.operation = operation
        self.phase = phase
        self.remedy = remedy
