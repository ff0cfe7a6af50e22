"""The four ways to state a form, in llguidance's language."""

import json
import re

from llguidance import LLMatcher, grammar_from

from omni.sampling import StructuredOutput

# As much as a pretty-printed document needs. Without a bound, a model that likes spaces would go on with them forever.
_WHITESPACE = r"[\x20\x0A\x0D\x09]{0,40}"


def form_of(structured: StructuredOutput) -> tuple[str, str]:
    """Which of the fields of `structured` is given, and a text that stands for its value."""
    if structured.json is not None:
        return "json", structured.json if isinstance(structured.json, str) else json.dumps(structured.json)
    if structured.regex is not None:
        return "regex", structured.regex
    if structured.choice is not None:
        return "choice", json.dumps(structured.choice)
    assert structured.grammar is not None
    return "grammar", structured.grammar


def grammar_text(form: str, text: str) -> str:
    """The grammar that a form of `form_of` stands for. Raises ValueError where the form is not even read."""
    match form:
        case "json":
            return LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": _WHITESPACE})
        case "regex":
            return LLMatcher.grammar_from_regex(text)
        case "choice":
            return LLMatcher.grammar_from_regex("|".join(_literal(choice) for choice in json.loads(text)))
        case _:
            return grammar_from("grammar", text)


def _literal(text: str) -> str:
    """A regular expression for the text itself."""
    return re.sub(r"[^0-9A-Za-z_ ]", lambda sign: f"\\u{{{ord(sign[0]):X}}}", text)
