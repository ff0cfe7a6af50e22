"""Checks of a config for a tower, which would otherwise be built and fail for every input."""

from omni.checkpoint.checks import OTHER_MODEL, Section
from omni.errors import CheckpointError, quoted
from omni_encoder.layers.activations import ACTIVATIONS

_MOST_POSITIONS = 2**20
_MOST_WINDOW = 2**16


def check_clip_tower(config: Section, width: int, stride: int) -> None:
    """Checks a tower for sound. Raises CheckpointError, naming the field. width: of the text model's embeddings. stride: mel frames
    of a token, before pooling."""
    # One half of the dimensions are sines, the other half cosines, of at least two wavelengths.
    config.require_counts("d_model", least=4)
    config.require(config["d_model"] % 2 == 0, "d_model", f"is odd: {config['d_model']}")
    config.require_counts("encoder_ffn_dim", "output_dim")
    config.require_counts("encoder_layers", most=1024)
    config.require_counts("num_mel_bins", most=2**12)
    config.require_counts("n_window", most=_MOST_WINDOW)
    config.require_multiple("d_model", of="encoder_attention_heads")
    config.require_equal({"output_dim": width})
    config.require_counts("max_source_positions", least=-(-2 * config["n_window"] // stride), most=_MOST_POSITIONS)
    if config.get("conv_chunksize") is not None:
        config.require_counts("conv_chunksize", most=2**20)
    if config.get("downsample_hidden_size") is not None:
        config.require_counts("downsample_hidden_size")
    if config.get("n_window_infer") is not None:
        config.require_counts("n_window_infer", least=2 * config["n_window"], most=2**20)
    _check_activation(config, "activation_function")


def check_picture_tower(config: Section, width: int) -> None:
    """As `check_clip_tower`, for pictures."""
    config.require_counts("hidden_size", "intermediate_size", "out_hidden_size")
    config.require_counts("depth", most=1024)
    config.require_counts("patch_size", "spatial_merge_size", "temporal_patch_size", most=1024)
    for name in ("patch_size", "temporal_patch_size"):
        if not isinstance(config[name], int):
            problem = f"is {quoted(config[name])}, which is not supported: only one number is"
            raise CheckpointError(config.field(name), problem, OTHER_MODEL)
    config.require_multiple("hidden_size", of="num_heads")
    head = config["hidden_size"] // config["num_heads"]
    config.require(head % 4 == 0, "num_heads", f"gives heads of {head}, which rows and columns cannot share in pairs")
    config.require_equal({"out_hidden_size": width})
    config.require_supported({"in_channels": 3})
    rope = config.part("rope_parameters")
    rope.require_supported({"rope_type": "axial"})
    rope.require_numbers("rope_theta")
    if config.get("window_size") is not None:
        config.require_counts("window_size", least=config["spatial_merge_size"] * config["patch_size"], most=2**16)
    if config.get("num_position_embeddings") is not None:
        config.require_counts("num_position_embeddings", most=2**20)
    for name in ("fullatt_block_indexes", "deepstack_visual_indexes"):
        if config.get(name) is not None:
            config.require_list(name, least=0, most=config["depth"])
            config.require_indices(config["depth"], name)
    _check_activation(config, "hidden_act")


def _check_activation(config: Section, name: str) -> None:
    if not isinstance(config[name], str) or config[name] not in ACTIVATIONS:
        raise CheckpointError(config.field(name), f"is {quoted(config[name])}, which is not supported", OTHER_MODEL)
