"""Every operator command is on every surface: a surface that forgets one fails here."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec import json

from backstay import Handle
from backstay.cli import bulk as dw_bulk
from backstay.cli.lifecycle import COMMANDS
from backstay.cli.main import SECTIONS, dw
from backstay.engine.cluster.peers import partition_of_request
from backstay.kernel.features.instance_commands import CommandReply
from backstay.kernel.machine import Machine
from backstay.kernel.operator_command import OperatorCommand
from backstay.kernel.operators import OPERATOR_COMMANDS, REFUSALS
from backstay.kernel.values import partition_of
from backstay.kernel.views.actions import UNREADABLE, Actions, part_actions
from backstay.protocol import commands as tell
from backstay.protocol import rejections
from backstay.protocol.native import client, nodes
from backstay.sdk.client.handle import AsyncHandle
from backstay.server.http.documents import openapi
from backstay.server.operators.bulk_records import Action
from backstay.server.operators.rehearsal import has_dry_run
from backstay.server.published.control.operator_commands import shown_command
from backstay.server.routes import ROUTES

DOCS = Path(__file__).parent.parent / "docs"
ALL = pytest.mark.parametrize("command", OPERATOR_COMMANDS.values(), ids=list(OPERATOR_COMMANDS))

WIRE = {
    "cancel": ("cancel-workflow", ["reason"]),
    "terminate": ("terminate-workflow", ["reason"]),
    "pause": ("pause-workflow", ["reason"]),
    "unpause": ("unpause-workflow", ["reason"]),
    "retry_now": ("retry-activity-now", ["activity_execution_id", "reason"]),
    "skip_wait": ("skip-wait", ["wait_id", "reason"]),
    "fork": ("fork-workflow", ["at", "new_id", "set", "code", "reason"]),
    "rewind": ("rewind-workflow", ["at", "set", "code", "reason"]),
    "archive": ("archive-workflow", ["reason"]),
    "repair": ("repair-workflow", []),
}
"""The verb of each command on the native wire, and its fields after those of every command, in their order."""


def test_the_commands_have_the_requests_that_they_always_had() -> None:
    assert WIRE.keys() == OPERATOR_COMMANDS.keys()
    of_all = (
        b'{"workflow_id":"w","namespace":"default","run_id":null,"request_id":null,"fresh":false,"source":"python",'
        b'"context":{}'
    )
    for name, (verb, fields) in WIRE.items():
        request = tell.OPERATOR[name](workflow_id="w")
        assert client.OF[type(request)].name == verb
        assert json.encode(request) == of_all + b"".join(b',"%s":null' % field.encode() for field in fields) + b"}"


@ALL
def test_the_kernel_decides_it_and_has_its_fields(command: OperatorCommand) -> None:
    assert command.message in Machine()._decide
    known = set(command.message.__struct_fields__)
    assert {field.name for field in command.fields} <= known
    assert command.help.count("{run}") == 1, "a sentence about {run}"
    assert command.label
    assert command.outcomes


@ALL
def test_it_crosses_the_wire_of_clients_and_between_nodes(command: OperatorCommand) -> None:
    kind = tell.OPERATOR[command.name]
    request = kind(workflow_id="w", namespace="n")
    assert client.OF[kind] is nodes.OF[kind]
    assert client.OF[kind].decode_request.decode(client.encode(request)) == request
    assert partition_of_request(request) == partition_of("n", "w"), "it is handed to the node that owns its instance"


@ALL
def test_it_has_routes_with_a_dry_run_that_the_document_describes(command: OperatorCommand) -> None:
    routes = {route.path: route for route in ROUTES if route.method == "POST"}
    document = openapi(ROUTES)["paths"]
    for place in ("/api/workflows/{workflow_id}", "/webhooks/instances/{workflow_id}"):
        for run in ("", "/runs/{run_id}"):
            path = f"{place}{run}/{command.verb}"
            route = routes[path]
            assert has_dry_run(route)
            assert command.role in route.roles
            assert not route.roles & {"viewer", "worker"}
            assert document[path]["post"]["summary"] == command.about()
            assert route.body is not None
            fields = {field.name for field in msgspec.structs.fields(route.body)}
            assert {"request_id"} | {field.name for field in command.fields} <= fields


@ALL
def test_the_server_tells_it_and_the_page_gets_its_words(command: OperatorCommand) -> None:
    told = shown_command(command)
    assert told.label == command.label
    assert told.help == command.about()
    assert told.outcomes.keys() == command.outcomes.keys()
    assert command.hidden <= {*command.blocked_words, "run_closed", "selected_run_not_current"}


@ALL
def test_the_detail_of_a_run_says_whether_it_would_be_accepted(command: OperatorCommand) -> None:
    fields = {field.name for field in msgspec.structs.fields(Actions)}
    assert {f"can_{command.able}", f"{command.able}_blocked_reason"} <= fields
    told = msgspec.to_builtins(UNREADABLE)
    assert told[f"can_{command.able}"] is False
    for list in command.parts:
        closed = part_actions(list, None, is_open=False)
        assert closed == {f"can_{command.able}": False, f"{command.able}_blocked_reason": "run_closed"}


@ALL
def test_bulk_operations_take_it(command: OperatorCommand) -> None:
    assert (command.name in get_args(Action)) == command.bulk
    assert (command.verb in dw_bulk.command.commands) == command.bulk


@ALL
def test_dw_has_it_with_its_options(command: OperatorCommand) -> None:
    found: Any = dw.get_command(None, command.verb)  # type: ignore[arg-type]
    assert found is COMMANDS[command.verb]
    assert command.verb in dw.list_commands(None)  # type: ignore[arg-type]
    assert not any(command.verb in names for names in SECTIONS.values()), "it is shown with the others, once"
    options = {name for parameter in found.params for name in parameter.opts}
    assert {name for field in command.fields for name in field.option} <= options


@ALL
def test_both_clients_have_a_typed_method(command: OperatorCommand) -> None:
    for handle in (AsyncHandle, Handle):
        method = getattr(handle, command.name)
        assert {field.name for field in command.fields} <= inspect.signature(method).parameters.keys()


@ALL
def test_its_refusals_are_said_in_words(command: OperatorCommand) -> None:
    for reason in command.refusals:
        reply = CommandReply(
            workflow_id="w",
            run_id="r",
            command_id="c",
            command_type=command.name,
            command_sequence=1,
            outcome=None,
            accepted=False,
            rejection_reason=reason,
        )
        assert rejections.reason(reply) != reason.replace("_", " ")
    assert len(REFUSALS) == sum(len(each.refusals) for each in OPERATOR_COMMANDS.values()), "one reason, one command"


@ALL
def test_the_guide_for_operators_names_it(command: OperatorCommand) -> None:
    assert f"dw {command.verb}" in (DOCS / "how-to" / "operate.md").read_text()
