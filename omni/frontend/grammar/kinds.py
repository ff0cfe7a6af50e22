"""The four kinds of structured output, as grammars of llguidance."""

import json
import re

from llguidance import LLMatcher, grammar_from

from omni.sampling import StructuredOutput

# Enough for a pretty-printed document. Without a bound, a model could write spaces forever.
_WHITESPACE = r"[\x20\x0A\x0D\x09]{0,40}"


def kind_of(structured: StructuredOutput) -> tuple[str, str]:
    """The field of `structured` that is given, and its value as a text."""
    if structured.json is not None:
        return "json", structured.json if isinstance(structured.json, str) else json.dumps(structured.json)
    if structured.regex is not None:
        return "regex", structured.regex
    if structured.choice is not None:
        return "choice", json.dumps(structured.choice)
    assert structured.grammar is not None
    return "grammar", structured.grammar


def grammar_text(kind: str, text: str) -> str:
    """The grammar for a result of `kind_of`. Raises ValueError for a text that cannot be parsed."""
    match kind:
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
