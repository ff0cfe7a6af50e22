"""Checks of configs for nets that would otherwise fail for every input. They raise CheckpointError, naming the field."""

from omni.checkpoint.checks import Section, check_rates

_MOST_REACH = 256
"""Maximum of a kernel width, and of a dilation."""


def check_block_transformer(dit: Section) -> None:
    dit.require_counts("hidden_size", "mel_dim", "emb_dim", "enc_dim", "enc_emb_dim", "num_attention_heads")
    dit.require_counts("num_embeds", most=2**22)
    dit.require_counts("num_hidden_layers", most=1024)
    dit.require_numbers("ff_mult", most=1024)
    # One half of the dimensions are sines, the other half cosines; rotary dimensions are in pairs.
    for name in ("hidden_size", "head_dim"):
        dit.require_counts(name, least=2)
        dit.require(dit[name] % 2 == 0, name, f"is odd: {dit[name]}")
    rope = dit.part("rope_parameters")
    rope.require_numbers("rope_theta")
    # A block is a whole number of codes.
    dit.require_counts("block_size", "repeats", most=2**12)
    dit.require_multiple("block_size", of="repeats")
    for name in ("look_ahead_layers", "look_backward_layers"):
        dit.require_list(name, least=0, most=1024)
        dit.require_indices(dit["num_hidden_layers"], name)


def check_speaker_encoder(dit: Section) -> None:
    dit.require_list("enc_channels", least=3)
    for name in ("enc_kernel_sizes", "enc_dilations"):
        dit.require_list(name, like="enc_channels")
    dit.require_counts("enc_channels", "enc_se_channels", "enc_attention_channels", most=2**14)
    dit.require_counts("enc_kernel_sizes", "enc_dilations", most=_MOST_REACH)
    # One convolution for each.
    dit.require_counts("enc_res2net_scale", most=1024)
    # The first and the last layer are plain convolutions.
    for place, channels in list(enumerate(dit["enc_channels"]))[1:-1]:
        scale = dit["enc_res2net_scale"]
        problem = f"is {channels}, no multiple of enc_res2net_scale, which is {scale}"
        dit.require(channels % scale == 0, f"enc_channels[{place}]", problem)


def check_upsampler(upsampler: Section) -> None:
    check_rates(upsampler, "upsample_rates")
    upsampler.require_list("upsample_kernel_sizes", like="upsample_rates")
    upsampler.require_counts("upsample_kernel_sizes", most=2**10)
    upsampler.require_counts("upsample_initial_channel", least=2 ** len(upsampler["upsample_rates"]), most=2**16)
    upsampler.require_list("resblock_kernel_sizes")
    upsampler.require_counts("resblock_kernel_sizes", most=_MOST_REACH)
    upsampler.require_list("resblock_dilation_sizes", like="resblock_kernel_sizes")
    for place in range(len(upsampler["resblock_dilation_sizes"])):
        # A table, so that an error names the entry.
        name = f"resblock_dilation_sizes[{place}]"
        each = Section({name: upsampler["resblock_dilation_sizes"][place]}, upsampler.path)
        each.require_list(name)
        each.require_counts(name, most=_MOST_REACH)
