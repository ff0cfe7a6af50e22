"""Faults of models: of how they are loaded, and of what their methods return."""

from omni.errors import CheckpointError, ConfigError, OmniError, PluginError, StageError
from tests.omni.broken_plugins.fault import HERE, Fault

_LOAD = "    load_weights(model, context, prefixes)\n"
_TALKER = 'class Talker(CodecTalker):\n    """A prompt is text. A token is the first code of a frame, or the end."""\n'
_BUILD = "def build(context: StageContext) -> Talker:\n"
_MODEL = "pipeline.stages.talker.model: "


def _open(name: str, kind: type[OmniError], old: str, new: str, *says: str) -> Fault:
    return Fault(name, "open", kind, "talker.py", old, new, says, "plain_tts")


WEIGHTS = (
    _open(
        "a misspelled prefix",
        PluginError,
        '"talker.": ""}\n' + _LOAD,
        '"talkr.": ""}\n    load_weights(model, context, prefixes)  # here\n',
        "load_weights.prefixes: no weight begins with 'talkr.'",
        "did you mean 'talker.'?",
    ),
    _open(
        "prefixes that fit nothing",
        PluginError,
        _LOAD,
        '    load_weights(model, context, {"model.": "", "lm.": "head."})  # here\n',
        "load_weights.prefixes: no weight begins with 'model.', 'lm.'",
        "weights begin with 'talker.', 'vocoder.'",
    ),
    _open(
        "weights that are not loaded",
        PluginError,
        _LOAD,
        "",
        f"{_MODEL}loaded no weight",
        "parameters have random values",
        "call load_weights",
        "plugin plain-tts-plugin, ",
    ),
    _open(
        "a parameter without a weight",
        CheckpointError,
        "device=device, dtype=dtype)\n\n    def embed_prompt",
        "device=device, dtype=dtype)\n        self.extra = nn.Parameter(torch.empty(3))\n\n    def embed_prompt",
        "has no weights for 1 parameters of the model: extra",
        "correct the names of the model's parameters",
        "talker.py:",
    ),
    _open(
        "a model that is None",
        ConfigError,
        "    return model\n",
        "    model.train()\n",
        f"{_MODEL}gave None",
        "kind 'ar' takes an omni_ar.model.ArModel: return one",
        "plugin plain-tts-plugin, ",
    ),
    _open(
        "a build of nothing",
        PluginError,
        _BUILD,
        "def build() -> Talker:  # here\n    context = None\n",
        f"{_MODEL}plain_tts.talker:build() -> ",
        "cannot be called with a StageContext",
        "write def build(context: StageContext)",
    ),
    _open(
        "a build of two things",
        PluginError,
        _BUILD,
        "def build(context, device):  # here\n",
        f"{_MODEL}plain_tts.talker:build(context, device) cannot be called with a StageContext",
    ),
    _open(
        "a build that is not there",
        ConfigError,
        _BUILD,
        "def built(context: StageContext) -> Talker:\n",
        f"{_MODEL}plain_tts.talker has no 'build'",
        "did you mean 'built'?",
    ),
    _open(
        "a build that raises",
        CheckpointError,
        _BUILD,
        _BUILD + "    {}['width']  # here\n",
        "stage 'talker' cannot be built from it: KeyError: 'width'",
        "correct plain_tts.talker:build",
    ),
    _open(
        "a build that fails an assertion",
        PluginError,
        _BUILD,
        _BUILD + "    assert False, 'odd'  # here\n",
        f"{_MODEL}cannot be built: AssertionError: odd",
        "correct plain_tts.talker:build",
    ),
    _open(
        "a model that is abstract",
        PluginError,
        "    def embed_prompt(",
        "    def embed_prompts(",
        f"{_MODEL}cannot be built: TypeError",
        "abstract",
        "embed_prompt",
        "plugin plain-tts-plugin, ",
    ),
)


def _talker(name: str, method: str, new: str, *says: str) -> Fault:
    mark = "" if HERE in new else f"  {HERE}"
    code = f"{_TALKER}\n    def {method}:{mark}\n        {new}\n"
    return Fault(
        name, "request", StageError, "talker.py", _TALKER, code, ("stage 'talker' failed while ", *says), "plain_tts"
    )


def _prompt(name: str, new: str, *says: str) -> Fault:
    says = ("stage 'talker' failed while ", *says, "(plugin plain-tts-plugin, ", "plain_tts/talker.py:")
    return Fault(name, "request", StageError, "talker.py", "        return x_TD\n", new, says, "plain_tts")


