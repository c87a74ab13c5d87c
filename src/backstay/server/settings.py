"""The settings of a server: flags, then `DW_*` variables, then one TOML file, then defaults.

They are parsed once and passed down. An unknown name or a wrong value fails at once, with the name, the value and
the nearest valid one.
"""

from __future__ import annotations

import os
import tomllib
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta, Struct

from backstay.store.address import is_server, shown

PREFIX = "DW_"
# Variables of the same family that are not the server's: of the CLI, and of clients and their profiles.
FOREIGN = frozenset({"DW_DB", "DW_SERVER", "DW_ENV", "DW_CONFIG"})

Count = Annotated[int, Meta(ge=1)]
Limit = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class Override(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one queue. None: the same as for all queues; 0: no limit."""

    max_active_leases: Limit | None = None
    max_dispatches_per_minute: Limit | None = None
    budget_group: str | None = None


class QueueOverride(Override, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one queue, for both kinds of tasks or for each its own."""

    workflow_tasks: Override | None = None
    activity_tasks: Override | None = None


class Settings(Struct, frozen=True, kw_only=True):
    """Every setting with its type and default; `settings_reference.py` says what each means. A limit of 0 does not limit."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    store: str = "sqlite:backstay.db"
    advertise: str | None = None
    weight: Annotated[int, Meta(ge=0, le=1000)] = 1
    node_name: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    server_id: str = "backstay"
    default_namespace: str = "default"

    auth: Literal["token", "signature", "none"] = "token"
    token: str | None = None
    worker_token: str | None = None
    viewer_token: str | None = None
    operator_token: str | None = None
    admin_token: str | None = None
    allowed_hosts: list[str] = []
    signature_key: str | None = None
    export_signing_key: str | None = None
    export_signing_key_id: str | None = None
    export_redactor: str | None = None
    observability: str | None = None

    session_lifetime_seconds: Annotated[int, Meta(ge=60, le=30 * 86_400)] = 12 * 3600

    environment_name: Annotated[str, Meta(min_length=1, max_length=40)] | None = None
    environment_colour: Annotated[str, Meta(pattern=r"^(#[0-9a-fA-F]{6}|[a-z]{3,20})$")] | None = None

    metrics_open: bool = False
    log_format: Literal["text", "json"] = "text"

    tls_certificate: str | None = None
    tls_key: str | None = None

    max_connections: Count = 10_000
    max_anonymous_connections: Count = 1_000
    max_anonymous_connections_per_address: Count = 100
    max_head_bytes: Count = 64 << 10
    max_headers: Count = 100
    max_url_bytes: Count = 16 << 10
    head_seconds: Seconds = 10
    idle_seconds: Seconds = 75
    max_body_bytes: Count = 8 << 20
    body_seconds: Seconds = 30
    max_page_bytes: Annotated[int, Meta(ge=1, le=64 << 20)] = 32 << 20
    max_buffered_bytes: Count = 512 << 20
    max_buffered_bytes_per_caller: Count = 128 << 20
    max_parked_polls: Count = 20_000
    max_bulk_runs: Count = 10_000
    max_live_streams: Count = 2_000
    max_live_streams_per_address: Count = 100
    drain_seconds: Seconds = 20
    drain_notice_seconds: Annotated[float, Meta(ge=0, le=3600)] = 0

    heartbeat_interval_seconds: Annotated[int, Meta(ge=1, le=3600)] = 60
    worker_stale_after_seconds: Annotated[int, Meta(ge=1, le=86_400)] = 180
    worker_forgotten_after_seconds: Annotated[int, Meta(ge=60, le=365 * 86_400)] = 7 * 86_400
    compatibility_namespace: str | None = None

    workflow_task_max_active_leases_per_queue: Limit = 0
    activity_task_max_active_leases_per_queue: Limit = 0
    workflow_task_max_dispatches_per_minute: Limit = 0
    activity_task_max_dispatches_per_minute: Limit = 0
    workflow_task_max_active_leases_per_namespace: Limit = 0
    activity_task_max_active_leases_per_namespace: Limit = 0
    workflow_task_max_dispatches_per_minute_per_namespace: Limit = 0
    activity_task_max_dispatches_per_minute_per_namespace: Limit = 0
    task_queue_admission_overrides: dict[str, QueueOverride] = {}
    task_queue_budget_groups: dict[str, Limit] = {}

    retention_interval_seconds: Annotated[int, Meta(ge=0, le=86_400)] = 3600
    retention_archive: str | None = None
    views: bool = True

    query_timeout_seconds: Seconds = 10
    update_wait_completion_timeout_seconds: Annotated[float, Meta(gt=0, le=60)] = 10
    query_task_max_pending_per_queue: Annotated[int, Meta(ge=1, le=10_000)] = 1024

    continue_as_new_event_threshold: Limit = 10_000
    continue_as_new_size_bytes_threshold: Limit = 5 << 20

    task_repair_redispatch_after_seconds: Annotated[int, Meta(ge=1, le=3600)] = 3
    task_repair_loop_throttle_seconds: Annotated[int, Meta(ge=1, le=3600)] = 5
    task_repair_scan_limit: Annotated[int, Meta(ge=1, le=1000)] = 25
    task_repair_failure_backoff_max_seconds: Annotated[int, Meta(ge=3, le=600)] = 60

    v2_matching_role_queue_wake: bool = True
    wake_signal_ttl_seconds: Count = 60

    @property
    def database(self) -> str:
        """A path, or the URL of a server."""
        return self.store.removeprefix("sqlite:")


class WrongSetting(Exception):
    """A setting that cannot be used. The message has the name, the value, and the nearest valid one."""


_HINTS = get_type_hints(Settings, include_extras=True)


def load(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings from all sources. `flags` are by setting name; None is a flag that was not used."""
    config = flags.get("config") or environment.get(f"{PREFIX}CONFIG")
    given: dict[str, tuple[Any, str]] = {}
    if config is not None:
        for name, value in _file(Path(config)).items():
            given[name] = (value, f"{name} in {config}")
    for variable, value in environment.items():
        if variable.startswith(PREFIX) and variable not in FOREIGN:
            name = variable.removeprefix(PREFIX).lower()
            given[name] = (value, variable)
    for name, value in flags.items():
        if value is not None and name != "config":
            given[name] = (value, "--" + name.replace("_", "-"))
    return _checked(Settings(**{name: _convert(name, value, said) for name, (value, said) in given.items()}))


def _file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WrongSetting(f"the config file {path} cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise WrongSetting(f"the config file {path} is not TOML: {error}") from None


def _convert(name: str, value: Any, said: str) -> Any:
    hint = _HINTS.get(name)
    if hint is None:
        near = get_close_matches(name, _HINTS, 1)
        meant = f"; did you mean {_spelled(near[0], said)}?" if near else f"; there are: {', '.join(sorted(_HINTS))}"
        shown = _shown(name if not near else name + near[0], value)  # a secret under a misspelt name is one, too
        raise WrongSetting(f"there is no setting {said} (value {shown}){meant}")
    try:
        if isinstance(value, str) and typing.get_origin(hint) is dict:
            return msgspec.json.decode(value, type=hint)
        if isinstance(value, str) and typing.get_origin(hint) is list:
            return [part.strip() for part in value.split(",") if part.strip()]
        return msgspec.convert(value, hint, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        near = _nearest(value, hint)
        instead = f"; the nearest valid value is {near!r}" if near else ""
        raise WrongSetting(f"{said} is {_shown(name, value)}: {str(error).lower()}{instead}") from None


def _nearest(value: Any, hint: Any) -> str | None:
    """The bound that a number exceeds, or the choice with the most similar spelling."""
    for meta in getattr(hint, "__metadata__", ()):
        bounds = [limit for limit in (meta.ge, meta.gt, meta.le) if limit is not None]
        try:
            return str(min(bounds, key=lambda limit: abs(limit - float(value))))
        except ValueError:
            return None  # no number at all
    choices = [choice for choice in getattr(hint, "__args__", ()) if isinstance(choice, str)]
    return next(iter(get_close_matches(str(value), choices, 1, cutoff=0)), None)


def _spelled(name: str, said: str) -> str:
    if said.startswith(PREFIX):
        return PREFIX + name.upper()
    return "--" + name.replace("_", "-") if said.startswith("--") else name


def _shown(name: str, value: Any) -> str:
    if name == "store":
        return repr(shown(str(value)))
    return "hidden" if "token" in name or "key" in name else repr(value)


def _check_groups(settings: Settings) -> None:
    for queue, override in settings.task_queue_admission_overrides.items():
        for named in (override, override.workflow_tasks, override.activity_tasks):
            group = None if named is None else named.budget_group
            if group is not None and group not in settings.task_queue_budget_groups:
                near = get_close_matches(group, settings.task_queue_budget_groups, 1)
                meant = f"; did you mean {near[0]!r}?" if near else ""
                raise WrongSetting(
                    f"task_queue_admission_overrides[{queue!r}] names the budget group {group!r},"
                    f" which task_queue_budget_groups does not have{meant}"
                )


def _checked(settings: Settings) -> Settings:
    if not (settings.store.startswith("sqlite:") or is_server(settings.store)) or not settings.database:
        raise WrongSetting(
            f"store is {shown(settings.store)!r}; use sqlite:PATH, for example sqlite:backstay.db, or"
            " postgresql://USER@HOST/DATABASE"
        )
    if settings.auth == "signature" and not settings.signature_key:
        raise WrongSetting("auth is 'signature', which needs signature_key (DW_SIGNATURE_KEY)")
    _check_groups(settings)
    if settings.weight == 0 and not is_server(settings.store):
        raise WrongSetting("weight is 0, but a server on a SQLite file is its only engine; leave weight out")
    if settings.advertise is not None:
        from backstay.link.http import origin_of  # here: few need it, and it imports asyncio

        try:
            origin_of(settings.advertise)
        except ValueError as error:
            raise WrongSetting(f"advertise: {error}") from None
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise WrongSetting("tls_certificate and tls_key go together; name both or none")
    if settings.worker_stale_after_seconds <= settings.heartbeat_interval_seconds:
        raise WrongSetting(
            f"worker_stale_after_seconds is {settings.worker_stale_after_seconds}: it must be above"
            f" heartbeat_interval_seconds ({settings.heartbeat_interval_seconds}), or every worker counts as stale between two heartbeats"
        )
    if settings.worker_forgotten_after_seconds < settings.worker_stale_after_seconds:
        raise WrongSetting(
            f"worker_forgotten_after_seconds is {settings.worker_forgotten_after_seconds}: it must not be below"
            f" worker_stale_after_seconds ({settings.worker_stale_after_seconds})"
        )
    return settings
