"""The vocoder of Qwen3-Omni: codec frames in, waveform out, chunk by chunk with carried state."""

from omni_qwen3_omni.code2wav.config import Code2WavConfig
from omni_qwen3_omni.code2wav.model import StreamingCode2Wav

__all__ = ["Code2WavConfig", "StreamingCode2Wav"]
