"""The voices of a checkpoint, from its spk_dict.pt."""

import msgspec
from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.checkpoint.pickle_file import Table, read_table
from omni_qwen2_5_omni.config import OmniConfig, read_config


class VoiceReference(msgspec.Struct, frozen=True):
    """bos: the thinker's token that opens the talker's text. speaker_V, reference_TM: an embedding, and a mel spectrogram."""

    bos: int
    speaker_V: Tensor
    reference_TM: Tensor


def read_voices(checkpoint: Checkpoint) -> dict[str, VoiceReference]:
    """The voices, the default first. Raises CheckpointError if the file is missing, or does not fit config.json."""
    table, config = read_table(checkpoint.path / "spk_dict.pt", "voices"), read_config(checkpoint)
    return {name: _voice(table.table(name), config) for name in table}


def _voice(entry: Table, config: OmniConfig) -> VoiceReference:
    dit = config.hf.token2wav_config.dit_config
    # The speaker encoder pads a spectrogram by reflection, by the reach of its widest convolution.
    reach = max(-(-d * (k - 1) // 2) for k, d in zip(dit.enc_kernel_sizes, dit.enc_dilations, strict=False))
    bos = entry.index("bos_token", config.thinker_vocab_size)
    speaker_1V = entry.floats("cond", (1, dit.enc_emb_dim))
    reference_1TM = entry.floats("ref_mel", (1, None, dit.mel_dim), fewest=reach + 1)
    return VoiceReference(bos, speaker_1V[0], reference_1TM[0])
