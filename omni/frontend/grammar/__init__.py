"""Structured outputs: grammars, compiled to a mask over the vocabulary for each token."""

from omni.frontend.grammar.compiler import GrammarCompiler
from omni.frontend.grammar.matcher import Grammar, GrammarMatcher

__all__ = ["Grammar", "GrammarCompiler", "GrammarMatcher"]
