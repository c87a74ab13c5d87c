"""Discovery: the versions, capabilities and limits of a server, and where matching happens."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from backstay.kernel.features.message_stream import SIGNAL
from backstay.kernel.features.stream.append import BATCH
from backstay.kernel.limits import Limits
from backstay.kernel.session import WorkerSession
from backstay.kernel.values import CODEC
from backstay.protocol.history import COMPRESS_ABOVE
from backstay.protocol.native import client as calls
from backstay.protocol.requests import PAGE_DEFAULT, PAGE_MAX
from backstay.protocol.task_commands import COMMAND_TYPES
from backstay.protocol.versions import CONTROL_PLANE, CONTROL_PLANE_HEADER, EVOLUTION, LONG_POLL, VERSION
from backstay.server.cluster.topology import topology
from backstay.server.settings import Settings
from backstay.server.workers.sessions import TERMINAL

if TYPE_CHECKING:
    from backstay.server.http.messages import HttpRequest
    from backstay.server.server import Server

DUPLICATE_POLICIES = ["fail", "use-existing"]
UNSUPPORTED_START_FIELDS = [
    "workflow_execution_timeout",
    "workflow_run_timeout",
    "workflow_task_timeout",
    "retry_policy",
    "idempotency_key",
    "request_id",
]
STATUS_ALIASES = {"cancelled": "failed", "terminated": "failed", "pending": "running", "waiting": "running"}


def server_capabilities(settings: Settings) -> dict[str, Any]:
    """The capabilities of this server, by which workers decide what they send."""
    return {
        "supported_workflow_task_commands": list(COMMAND_TYPES),
        "poll_status": True,
        "query_tasks": True,
        "query_task_timeouts": {"control_plane_timeout_seconds": settings.query_timeout_seconds},
        "update_validation_tasks": True,
        "synchronous_update_validation": {
            "supported": True,
            "acceptance_boundary": "validator_approved",
            "worker_capability": "update_validation_tasks",
            "workflow_contract_field": "update_validators",
            "task_poll": {
                "strategy": "multiplexed",
                "endpoint": "/worker/workflow-tasks/poll",
                "request_field": "task_kinds",
                "response_discriminator": "task.task_kind",
                "task_kinds": ["workflow", "update_validation"],
            },
        },
        "workflow_task_poll_request_idempotency": True,
        "activity_retry_policy": True,
        "activity_timeouts": True,
        "child_workflow_retry_policy": True,
        "child_workflow_timeouts": True,
        "parent_close_policy": True,
        "non_retryable_failures": True,
        "workflow_memo_updates": {"supported": True},
        "local_activities": {"supported": True},
        "message_streams": {
            "supported": True,
            "signal_name": SIGNAL,
            "completion_fields": ["message_stream_cursors", "message_stream_waits"],
        },
        "workflow_streams": {
            "supported": True,
            "command_field": "record_side_effect.workflow_stream",
            "operations": ["append", "close", "error"],
            "max_items_per_append": BATCH,
        },
        "worker_session_verbs": ["create", "heartbeat", "close"],
        "worker_sessions": _SESSIONS,
        "long_poll_timeout": LONG_POLL["default_timeout_seconds"],
        "long_poll": dict(LONG_POLL),
        "default_history_page_size": PAGE_DEFAULT,
        "history_page_size_default": PAGE_DEFAULT,
        "history_page_size_max": PAGE_MAX,
        "history_compression": {
            "supported_encodings": ["gzip", "deflate"],
            "compression_threshold": COMPRESS_ABOVE,
        },
        "response_compression": [],
        # An addition of ours: workers and clients of the same release use it instead of single polls and completions.
        "backstay": {
            "version": calls.VERSION,
            "header": calls.HEADER,
            "task_batches": True,
            "replies_carry_tasks": True,
            "sticky_suffix": True,
            "eager_resume": True,
            "start_and_wait": True,
        },
    }


def matching_role(server: Server) -> dict[str, Any]:
    settings = server.settings
    return {
        "queue_wake_enabled": settings.v2_matching_role_queue_wake,
        "shape": "in_server" if settings.v2_matching_role_queue_wake else "dedicated",
        "wake_owner": "server" if settings.v2_matching_role_queue_wake else "repair_pass",
        "task_dispatch_mode": "long_poll",
        "wake_signal_ttl_seconds": settings.wake_signal_ttl_seconds,
        "wake_marker": server.sweep_policy.shown(),
        # Fixed: work is partitioned in the same way wherever matching happens.
        "partition_primitives": ["namespace", "connection", "queue", "compatibility", "activity_type"],
        "backpressure_model": "lease",
    }


class ClusterInfoAnswer(Struct, frozen=True, kw_only=True):
    server_id: str
    server: str
    version: str
    default_namespace: str
    environment: Annotated[dict[str, str | None], Meta(description="The name and colour that the page shows.")]
    supported_sdk_versions: dict[str, str]
    capabilities: dict[str, Any]
    limits: dict[str, int]
    structural_limits: dict[str, int]
    worker_fleet: dict[str, int]
    topology: Annotated[dict[str, Any], Meta(description="This node among the nodes of the database.")]
    client_compatibility: dict[str, Any]
    control_plane: dict[str, Any]
    worker_protocol: dict[str, Any]
    auth_composition_contract: dict[str, Any]


async def cluster_info(server: Server, request: HttpRequest) -> ClusterInfoAnswer:
    settings = server.settings
    return ClusterInfoAnswer(
        server_id=settings.server_id,
        server="backstay",
        version=version("backstay"),
        default_namespace=settings.default_namespace,
        environment={"name": settings.environment_name, "colour": settings.environment_colour},
        supported_sdk_versions={"python": ">=2.0", "cli": ">=0.1"},
        capabilities={
            "payload_codecs": [CODEC],
            "response_compression": ["gzip"],
            "standalone_activities": True,
            "workflow_streams": True,
            "message_streams": True,
        },
        limits=_limits(settings),
        structural_limits={name: getattr(_STRUCTURAL, name) for name in _STRUCTURAL.__struct_fields__},
        worker_fleet={
            "heartbeat_interval_seconds": settings.heartbeat_interval_seconds,
            "stale_after_seconds": settings.worker_stale_after_seconds,
        },
        topology=topology(server.node, settings, stopping=server.draining, rests=server.sweep_policy.rests())
        | {"matching_role": matching_role(server)},
        client_compatibility={
            "authority": "protocol_manifests",
            "top_level_version_role": "informational",
            "fail_closed": True,
            "clients": {"cli": {"supported_versions": ">=0.1"}, "sdk-python": {"supported_versions": ">=2.0"}},
        },
        control_plane={
            "version": CONTROL_PLANE,
            "header": CONTROL_PLANE_HEADER,
            "response_contract": {"schema": "durable-workflow.v2.control-plane-response.contract", "version": 1},
            "request_contract": {
                "schema": "durable-workflow.v2.control-plane-request.contract",
                "version": 1,
                "operations": _OPERATIONS,
            },
        },
        worker_protocol={
            "version": VERSION,
            "evolution_rule": EVOLUTION,
            "server_capabilities": server.capabilities,
        },
        auth_composition_contract=_AUTH,
    )


def _limits(settings: Settings) -> dict[str, int]:
    return {
        "max_body_bytes": settings.max_body_bytes,
        "max_payload_bytes": _STRUCTURAL.payload_size,
        "max_memo_bytes": _STRUCTURAL.memo_size,
        "max_search_attributes": 100,
        "max_workflow_id_length": 191,
        "max_name_length": 255,
        "max_request_id_length": 255,
        "max_list_page_size": 200,
        "max_history_page_size": PAGE_MAX,
    }


_STRUCTURAL = Limits()

_SESSIONS: dict[str, Any] = {
    "supported": True,
    "contract_version": "1.0",
    "verbs": {
        "create": {"method": "POST", "path": "/worker/sessions"},
        "heartbeat": {"method": "POST", "path": "/worker/sessions/{session_id}/heartbeat"},
        "close": {"method": "DELETE", "path": "/worker/sessions/{session_id}"},
    },
    "activity_command_field": "worker_session",
    "activity_command_fields": list(WorkerSession.__struct_fields__),
    "renewal": {"session_heartbeat": True, "activity_heartbeat": True, "activity_dispatch": True},
    "failure_detection": {
        "lease_expired": "failed",
        "worker_heartbeat_stale": "orphaned",
        "ttl_expired": "expired",
    },
    "statuses": ["active", *TERMINAL],
    "terminal_statuses": list(TERMINAL),
    "final_statuses": ["closed", "expired"],
    "outcomes": ["created", "reused", "reacquired", "heartbeat_recorded", "already_closed", "closed"],
}

_OPERATIONS: dict[str, Any] = {
    "list": {
        "fields": {
            "status": {"canonical_values": ["running", "completed", "failed"], "rejected_aliases": STATUS_ALIASES}
        }
    },
    "start": {
        "fields": {
            "duplicate_policy": {
                "canonical_values": DUPLICATE_POLICIES,
                "rejected_aliases": {"use_existing": "use-existing"},
            },
            "execution_timeout_seconds": {"type": "integer", "min": 1},
            "run_timeout_seconds": {"type": "integer", "min": 1},
            "payload_codec": {"type": "string", "canonical_values": [CODEC]},
        },
        "unsupported_fields": UNSUPPORTED_START_FIELDS,
    },
    "update": {"fields": {"wait_for": {"canonical_values": ["accepted", "completed"]}}},
}

_AUTH: dict[str, Any] = {
    "schema": "durable-workflow.v2.auth-composition.contract",
    "version": 1,
    "precedence": {
        "connection_values": ["flag", "environment", "selected_profile", "default"],
        "profile_selection": ["flag_env", "DW_ENV", "current_profile", "default_profile"],
    },
    "canonical_environment": {
        "server_url": "DURABLE_WORKFLOW_SERVER_URL",
        "namespace": "DURABLE_WORKFLOW_NAMESPACE",
        "auth_token": "DURABLE_WORKFLOW_AUTH_TOKEN",
        "tls_verify": "DURABLE_WORKFLOW_TLS_VERIFY",
        "profile": "DW_ENV",
    },
    "auth_material": {
        "token": {"status": "supported", "effective_config_value": "redacted"},
        "mtls": {"status": "reserved"},
        "signed_headers": {"status": "reserved"},
    },
    "effective_config": {"required_fields": ["server_url", "namespace", "profile", "auth", "tls", "identity"]},
    "redaction": {"never_echo": ["bearer_tokens", "private_keys", "raw_authorization_headers"]},
}
