"""Logs of long-running commands, as text or as JSON."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

from dw_support import Place, mistaken

from backstay import JsonFormatter

HINTED = """
from backstay import activity

class Desk:
    @activity
    def pack(self) -> None: ...
"""


def test_a_worker_logs_json_if_asked(place: Place) -> None:
    (place.directory / "desk.py").write_text(HINTED)
    command = [sys.executable, "-m", "backstay.cli.main", "worker", "desk.py", "--server", "http://127.0.0.1:1"]
    for words, variable in (["--log-format", "json"], {}), ([], {"DW_LOG_FORMAT": "json"}):
        done = subprocess.run(
            [*command, *words],
            cwd=place.directory,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | variable,
        )
        line = json.loads(done.stderr.splitlines()[0])
        assert (line["level"], line["logger"]) == ("WARNING", "backstay.worker")
        assert "Desk has activity methods but no instance" in line["message"]


def test_a_server_takes_the_form_of_its_log_as_a_setting(place: Place) -> None:
    assert "--log-format is 'jsno'" in mistaken(place.ask("server", "--log-format", "jsno"))


def test_a_record_keeps_its_ids_and_its_exception_on_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("backstay.failures", logging.ERROR, "f", 1, "%s failed", ("o-1",), sys.exc_info())
    record.workflow_id, record.step = "o-1", 3
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["level"], line["logger"], line["message"]) == ("ERROR", "backstay.failures", "o-1 failed")
    assert (line["workflow_id"], line["step"]) == ("o-1", 3)
    assert line["exception"].endswith("ValueError: two\nlines")
    assert line["time"].endswith("+00:00")
