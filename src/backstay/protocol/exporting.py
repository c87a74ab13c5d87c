"""How exports are signed and redacted, from names and texts as settings, flags and variables have them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from backstay.protocol.export_file import Exporting
from backstay.protocol.redaction import Redactor

SIGNING_KEY = "DW_EXPORT_SIGNING_KEY"
SIGNING_KEY_ID = "DW_EXPORT_SIGNING_KEY_ID"
REDACTOR = "DW_EXPORT_REDACTOR"


def exporting_with(
    signing_key: str | None = None, key_id: str | None = None, redactor: str | Redactor | None = None
) -> Exporting:
    """`redactor`: a function of (value, context), or its name as package.module:function. `ValueError`: there is none."""
    named = redactor if isinstance(redactor, str) else None
    function = find_redactor(redactor) if isinstance(redactor, str) else redactor
    if named is None and function is not None:
        named = f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"
    return Exporting(signing_key=signing_key or None, key_id=key_id or None, redactor=function, policy=named)


def exporting_of(
    environment: Mapping[str, str],
    signing_key: str | None = None,
    key_id: str | None = None,
    redactor: str | Redactor | None = None,
) -> Exporting:
    """The same; a None is taken from variables of the environment."""
    return exporting_with(
        environment.get(SIGNING_KEY) if signing_key is None else signing_key,
        environment.get(SIGNING_KEY_ID) if key_id is None else key_id,
        (environment.get(REDACTOR) or None) if redactor is None else redactor,
    )


def find_redactor(name: str) -> Redactor:
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name!r}: {error}; name it as package.module:function") from None
    if not callable(found):
        raise ValueError(f"{name!r}, which is not a function of (value, context)")
    return cast(Redactor, found)
