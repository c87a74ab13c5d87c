"""Copies a whole store into another one, in any direction between files and servers: `dw store copy`.

The source does not change: the copier is its engine, and no other process can write to it. The target carries a mark
(`mark.py`) from before the first row until everything was compared, and while it does, only a copier opens it.
Instances go over in pages by key, each page in one transaction with the mark that says how far the copy is, so a copier
that was killed goes on with the next page.
"""
