"""The meaning of each setting of the server, in sections: `dw server --help` and the reference are made from it."""

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
        "Address and database",
        {
            "host": "the address to listen on",
            "port": "the port; 0 takes a free one",
            "store": "the database: `sqlite:PATH`, or `postgresql://USER@HOST/DATABASE`",
            "advertise": "the address, such as `http://10.0.0.7:8080`, at which other servers of the same database"
            " call this server. Default: the address that it listens on, unless that is a wildcard such as `0.0.0.0`."
            " Without an address, or if it is unreachable, requests go through the database, which is slower",
            "weight": "the share of the workflows that this server owns, in proportion to the weights of the other"
            " servers of the database. A server of weight 0 owns none: it accepts requests and forwards them",
            "node_name": "the name of this server among the servers of its database. Default: machine name and process"
            " id",
            "server_id": "the name that the server reports",
            "environment_name": "the name of the environment that pages show, for example `production`",
            "environment_colour": "the colour of the environment on pages: a name such as `red`, or `#rrggbb`",
            "default_namespace": "the namespace of requests without `X-Namespace`",
            "tls_certificate": "the certificate chain, a PEM file; with `tls_key` the server speaks HTTPS",
            "tls_key": "the private key of the certificate, a PEM file",
            "log_format": "the format of the log: `text`, or `json` with one object per line",
            "drain_seconds": "seconds that running requests may take when the server stops",
            "drain_notice_seconds": "seconds after SIGTERM in which the server still accepts requests while"
            " `/api/ready` reports that it is not ready. Set it longer than the check interval of your load balancer",
        },
        "How to [use PostgreSQL](../how-to/postgresql.md).",
    ),
    Section(
        "Authentication",
        {
            "auth": "the authentication of callers: `token`, `signature` or `none`",
            "token": "a token with every role; if no token is set, the server creates one and prints it at the start",
            "worker_token": "a token with the role *worker*",
            "viewer_token": "a token with the role *viewer*, which reads and changes nothing",
            "operator_token": "a token with the role *operator*",
            "admin_token": "a token with the role *admin*",
            "allowed_hosts": "with `auth` = `none`: host names, separated by commas, at which callers may reach this"
            " server, beside `localhost` and IP addresses",
            "signature_key": "the shared key of signed requests",
            "session_lifetime_seconds": "seconds that a browser stays signed in",
            "metrics_open": "whether `GET /metrics`, for Prometheus, works without a credential",
        },
        "How to [sign requests](../how-to/server.md#sign-requests-instead).",
    ),
    Section(
        "Requests and connections",
        {
            "max_connections": "connections at once; fewer if the process may not have as many file descriptors",
            "max_anonymous_connections": "connections among them that have shown no credential yet; at most half of"
            " all. At the limit the server closes the oldest of them. The rest is for connections with a credential:"
            " at their limit the server closes the oldest idle connection of the token, or of the namespace that"
            " tokens are bound to, with the most connections",
            "max_anonymous_connections_per_address": "the same, per address",
            "max_head_bytes": "size of a request's head and trailers (431)",
            "max_headers": "number of headers (431)",
            "max_url_bytes": "size of the URL (414)",
            "head_seconds": "seconds for a head, for the first request of a connection (408), and for a TLS handshake",
            "idle_seconds": "seconds that a connection may be idle between two requests",
            "max_body_bytes": "size of a body (413)",
            "body_seconds": "seconds for a body (408)",
            "max_page_bytes": "bytes of history in one reply to a worker; a worker reads longer histories page by page",
            "max_buffered_bytes": "bytes of incomplete bodies and unread replies for all callers together; above it"
            " the caller that holds the most loses its largest connection",
            "max_buffered_bytes_per_caller": "the same for one caller: a token, all tokens bound to a namespace, or an address"
            " without a credential (429)",
            "max_parked_polls": "polls and calls that wait at once; further ones are refused and may be retried (429)",
            "max_bulk_runs": "runs in one bulk operation; a larger one is refused (422)",
            "max_live_streams": "streams of `/api/live` at once; further ones are refused (429)",
            "max_live_streams_per_address": "the same, per address",
        },
    ),
    Section(
        "Workers",
        {
            "heartbeat_interval_seconds": "seconds between two heartbeats of a worker",
            "worker_stale_after_seconds": "seconds without a heartbeat after which a worker counts as stale; a worker"
            " whose connection has ended counts as stale within seconds",
            "worker_forgotten_after_seconds": "seconds after which a stale worker is forgotten and must register"
            " again. Each namespace keeps at most its last 1,000 stale workers",
            "compatibility_namespace": "the app of this server, if several apps share one database. Its fleet counts"
            " only workers that name the same app, or that registered here without one",
            "query_timeout_seconds": "seconds that a query waits for the answer of a worker",
            "query_task_max_pending_per_queue": "queries that may wait for workers of one queue",
            "update_wait_completion_timeout_seconds": "seconds that a caller waits for the end of an update, unless it"
            " sets `wait_timeout_seconds` (up to 60). After that the reply says that the update is accepted, and the"
            " caller polls `/updates/{id}`",
        },
    ),
    Section(
        "Limits of task queues",
        {
            "workflow_task_max_active_leases_per_queue": "leased workflow tasks of a queue at once",
            "activity_task_max_active_leases_per_queue": "leased activity tasks of a queue at once",
            "workflow_task_max_dispatches_per_minute": "workflow tasks of a queue that are dispatched per minute",
            "activity_task_max_dispatches_per_minute": "activity tasks of a queue that are dispatched per minute",
            "workflow_task_max_active_leases_per_namespace": "the same for all queues of a namespace together",
            "activity_task_max_active_leases_per_namespace": "the same for all queues of a namespace together",
            "workflow_task_max_dispatches_per_minute_per_namespace": "the same for all queues of a namespace together",
            "activity_task_max_dispatches_per_minute_per_namespace": "the same for all queues of a namespace together",
            "task_queue_admission_overrides": "limits of single queues, which replace those above",
            "task_queue_budget_groups": "dispatches per minute that several queues share, by the name of the group",
        },
        "0 is no limit. Several servers of one database share these limits. [How to limit queues](../how-to/server.md#limit-queues-share-them-fairly).",
    ),
    Section(
        "Retention and export",
        {
            "retention_interval_seconds": "seconds between two removals of old runs; 0: only on request",
            "retention_archive": "the directory to which runs are written before they are removed",
            "views": "whether to store views of runs for operators; without them, lists by state find nothing and"
            " details take longer",
            "export_signing_key": "the key that signs exports and archives (HMAC-SHA256)",
            "export_signing_key_id": "the name of the signing key, as the signature shows it",
            "export_redactor": "`package.module:function`, called as `(value, context)` for every payload of an export"
            " and every text that may quote one; its return value replaces the original. The retention archive is not"
            " redacted",
        },
    ),
    Section(
        "Observability",
        {
            "observability": "`package.module:function`, called with the standard observability object of the server;"
            " the object that it returns answers dashboard, metrics, health, overview, lists, details and exports",
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
            "task_repair_redispatch_after_seconds": "seconds after which a ready task that was offered to no worker"
            " counts as lost",
            "task_repair_loop_throttle_seconds": "seconds between two scans",
            "task_repair_scan_limit": "candidates of each kind in one repair pass",
            "task_repair_failure_backoff_max_seconds": "seconds of the longest pause before a failed workflow task is"
            " retried",
            "v2_matching_role_queue_wake": "whether this server scans for lost work by itself",
            "wake_signal_ttl_seconds": "seconds for which a scan counts",
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
