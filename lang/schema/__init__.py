"""Schemas, patterns and grammars, checked and brought to the form that an engine enforces.

types.py      a Python type → JSON schema, and the adapter that parses its values
references.py `$ref`, `$id`, anchors, given documents → the schema they name
checks.py     is it a schema at all; contradictions that need no model to see
front.py      JSON schema → normal form: only keywords that the engines enforce, the rest refused by name
formats.py    `format` → an exact pattern
patterns.py   Python regex → the pattern that the engines read the same way
grammars.py   GBNF and Lark texts, checked
values.py     a finished text → the value
"""
