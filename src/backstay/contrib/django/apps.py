"""The Django app. It has no models, and opens nothing."""
# pyright: reportMissingTypeStubs=false, reportUntypedBaseClass=false, reportUnknownVariableType=false

from __future__ import annotations

from django.apps import AppConfig


class BackstayConfig(AppConfig):
    name = "backstay.contrib.django"
    label = "backstay"
    verbose_name = "Backstay"
