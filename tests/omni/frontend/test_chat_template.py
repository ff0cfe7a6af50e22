"""A chat template that is cut off or wrong is refused when the front end is made, by an error that names its file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from omni.checkpoint import Checkpoint
from omni.errors import CheckpointError
from omni.frontend.hf_files import load_tokenizer
from omni_csm.frontend import build as csm
from omni_qwen2_5_omni.frontend import build as qwen2_5_omni
from omni_qwen3_omni.frontend import build as qwen3_omni
from omni_text.frontend import build as text
from tests.support.csm_reference import tiny_csm
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_qwen2_5_omni import tiny_folder

WHOLE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")


def place(folder: Path, file: str, template: object) -> None:
    """Gives the template in one of the files that may hold it."""
    if file.endswith("jinja"):
        assert isinstance(template, str)
        (folder / file).write_text(template)
        return
    held = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps(held | {"chat_template": template}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of CSM's tokenizer, without a template."""
    left = shutil.ignore_patterns("*.safetensors", "chat_template*")
    return Path(shutil.copytree(tiny_csm(), tmp_path / "model", ignore=left))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (WHOLE[:-4], "is cut off or no Jinja template"),
        (WHOLE[:40], "is cut off or no Jinja template"),
        (WHOLE.replace("for", "four"), "is cut off or no Jinja template"),
        (WHOLE.replace("'] }", "'] | shouted }"), "uses an unsupported construct (No filter named 'shouted'"),
        ("{% set count = namespace(value=0) %}", "is cut off: it reads no messages"),
    ],
)
def test_a_wrong_template_is_named_by_its_file(folder: Path, file: str, template: str, problem: str) -> None:
    place(folder, file, template)
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(folder, PreTrainedTokenizerFast)
    assert caught.value.field.startswith(file)
    assert caught.value.problem.startswith(problem)
    supported = "use a template that transformers can render" if "shouted" in template else "download the file again"
    assert caught.value.remedy == supported


@pytest.mark.parametrize(("content", "problem"), [(b"", "is cut off"), (WHOLE.encode() + b"\xe6\x97", "is not UTF-8")])
@pytest.mark.parametrize("chat", [True, False])
def test_a_file_that_ends_too_early(folder: Path, content: bytes, problem: str, chat: bool) -> None:
    (folder / "chat_template.jinja").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"^chat_template\.jinja: {problem}"):
        load_tokenizer(folder, PreTrainedTokenizerFast, chat=chat)


@pytest.mark.parametrize("file", FILES[1:])
def test_a_template_that_is_a_number_is_refused(folder: Path, file: str) -> None:
    place(folder, file, 3)
    with pytest.raises(CheckpointError, match=rf"^{file}.*holds a int, not a template"):
        load_tokenizer(folder, PreTrainedTokenizerFast)


@pytest.mark.parametrize("file", FILES)
def test_a_template_that_transformers_renders_is_taken(folder: Path, file: str) -> None:
    """With what transformers adds to Jinja: marks around answers, `raise_exception`, loop controls."""
    added = "{% generation %}{% if false %}{{ raise_exception('no') }}{% endif %}{% endgeneration %}"
    place(folder, file, WHOLE.replace("{% endfor", added + "{% break %}{% endfor"))
    tokenizer = load_tokenizer(folder, PreTrainedTokenizerFast)
    chat = [{"role": "user", "content": "hello"}, {"role": "user", "content": "again"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "hello"


@pytest.mark.parametrize("file", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_tokenizer_that_may_lack_one(folder: Path, file: str) -> None:
    assert not load_tokenizer(folder, AutoTokenizer, chat=False).chat_template
    place(folder, file, WHOLE)
    assert load_tokenizer(folder, AutoTokenizer, chat=False).chat_template == WHOLE
    place(folder, file, WHOLE[:-4])
    with pytest.raises(CheckpointError, match=rf"^{file}"):
        load_tokenizer(folder, AutoTokenizer, chat=False)


@pytest.mark.parametrize(
    ("made", "build"), [(tiny_checkpoint, qwen3_omni), (tiny_folder, qwen2_5_omni), (tiny_csm, csm), (tiny_csm, text)]
)
def test_every_family_refuses_it_at_the_start(
    tmp_path: Path, made: Callable[[], Path], build: Callable[[Checkpoint], object]
) -> None:
    folder = Path(shutil.copytree(made(), tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")))
    place(folder, "chat_template.jinja", WHOLE[:-4])
    with pytest.raises(CheckpointError, match=r"^chat_template\.jinja: is cut off"):
        build(Checkpoint(folder))
