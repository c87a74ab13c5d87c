"""What goes wrong between workers and servers: on the wire, with the processes, with the store behind the server."""

from __future__ import annotations

from ..faults import Kinds

CHANCES: dict[str, float] = {
    # the wire
    "slow segment": 0.05,
    "late segment": 0.01,  # it takes longer than some are waited for
    "in pieces": 0.03,  # a request or a reply arrives bit by bit
    "request lost": 0.012,  # the connection is reset before it arrives
    "reply lost": 0.012,  # it was done, and the connection is reset before anybody hears of it
    "request swallowed": 0.006,  # it never arrives, and nobody says so
    "reply swallowed": 0.006,
    "request cut": 0.006,  # a part of it arrives, then the connection is reset
    "reply cut": 0.006,
    "half closed": 0.008,  # one side is told that the other will say no more
    "reset behind a reply": 0.008,
    "request twice": 0.01,
    "connect unanswered": 0.02,
    # servers
    "kill server": 0.0003,  # before any call of its loop
    "kill before commit": 0.004,
    "kill after commit": 0.004,
    "stop server": 0.3,  # it stands still for a while, like with SIGSTOP
    "restart server": 0.4,  # in good order
    "falsely dead": 0.4,  # where there are two: the other takes it for dead
    # workers
    "kill worker": 0.0006,
    "kill in activity": 0.01,
    "deadly activity": 0.9,  # it kills the process that runs it
    "stop worker": 0.4,
    "drain worker": 0.4,  # in good order
    "kill everybody": 0.15,  # the machine that has all of them
    "dies silently": 0.2,  # nobody is told that a process, or its machine, is gone
    "another name": 0.5,  # who comes back is called otherwise
    "stall": 0.04,  # an activity takes longer than anybody wants to wait for it
    "late report": 0.04,
    "moved to thread": 0.02,
    # the store
    "slow commit": 0.1,
    "store down": 0.004,
    "busy": 0.004,
    "ambiguous error": 0.003,
    "statement error": 0.002,
    "conflict": 0.02,
    "read error": 0.002,
}

HARMLESS = {"slow segment", "in pieces", "stall", "late report", "slow commit", "moved to thread"}
GENTLE = HARMLESS | {
    *("request lost", "reply lost", "request cut", "reply cut", "half closed", "reset behind a reply"),
    *(
        "late segment",
        "request swallowed",
        "reply swallowed",
        "connect unanswered",
        "store down",
        "busy",
        "conflict",
        "restart server",
    ),
}
DEADLY = {
    "kill server": 0.001,
    "kill worker": 0.002,
    "kill before commit": 0.015,
    "kill after commit": 0.015,
    "request swallowed": 0.03,
    "reply swallowed": 0.03,
    "connect unanswered": 0.2,
    "request lost": 0.1,
    "reply lost": 0.1,
    "kill in activity": 0.05,
}
LINK = Kinds(CHANCES, HARMLESS, GENTLE, DEADLY)
