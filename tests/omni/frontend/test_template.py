"""Chat templates: what transformers renders, and an end whatever they do."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from omni.errors import QUOTED, CheckpointError, InputError
from omni.frontend.probe import blamed_on
from omni.frontend.template import MAX_SOURCE, SECONDS, ChatTemplate, effort
from tests.support.csm_reference import tiny_csm
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_qwen2_5_omni import tiny_folder
from tests.support.tiny_text import write_chat_model

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "what is {{ this }}"}, {"type": "image", "image": ""}]},
    {"role": "assistant", "content": [{"type": "text", "text": "a <b> & 'c'"}]},
    {"role": "0", "content": [{"type": "text", "text": "\tand this? "}, {"type": "audio", "audio": ""}]},
]


@pytest.mark.parametrize("answer", [True, False])
@pytest.mark.parametrize("made", [tiny_checkpoint, tiny_folder, tiny_csm, None])
def test_families_templates_equal_transformers(made: Any, answer: bool, tmp_path: Path) -> None:
    folder = made() if made is not None else write_chat_model(tmp_path / "chat")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    if not tokenizer.chat_template:
        tokenizer.chat_template = json.loads((folder / "chat_template.json").read_text())["chat_template"]
    template = ChatTemplate(tokenizer.get_chat_template(), tokenizer.special_tokens_map, "chat_template")
    for count in range(1, len(CHAT) + 1):
        expected = tokenizer.apply_chat_template(CHAT[:count], add_generation_prompt=answer, tokenize=False)
        assert template.render(CHAT[:count], answer=answer) == expected


CONSTRUCTS = """
{%- set ns = namespace(found=false, count=0) %}
{%- macro show(part, last=true) -%}
  {%- if part is string %}{{ part|trim }}{% else %}{{ part.text|default('-', true)|upper }}{% endif %}{{ ',' if not last }}
{%- endmacro %}
{%- for message in messages if message.role != 'system' %}
  {%- set ns.count = ns.count + 1 %}
  {%- if loop.first %}[{{ bos_token }}]{% endif %}
  {%- if message.content is string %}{{ message.content.split('|')[-1].lstrip('\\n') ~ loop.index0 ~ 1.5 }}
  {%- else %}{% for part in message.content %}{% generation %}{{ show(part, loop.last) }}{% endgeneration %}{% endfor %}
  {%- endif %}
  {%- if ns.count * 2 > 2 and message.role in ('user', 'assistant') %}{% set ns.found = true %}{% continue %}{% endif %}
  <{{ '%s-%03d'|format(message.role, ns.count) }} {{ '{:>5}'.format(message.role) }} {{ [message.role, 2]|join('/') }}>
{%- endfor %}
{{ {'tools': tools, 'é': documents}|tojson(indent=1) }}
{% for message in messages[::-1] %}{% if loop.index > 2 %}{% break %}{% endif %}{{ message['role'] }}{% else %}none{% endfor %}
{% macro wrap(x) %}({{ x }} {{ caller() }}){% endmacro %}{% call wrap('a') %}b{% endcall %}
{% set kept %} block {{ ns.found }} {% endset %}
{{ kept|replace(' ', '_') }}
{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='role')|list }} {{ range(3)|sum }} {{ 7 // 2 }} {{ 2 ** 5 % 7 }}
{{ missing is defined }} {{ missing|default([1, (2, 3), {'a': 'b'}]) }} {% if add_generation_prompt %}go{% endif %}
"""


@pytest.mark.parametrize("answer", [True, False])
def test_all_features_of_templates_equal_transformers(answer: bool) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_csm())
    template = ChatTemplate(CONSTRUCTS, tokenizer.special_tokens_map, "chat_template")
    for chat in (CHAT, CHAT[1:], CHAT[:1], [{"role": "user", "content": "x|\n y"}] * 3):
        expected = tokenizer.apply_chat_template(
            chat, chat_template=CONSTRUCTS, add_generation_prompt=answer, tokenize=False
        )
        assert template.render(chat, answer=answer) == expected


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}"
ENDLESS = {
    "nested loops": LOOP + "{% endfor %}{% endfor %}",
    "nested loops that write": LOOP + "0123456789{% endfor %}{% endfor %}",
    "a block that is kept": "{% set x %}" + LOOP + "{{ '0123456789' }}{% endfor %}{% endfor %}{% endset %}",
    "filters over filters": "{{ range(99999)|select('in', range(99999)|list)|list }}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a power": "{% set x = 10 ** 300 %}{{ x ** x }}",
    "a long text": "{{ 'x' * 10 ** 10 }}",
    "a doubled text": "{% set n = namespace(x='xx') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "a doubled list": "{% set n = namespace(x=[0]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "a list within itself": "{% set n = namespace(x=[0]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "a wide filter": "{{ 'x'|center(10 ** 10) }}",
    "a wide method": "{{ 'x'.ljust(10 ** 10) }}",
    "a wide format": "{{ '%10000000000d' % 3 }}",
    "a wide text format": "{{ '{:{}}'.format(3, 10 ** 10) }}",
    "a long join": "{{ (range(99999)|list)|join('x' * 99999) }}",
    "replaced text": "{{ ('x' * 999999)|replace('x', 'y' * 999999) }}",
    "many parts": "{{ (('a' * 60000).replace('a', 'a' * 1000)).split('a')|length }}",
    "many words": "{{ ('a ' * 60000).replace('a', 'a ' * 1000).split()|length }}",
    "a grouped list": "{{ ('ab' * 65000).replace('a', 'a' * 14)|list|groupby('x')|list|length }}",
    "many links": "{{ ('http://a.b ' * 60000).replace('b', 'b ' * 9)|urlize|length }}",
}


@pytest.mark.parametrize("what", ENDLESS)
def test_an_endless_template_is_stopped(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = SECONDS if what == "nested loops" else 0.2
    monkeypatch.setattr(effort, "SECONDS", seconds)
    begin = time.thread_time()
    problem = r"^chat_template: cannot render a chat \((takes more than|makes|uses|nests|splits|has a filter)"
    with pytest.raises(CheckpointError, match=problem):
        ChatTemplate("{{ messages }}" + ENDLESS[what], {}, "chat_template").probe(CHAT, answer=True)
    # CPU time of this thread: other load does not count. One operation may still be under way at the end of it.
    assert time.thread_time() - begin < seconds + 2


@pytest.mark.parametrize("source", ["{{ (" * 9999, "{% if 1 %}" * 9999, "{% for a in b %}" * 30 + "{% endfor %}" * 30])
def test_a_template_that_does_not_compile_is_refused(source: str) -> None:
    with pytest.raises(CheckpointError, match=r"^f: is cut off or no Jinja template"):
        ChatTemplate("{{ messages }}" + source, {}, "f")


def test_a_template_of_any_length_is_not_read() -> None:
    ChatTemplate("{{ messages }}".ljust(MAX_SOURCE), {}, "f")
    with pytest.raises(CheckpointError, match=r"^f: has 262,145 characters, above 262,144"):
        ChatTemplate("{{ messages }}".ljust(MAX_SOURCE + 1), {}, "f")


def test_a_chat_that_the_template_refuses_is_an_input_error() -> None:
    template = ChatTemplate("{{ messages }}{{ raise_exception('roles must alternate') }}", {}, "f")
    with pytest.raises(InputError, match=r"^messages: cannot be rendered .* \(roles must alternate\)"):
        template.render(CHAT, answer=True)


def test_a_templates_message_is_shortened_to_one_line() -> None:
    source = "{{ messages }}{{ raise_exception('a\\nb' ~ messages[0].content * 999) }}"
    with pytest.raises(InputError) as caught:
        ChatTemplate(source, {}, "f").render([{"role": "user", "content": "\ud800"}], answer=True)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < QUOTED + 150


def test_a_librarys_message_is_shortened_to_one_line() -> None:
    for error in (ValueError("a\nb\ud800" * 999), InputError("messages", "a\nb\ud800" * 999, "mend it")):
        with pytest.raises(CheckpointError) as caught, blamed_on("f"):
            raise error
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < QUOTED + 150


def test_threads_do_not_wait_for_each_other() -> None:
    """One rendering is held in the middle; others go on."""
    reached, release = threading.Event(), threading.Event()

    class Held(str):
        def __str__(self) -> str:
            reached.set()
            assert release.wait(60)
            return "held"

    template = ChatTemplate("{% for message in messages %}{{ message.content }}{% endfor %}", {}, "f")
    results: list[str] = []
    slow = threading.Thread(
        target=lambda: results.append(template.render([{"content": [Held()]}, {"content": Held()}], answer=True))
    )

    slow.start()
    try:
        assert reached.wait(60)
        assert template.render([{"content": "quick"}], answer=True) == "quick"
        assert not results
    finally:
        release.set()
        slow.join(60)
    assert not slow.is_alive()
    assert results
