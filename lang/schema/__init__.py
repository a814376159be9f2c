"""Schemas, patterns and grammars, checked and brought to the form that an engine enforces.

types.py         a Python type → JSON schema, and the adapter that parses its values
type_schemas.py  what a model should write for a type
front.py         JSON schema → normal form: only keywords that the engines enforce, the rest refused by name
                 (documents, metaschema, cases, negation, scalars, arrays, objects, shapes, graph, pruning, emission)
formats.py       `format` → an exact pattern
patterns.py      Python regex, ECMAScript pattern → the pattern that the engines read the same way
                 (charsets, ecma, regex_parse, regex_ast, regex_anchors)
grammars.py      GBNF and Lark texts, checked (grammar_parse, grammar_ast)
values.py        a finished text → the value
apart.py         long work in a process of its own, while an engine runs (processes, hurry)
"""
