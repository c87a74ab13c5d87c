"""What each setting of the server means, in sections: `dw server --help` and the reference are made from it."""

from __future__ import annotations

from typing import NamedTuple

from backstay.server.settings import PREFIX, Settings


class Section(NamedTuple):
    """Settings that belong together. `intro` is Markdown, as of a page in docs/reference."""

    title: str
    settings: dict[str, str]
    intro: str = ""


SECTIONS = [
    Section(
        "Where it listens, what it stores",
        {
            "host": "the address to listen on",
            "port": "the port; 0 takes a free one",
            "store": "the database: `sqlite:PATH`, or `postgresql://USER@HOST/DATABASE`",
            "advertise": "the address, such as `http://10.0.0.7:8080`, by which other servers of the same database call this"
            " one; by default the address that it listens on, unless that is a wildcard such as `0.0.0.0`. Without one, or if"
            " it cannot be reached, they reach it through the database, which takes more work",
            "weight": "the share of the workflows that this server works for, beside other servers of the same database, in"
            " proportion to theirs; 0: it takes requests, and hands them to the others",
            "node_name": "what operators call this server among the others of its database; by default its machine and"
            " process id",
            "server_id": "the name that the server reports",
            "environment_name": "what pages call this server, for example `production`",
            "environment_colour": "the colour that pages give it: a name such as `red`, or `#rrggbb`",
            "default_namespace": "for callers that name none in `X-Namespace`",
            "tls_certificate": "the certificate chain, a PEM file; with `tls_key` the server speaks HTTPS",
            "tls_key": "the private key of the certificate, a PEM file",
            "drain_seconds": "how long running requests may take when the server stops",
            "drain_notice_seconds": "how long a server that was told to stop (SIGTERM) still takes requests while"
            " `/api/ready` says that it is not ready; longer than a load balancer needs to notice",
        },
        "How to [use PostgreSQL](../how-to/postgresql.md).",
    ),
    Section(
        "Who may call",
        {
            "auth": "how callers prove who they are: `token`, `signature` or `none`",
            "token": "a token with every role; if no token is set, one is made and printed at the start",
            "worker_token": "a token with the role *worker*",
            "viewer_token": "a token with the role *viewer*, which reads and changes nothing",
            "operator_token": "a token with the role *operator*",
            "admin_token": "a token with the role *admin*",
            "signature_key": "the shared key of signed requests",
            "session_lifetime_seconds": "how long a browser stays signed in",
            "metrics_open": "whether `GET /metrics`, for Prometheus, needs no credential",
        },
        "How to [sign requests](../how-to/server.md#sign-requests-instead).",
    ),
    Section(
        "Requests and connections",
        {
            "max_connections": "connections at once; fewer if the process may not have as many file descriptors",
            "max_anonymous_connections": "of those, connections without a credential yet; at most half of all. Beyond it"
            " the oldest of them is closed",
            "max_anonymous_connections_per_address": "the same, per address",
            "max_head_bytes": "size of a request's head and trailers (431)",
            "max_headers": "number of headers (431)",
            "max_url_bytes": "size of the URL (414)",
            "head_seconds": "how long a head may take, the first request of a connection (408), and a TLS handshake",
            "idle_seconds": "how long a connection may be idle between two requests",
            "max_body_bytes": "size of a body (413)",
            "body_seconds": "how long a body may take (408)",
            "max_page_bytes": "how much history one reply to a worker holds; longer histories are read page by page",
            "max_parked_polls": "polls and calls that wait at once; further ones are refused and may be repeated (429)",
            "max_bulk_runs": "runs that one bulk operation may take; one of more is refused (422)",
            "max_live_streams": "streams of `/api/live` at once; further ones are refused (429)",
            "max_live_streams_per_address": "the same, per address",
        },
    ),
    Section(
        "Workers",
        {
            "heartbeat_interval_seconds": "how often workers report",
            "worker_stale_after_seconds": "when a silent worker counts as stale",
            "worker_forgotten_after_seconds": "when a stale worker is forgotten; if it comes back later it must register"
            " again. Per namespace the last 1,000 stale workers are kept at most",
            "compatibility_namespace": "the app of this server, if several apps share one database: only workers that name"
            " the same one, or that registered here without one, count in its fleet",
            "query_timeout_seconds": "how long a query waits for a worker's answer",
            "query_task_max_pending_per_queue": "queries that may wait for workers of one queue",
            "update_wait_completion_timeout_seconds": "how long a caller waits for the end of an update, unless it sets"
            " `wait_timeout_seconds` (up to 60); then it is told that the update is accepted, and asks again under"
            " `/updates/{id}`",
        },
    ),
    Section(
        "Limits of task queues",
        {
            "workflow_task_max_active_leases_per_queue": "workflow tasks that a queue may have out at once",
            "activity_task_max_active_leases_per_queue": "activity tasks that a queue may have out at once",
            "workflow_task_max_dispatches_per_minute": "workflow tasks that a queue may hand out per minute",
            "activity_task_max_dispatches_per_minute": "activity tasks that a queue may hand out per minute",
            "workflow_task_max_active_leases_per_namespace": "the same for all queues of a namespace together",
            "activity_task_max_active_leases_per_namespace": "the same for all queues of a namespace together",
            "workflow_task_max_dispatches_per_minute_per_namespace": "the same for all queues of a namespace together",
            "activity_task_max_dispatches_per_minute_per_namespace": "the same for all queues of a namespace together",
            "task_queue_admission_overrides": "limits of single queues, in place of those above",
            "task_queue_budget_groups": "dispatches per minute that several queues share, by the name of the group",
        },
        "0 is no limit. Several servers of one database keep to these limits together. [How to limit queues](../how-to/server.md#limit-queues-share-them-fairly).",
    ),
    Section(
        "Retention and export",
        {
            "retention_interval_seconds": "how often old runs are removed; 0: only on request",
            "retention_archive": "the directory that removed runs are written to first",
            "views": "store views of runs for operators; off, lists by state find nothing and details take longer",
            "export_signing_key": "signs exports and archives (HMAC-SHA256)",
            "export_signing_key_id": "the name of that key in the signature",
            "export_redactor": "`package.module:function`, called as `(value, context)` for every payload and every text"
            " that may quote one, before an export leaves; its return value replaces it. The retention archive is not"
            " redacted",
        },
    ),
    Section(
        "What operators read",
        {
            "observability": "`package.module:function`, called with the standard observability object of the server; what"
            " it returns answers dashboard, metrics, health, overview, lists, details and exports",
        },
        "How to [replace what operators read](../how-to/observability.md#replace-what-operators-read).",
    ),
    Section(
        "Long histories",
        {
            "continue_as_new_event_threshold": "events of a run at which lists and metrics recommend `continue_as_new`."
            " Advisory; 0 disables",
            "continue_as_new_size_bytes_threshold": "the same by size in bytes",
        },
    ),
    Section(
        "Repair",
        {
            "task_repair_redispatch_after_seconds": "when a ready task that no worker was offered counts as lost",
            "task_repair_loop_throttle_seconds": "the pause between two scans",
            "task_repair_scan_limit": "candidates of each kind that one repair pass takes",
            "task_repair_failure_backoff_max_seconds": "the longest pause before a failed workflow task is retried",
            "v2_matching_role_queue_wake": "whether this server scans for lost work by itself",
            "wake_signal_ttl_seconds": "how long a scan counts",
        },
        "How to [scan in a process of its own](../how-to/server.md#move-the-search-for-lost-work-to-its-own-process).",
    ),
]

MEANINGS = {name: meaning for section in SECTIONS for name, meaning in section.settings.items()}


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def flag_help(name: str) -> str:
    """The help of the flag of a setting."""
    meaning = MEANINGS[name].replace("`", "")
    default = getattr(Settings(), name)
    return f"{meaning[0].upper()}{meaning[1:]}." + ("" if default is None else f" Default: {default}.")
