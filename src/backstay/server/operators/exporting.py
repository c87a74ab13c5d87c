"""How this server signs and redacts exports, from its settings."""

from __future__ import annotations

from backstay.protocol.export_file import Exporting
from backstay.protocol.exporting import exporting_with
from backstay.server.settings import Settings, WrongSetting


def exporting(settings: Settings) -> Exporting:
    try:
        return exporting_with(settings.export_signing_key, settings.export_signing_key_id, settings.export_redactor)
    except ValueError as error:
        raise WrongSetting(f"export_redactor is {error}") from None
