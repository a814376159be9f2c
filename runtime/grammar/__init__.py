"""Constrained decoding: constraints become masks over the vocabulary.

matcher.py            the contract between the engine and a grammar
compiler.py           GrammarCompiler: constraint → compiled grammar, cached, off the step loop
choice.py             which engine enforces a constraint
sources.py            a constraint in the languages of the engines
llguidance_engine.py  the two engines
xgrammar_engine.py
session.py            one sequence in its grammar: end tokens, rollback, forced text
forced.py             forced text → forced ids
ahead.py              the masks of many sequences at once, on all cores
vocabulary.py         what a grammar must know of a tokenizer
cache.py              a bounded cache
"""

from .compiler import GrammarCompiler
from .matcher import CompiledGrammar, Mask, Matcher, mask_words
from .vocabulary import Vocabulary

__all__ = ["CompiledGrammar", "GrammarCompiler", "Mask", "Matcher", "Vocabulary", "mask_words"]
