"""Shape of the vocoder, from `code2wav_config` of a published config.json, and what follows from it."""

from collections.abc import Mapping
from typing import Self

import msgspec

from omni.errors import CheckpointError
from omni_vocoder.layers import UpsamplingRates

_RELEASED_ROPE_THETA = 10000.0
_POSITIVE = (
    "codebook_size",
    "num_quantizers",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "sliding_window",
    "decoder_dim",
)


class Code2WavConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults are those of the file format: a published file leaves out what equals them.

    upsampling_ratios: factors by which frames are stretched before the decoder, without lookahead.
    upsample_rates: factors inside the decoder; each looks one of its input samples ahead.
    sliding_window: frames that a frame attends to, itself included.
    """

    codebook_size: int = 2048
    num_quantizers: int = 16
    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: int = 8
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    head_dim: int | None = None
    attention_bias: bool = False
    hidden_act: str = "silu"
    sliding_window: int = 72
    rope_theta: float = _RELEASED_ROPE_THETA
    rms_norm_eps: float = 1e-5
    upsampling_ratios: tuple[int, ...] = (2, 2)
    upsample_rates: tuple[int, ...] = (8, 5, 4, 3)
    decoder_dim: int = 1536

    @classmethod
    def from_checkpoint(cls, raw: Mapping[str, object]) -> Self:
        """Reads `raw`, the value of `code2wav_config` in config.json; keys that do not shape the network are ignored.

        Raises CheckpointError, naming the key, for a value of the wrong type, a shape that cannot be built, or an
        activation or RoPE type other than the published ones.
        """
        known = {name: raw[name] for name in cls.__struct_fields__ if name in raw}
        known |= _rope_theta(raw)
        try:
            config = msgspec.convert(known, cls)
        except msgspec.ValidationError as error:
            raise CheckpointError("code2wav_config", str(error), "restore config.json as published") from error
        config._check()
        return config

    @property
    def attention_head_dim(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def rates(self) -> UpsamplingRates:
        return UpsamplingRates(self.upsampling_ratios, self.upsample_rates)

    @property
    def samples_per_frame(self) -> int:
        """Samples of waveform per codec frame: 1920 as released (12.5 frames per second at 24 kHz)."""
        return self.rates.samples_per_frame

    @property
    def lookahead(self) -> int:
        """Samples at the end of n frames that frame n + 1 still decides: 555 as released."""
        return self.rates.lookahead

    @property
    def min_first_frames(self) -> int:
        """1 as released."""
        return self.rates.min_first_frames

    def _check(self) -> None:
        values = msgspec.structs.asdict(self)
        for name in _POSITIVE:
            _require(values[name] >= 1, name, f"is {values[name]}")
        for name in ("upsampling_ratios", "upsample_rates"):
            _require(all(factor >= 1 for factor in values[name]), name, f"has a factor below 1: {values[name]}")
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        _require(heads % kv_heads == 0, "num_key_value_heads", f"is {kv_heads}, which does not divide {heads} heads")
        _require(self.attention_head_dim % 2 == 0, "head_dim", f"is odd: {self.attention_head_dim}")
        halvings = len(self.upsample_rates)
        _require(
            self.decoder_dim >> halvings > 0, "decoder_dim", f"is {self.decoder_dim}: no room for {halvings} halvings"
        )
        _require(self.hidden_act == "silu", "hidden_act", f"is {self.hidden_act!r}, not 'silu'")


def _rope_theta(raw: Mapping[str, object]) -> dict[str, object]:
    """`rope_theta` where newer files keep it: inside `rope_parameters`, beside the type of RoPE."""
    parameters = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        raise _error("rope_parameters", "is not a table")
    rope_type = parameters.get("rope_type", "default")
    _require(rope_type == "default", "rope_parameters.rope_type", f"is {rope_type!r}, not 'default'")
    return {"rope_theta": parameters["rope_theta"]} if "rope_theta" in parameters else {}


def _require(holds: bool, field: str, problem: str) -> None:
    if not holds:
        raise _error(field, problem)


def _error(field: str, problem: str) -> CheckpointError:
    return CheckpointError(f"code2wav_config.{field}", problem, "restore config.json as published")
