"""The shapes of answers that the operator's page reads.

A handler that says one of them as what it returns is checked against it by pyright, and so are the modules of the page: types are
made of these shapes for the check of their code (`tools/js_types.py`). Nothing of this is looked at while the server runs.
"""
