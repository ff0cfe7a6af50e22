"""The family's processor, from a checkpoint folder. Needs no torchvision, because it takes no video."""

import sys
from pathlib import Path
from typing import NoReturn

from transformers import Qwen2Tokenizer, Qwen2VLImageProcessorPil, Qwen3OmniMoeProcessor, WhisperFeatureExtractor

from omni.checkpoint.json_file import read_object, read_optional_object
from omni.errors import CheckpointError, InputError


class _NoVideo:
    """Stands where the processor keeps its video processor, and refuses what that would be given."""

    merge_size = 2
    model_input_names: tuple[str, ...] = ()

    def __call__(self, videos: object, **settings: object) -> NoReturn:
        raise InputError(
            "videos", "video input is not supported", "give single frames as pictures, and the sound as audio"
        )


class _Processor(Qwen3OmniMoeProcessor):
    def check_argument_for_proper_class(self, argument_name: str, argument: object) -> type:
        # Without torchvision there is no class that a video processor could be an instance of.
        if isinstance(argument, _NoVideo):
            return _NoVideo
        proper: type = super().check_argument_for_proper_class(argument_name, argument)  # type: ignore[no-untyped-call]
        return proper


def load_processor(path: str | Path) -> Qwen3OmniMoeProcessor:
    """The processor of the checkpoint in `path`: tokenizer, chat template, audio features and image patches.

    Audio and image settings come from preprocessor_config.json; the chat template from chat_template.jinja,
    chat_template.json or tokenizer_config.json, whichever is there first.

    Raises CheckpointError if a file is missing or wrong. The processor raises InputError when it is given videos.
    """
    folder = Path(path)
    # Read here first, for errors that name the file.
    for file in ("preprocessor_config.json", "tokenizer_config.json"):
        read_object(folder / file)
    tokenizer = _tokenizer(folder)
    template = _chat_template(folder, tokenizer)
    images = Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
    audio = WhisperFeatureExtractor.from_pretrained(folder, local_files_only=True)
    return _Processor(images, _NoVideo(), audio, tokenizer, chat_template=template)  # type: ignore[no-untyped-call]


def _tokenizer(folder: Path) -> Qwen2Tokenizer:
    files = [folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt")]
    # Without any of them transformers would go on with an empty vocabulary.
    if not files[0].is_file() and not (files[1].is_file() and files[2].is_file()):
        problem = f"{folder} has neither tokenizer.json nor vocab.json and merges.txt"
        raise CheckpointError("tokenizer", problem, "download the tokenizer files")
    try:
        # The stage refuses a prompt that is too long; transformers would only warn, of a limit that is not the stage's.
        tokenizer: Qwen2Tokenizer = Qwen2Tokenizer.from_pretrained(
            folder, local_files_only=True, model_max_length=sys.maxsize
        )
    # What the tokenizers library raises has no class of its own.
    except Exception as error:
        problem = f"the files in {folder} cannot be read ({error})"
        raise CheckpointError("tokenizer", problem, "download the tokenizer files again") from error
    return tokenizer


def _chat_template(folder: Path, tokenizer: Qwen2Tokenizer) -> str:
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    template = read_optional_object(folder / "chat_template.json").get("chat_template") or tokenizer.chat_template
    if not isinstance(template, str):
        problem = f"there is none in {folder}"
        raise CheckpointError("chat_template", problem, "download chat_template.json or chat_template.jinja")
    return template
