"""Every reason a command can be rejected for has words."""

import re
from pathlib import Path

import pytest

import backstay.kernel.features
from backstay.kernel.features.instance_commands import CommandReply
from backstay.protocol import rejections

WRONG = {"cents": ["must be int, not str"]}


def rejected(reason: str, **more: object) -> CommandReply:
    kind = "update" if "update" in reason else "archive" if reason == "run_not_closed" else "signal"
    values: dict[str, object] = {
        "workflow_id": "expense-1",
        "run_id": "r2",
        "command_id": "r2-7",
        "command_type": kind,
        "command_sequence": 7,
        "outcome": None,
        "accepted": False,
        "rejection_reason": reason,
    }
    return CommandReply(**(values | more))  # type: ignore[arg-type]


def reasons() -> list[str]:
    """As the kernel's own source names them."""
    folder = Path(backstay.kernel.features.__file__).parent
    found: set[str] = set()
    for file in sorted(folder.rglob("*.py")):
        for name in re.findall(r'Rejection\(\s*f?"([a-z_{}]+)"', file.read_text()):
            found |= {name.format(kind=kind) for kind in ("signal", "update")}
    return sorted(found)


def test_the_kernel_names_its_reasons_where_we_look():
    assert {"run_not_closed", "unknown_signal", "unknown_update", "update_validator_rejected"} < set(reasons())


@pytest.mark.parametrize("reason", reasons())
def test_every_reason_is_explained(reason: str):
    said = rejections.reason(rejected(reason, validation_errors=WRONG, declared=["approve"], target_name="aprove"))
    assert reason.replace("_", " ") not in said.replace("_", " ")
    assert len(said.split()) > 3


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            rejected("unknown_signal", target_name="aprove", declared=["add", "approve"]),
            "signal 'aprove' of workflow 'expense-1' was rejected: the workflow does not declare it;"
            " declared are: add, approve; did you mean 'approve'?",
        ),
        (
            rejected("unknown_update", target_name="zzz", declared=["amend"]),
            "update 'zzz' of workflow 'expense-1' was rejected: the workflow does not declare it; declared are: amend",
        ),
        (
            rejected("unknown_update", target_name="amend"),
            "update 'amend' of workflow 'expense-1' was rejected: the workflow declares no update of that name",
        ),
        (
            rejected("invalid_update_arguments", target_name="amend", validation_errors=WRONG),
            "update 'amend' of workflow 'expense-1' was rejected: cents must be int, not str",
        ),
        (
            rejected("update_validator_rejected", target_name="amend", validation_errors={"validator": ["too much"]}),
            "update 'amend' of workflow 'expense-1' was rejected: its validator rejected it: too much",
        ),
        (
            rejected("run_not_closed"),
            "archive of workflow 'expense-1' was rejected: run r2 is still open; cancel or terminate it first,"
            " or wait for its end",
        ),
        (
            rejected("selected_run_not_current", target_name="approve", requested_run_id="r1"),
            "signal 'approve' of workflow 'expense-1' was rejected: run r1 is not the current one, which is r2;"
            " name that, or no run at all",
        ),
    ],
    ids=lambda case: case.rejection_reason if isinstance(case, CommandReply) else "",
)
def test_a_rejection_says_what_happened_and_what_to_do(command: CommandReply, said: str):
    assert rejections.sentence(command) == said
