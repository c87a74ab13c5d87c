"""How this server signs and redacts exports, from its settings."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from backstay.protocol.export import Exporting
from backstay.protocol.redaction import Redactor
from backstay.server.settings import Settings, WrongSetting


def exporting(settings: Settings) -> Exporting:
    return Exporting(
        signing_key=settings.export_signing_key,
        key_id=settings.export_signing_key_id,
        redactor=None if settings.export_redactor is None else _redactor(settings.export_redactor),
        policy=settings.export_redactor,
    )


def _redactor(name: str) -> Redactor:
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise WrongSetting(f"export_redactor is {name!r}: {error}; name it as package.module:function") from None
    if not callable(found):
        raise WrongSetting(f"export_redactor is {name!r}, which is not a function of (value, context)")
    return cast(Redactor, found)
