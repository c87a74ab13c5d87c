"""`dw demo`: an order survives three `kill -9`."""

from __future__ import annotations

import sys

import click


@click.command(name="demo")
def command() -> None:
    """Watch an order survive three kill -9, with proof.

    Runs an order (reserve, charge, wait, pack, ship, e-mail) in a process of its own, kills that process with SIGKILL
    three times, and compares the recorded history with what happened outside. It takes about ten seconds and works in a
    temporary directory, which it removes. The exit code is 0 if each effect happened exactly once, and 1 if not.

    \b
    Examples:
      dw demo
    """
    from backstay.demo.show import main

    sys.exit(main())