def _vocoder(name: str, old: str, new: str, *says: str) -> Fault:
    return Fault(
        name, "request", StageError, "vocoder.py", old, new, ("stage 'vocoder' failed while ", *says), "plain_tts"
    )


_WAVE = "        return wav_B1S\n"
_VOCODER = ("(plugin plain-tts-plugin, ", "plain_tts/vocoder.py:")

RETURNS = (
    _talker(
        "hidden states too narrow",
        "forward(self, x_TD, batch)",
        "return super().forward(x_TD, batch)[:, 1:]",
        "in phase run_forward: Talker.forward gave torch.float32 [",
        "see ArShape.hidden_width",
    ),
    _talker(
        "hidden states that are None",
        "forward(self, x_TD, batch)",
        "super().forward(x_TD, batch)",
        "in phase run_forward: Talker.forward gave None, not a tensor [",
    ),
    _talker(
        "logits of another vocabulary",
        "logits(self, hidden_RD)",
        "return super().logits(hidden_RD)[:, 1:]",
        "in phase compute_logits: Talker.logits gave torch.float32 [1, 40], not torch.float32 [1, 41]: see ArShape.vocab_size",
    ),
    _talker(
        "logits of one column",
        "logits(self, hidden_RD)",
        "return super().logits(hidden_RD)[:, :1]",
        "logits gave torch.float32 [1, 1], not torch.float32 [1, 41]",
    ),
    _talker(
        "logits of another dtype",
        "logits(self, hidden_RD)",
        "return super().logits(hidden_RD).double()",
        "logits gave torch.float64 [1, 41], not torch.float32 [1, 41]",
        "logits_dtype",
    ),
    _talker(
        "logits that are NaN",
        "logits(self, hidden_RD)",
        "return super().logits(hidden_RD) * float('nan')",
        "sampling: Talker.logits gave NaN or infinity: see the model, its inputs and its dtype",
    ),
    _talker(
        "embeddings of other tokens",
        "embed_next(self, step)",
        "return super().embed_next(step).repeat(2, 1)",
        "in phase embed_inputs: Talker.embed_next gave [2, 32] for 1 tokens: return one embedding for each",
    ),
    _talker(
        "embeddings that are None",
        "embed_next(self, step)",
        "super().embed_next(step)",
        "in phase embed_inputs: Talker.embed_next gave None for 1 tokens",
    ),
    _talker(
        "embeddings that raise",
        "embed_next(self, step)",
        "return self.missing  # here",
        "in phase embed_inputs: AttributeError",
    ),
    _talker(
        "frames of fewer codes",
        "predict_codes(self, hidden_RD, code0_R, draw)",
        "frame = super().predict_codes(hidden_RD, code0_R, draw); return type(frame)(frame.codes_RG[:, 1:], frame.next_RD)",
        "Talker.predict_codes, codes_RG, gave torch.int64 [1, 3], not torch.int64 [1, 4]: see CodecModel.num_groups",
    ),
    _talker(
        "frames that are a tensor",
        "predict_codes(self, hidden_RD, code0_R, draw)",
        "return super().predict_codes(hidden_RD, code0_R, draw).codes_RG",
        "Talker.predict_codes gave a Tensor: return Codes",
    ),
    _prompt(
        "embeddings of another width",
        "        return x_TD[:, 1:]\n",
        "running a step of Talker, in phase run_forward: RuntimeError",
    ),
    _prompt(
        "embeddings that are NaN",
        "        return x_TD * float('nan')\n",
        "Talker.logits gave NaN or infinity: see the model, its inputs and its dtype",
    ),
    _vocoder(
        "samples too few",
        _WAVE,
        "        return wav_B1S[..., 1:]\n",
        "in phase decode_frames: Vocoder.decode gave [",
        "see VocoderModel.samples",
        *_VOCODER,
    ),
    _vocoder(
        "a waveform of two channels",
        _WAVE,
        "        return wav_B1S.repeat(1, 2, 1)\n",
        "in phase decode_frames: Vocoder.decode gave [1, 2, ",
        *_VOCODER,
    ),
    _vocoder(
        "a waveform that is None",
        _WAVE,
        "        pass\n",
        "decoding a chunk of Vocoder, in phase decode_frames: AttributeError",
        *_VOCODER,
    ),
    _vocoder(
        "samples that are NaN",
        _WAVE,
        "        return wav_B1S / 0 - wav_B1S / 0\n",
        "reading its samples: ",
        "samples of Vocoder are NaN or infinite: see the model, and its dtype",
        *_VOCODER,
    ),
    _vocoder("a waveform that raises", _WAVE, "        return {}[0]  # here\n", "in phase decode_frames: KeyError: 0"),
)
