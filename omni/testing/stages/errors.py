"""The errors of checks: the broken promise of `omni.stage`, and the remedy."""

from omni.testing.contract import Contract

STAGE = Contract("stage")
require, calling = STAGE.require, STAGE.calling
