"""transformers' own processor of the first family. Needs no torchvision, because it takes no video."""

from pathlib import Path
from typing import NoReturn

from transformers import Qwen2Tokenizer, Qwen2VLImageProcessorPil, Qwen3OmniMoeProcessor, WhisperFeatureExtractor

from omni.errors import InputError
from omni.frontend.hf_files import load_preprocessor, load_tokenizer


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
    """The processor of the checkpoint in `path`, its files read as the front end reads them. It raises InputError for videos."""
    folder = Path(path)
    tokenizer = load_tokenizer(folder, Qwen2Tokenizer)
    images = load_preprocessor(folder, Qwen2VLImageProcessorPil)
    audio = load_preprocessor(folder, WhisperFeatureExtractor)
    template = tokenizer.chat_template
    return _Processor(images, _NoVideo(), audio, tokenizer, chat_template=template)  # type: ignore[no-untyped-call]
