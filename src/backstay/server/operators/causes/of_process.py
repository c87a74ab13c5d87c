"""Causes of the process that answers, of its database, and of the other nodes."""

from __future__ import annotations

from backstay.engine.cluster.gone_nodes import told
from backstay.kernel.spans import whole_span
from backstay.kernel.values import SECOND, Micros
from backstay.kernel.views.why_open import NO_ENGINE, START_ENGINE
from backstay.server.operators.causes.cause import Cause, CauseAction, CauseSubject, Severity, many, runs_link
from backstay.server.operators.causes.situation import NodesState, ProcessState, Situation
from backstay.store.errors import Unavailable

SLOW = SECOND  # a commit that takes longer is a fault
BEHIND = 10 * SECOND  # of stored views
DAY = 86_400 * SECOND
NAMED = 10  # nodes that a sentence names


def of_process(process: ProcessState) -> list[Cause]:
    found: list[Cause] = []
    if not process.engine_active:
        found.append(
            _backend(
                "engine_elsewhere",
                "error",
                "Another process is the engine of this database; this server answers reads, and takes over when that one ends.",
                CauseAction(label="Stop the other process, or use it"),
            )
        )
    elif process.recovering:
        sentence = "The engine is starting: it reads the open runs and the leased tasks."
        found.append(_backend("engine_recovering", "warning", sentence, CauseAction(label="Wait a few seconds")))
    if process.commit_under_way_for > SLOW:
        found.append(
            Cause(
                name="database_slow",
                severity="error",
                check="task_transport",
                sentence=f"A commit has taken {whole_span(process.commit_under_way_for)} so far, and no run moves until it"
                " ends: the database is locked, overloaded or slow.",
                unit="process",
                action=CauseAction(label="Find the program that holds its lock, or what keeps its disk busy"),
                link="/api/system/operator-metrics",
            )
        )
    if process.stopping:
        sentence = "This server is stopping and leases no more tasks."
        found.append(_backend("draining", "warning", sentence, CauseAction(label="Use another server")))
    elif process.drained:
        sentence = "This server hands its work to other nodes, because an operator drains it."
        undo = CauseAction(label="End the drain", command="dw node drain NAME --undo")
        found.append(_backend("draining", "warning", sentence, undo))
    if process.polls_full:
        found.append(
            Cause(
                name="poll_capacity_exhausted",
                severity="warning",
                check="long_poll_wake_acceleration",
                sentence=f"{many(process.polls, 'poll')} are parked, as many as max_parked_polls allows: more workers are refused.",
                count=process.polls,
                unit="poll",
                link="/api/workers",
                action=CauseAction(label="Raise max_parked_polls, or let each worker poll less often"),
            )
        )
    return found


def database_unavailable(error: Unavailable, since: Micros | None = None) -> Cause:
    return _backend(
        "database_unavailable",
        "error",
        f"No run moves: the database cannot be used ({error}). The engine retries every second, and nothing was lost.",
        CauseAction(label="Remove the problem that the sentence names; the engine resumes by itself"),
        since,
    )


def _backend(name: str, severity: Severity, sentence: str, action: CauseAction, since: Micros | None = None) -> Cause:
    return Cause(
        name=name,
        severity=severity,
        check="backend_capabilities",
        sentence=sentence,
        unit="process",
        since=since,
        action=action,
        link="/api/ready",
    )


def without_engine(situation: Situation) -> list[Cause]:
    """No process decides anything. It needs attention if something waits for that: open runs, or schedules that fire."""
    runs, schedules = situation.open.runs, situation.schedules.active
    if situation.engine != "none" or not (runs or schedules):
        return []
    waiting = [many(number, kind) for number, kind in ((runs, "open run"), (schedules, "active schedule")) if number]
    _, label, how = START_ENGINE
    return [
        Cause(
            name="no_engine",
            severity="error",
            check="backend_capabilities",
            sentence=f"{NO_ENGINE}: {' and '.join(waiting)} {'waits' if runs + schedules == 1 else 'wait'}.",
            count=runs + schedules,
            link=runs_link("running"),
            action=CauseAction(label=f"{label}: {how}", command="dw server"),
        )
    ]


def of_views(situation: Situation, lag: Micros) -> list[Cause]:
    """`lag`: of the projector. Blocked and retrying runs are counted by their summaries."""
    now, unseen = situation.now, situation.unseen
    since = now - lag if unseen.oldest is None else min(now - lag, unseen.oldest)
    if now - since <= BEHIND or situation.engine == "none":
        return []
    missing = (
        f", and {many(unseen.runs, 'open run')} {'has' if unseen.runs == 1 else 'have'} none yet" if unseen.runs else ""
    )
    return [
        Cause(
            name="projections_behind",
            severity="warning",
            check="run_summary_projection",
            sentence=f"Summaries of runs are {whole_span(now - since)} behind{missing}: lists and counts of states are"
            " not exact until they catch up.",
            unit="process",
            since=since,
            link="/api/system/projections",
            action=CauseAction(label="Wait; if it stays so, the machine is too slow for its load"),
        )
    ]


def of_nodes(nodes: NodesState, process: ProcessState, now: Micros) -> list[Cause]:
    found: list[Cause] = []
    if nodes.forgotten_at is not None and now - nodes.forgotten_at < DAY:
        found.append(
            Cause(
                name="database_forgot_commits",
                severity="warning",
                check="backend_capabilities",
                sentence="The database had lost commits that it had confirmed, as after a restored backup or a failover:"
                " callers were told of results that are gone, and activities since then may run again.",
                count=nodes.forgotten,
                unit="process",
                since=nodes.forgotten_at,
                link="/api/nodes",
                action=CauseAction(
                    label="Compare with the systems that activities call; promote synchronous standbys only"
                ),
            )
        )
    if nodes.gone:
        names = [one["name"] for one in nodes.gone[:NAMED]]
        found.append(
            Cause(
                name="nodes_gone",
                severity="warning",
                check="routing_health",
                sentence=f"{many(len(nodes.gone), 'node')} did not end by itself:"
                f" {'; '.join(map(told, nodes.gone[:NAMED]))}.",
                count=len(nodes.gone),
                unit="node",
                subject=CauseSubject(nodes=names),
                link="/api/nodes",
                action=CauseAction(
                    label="Start it again, or forget it",
                    command=f"dw node forget {nodes.gone[0]['id']}",
                    operator="forget_node",
                    arguments={"nodes": [one["id"] for one in nodes.gone[:NAMED]]},
                ),
            )
        )
    if nodes.unowned:
        sentence = (
            f"{nodes.unowned} of {nodes.shards} shards have no owner; their workflows wait until a node takes them"
        )
        more = "." if nodes.able else ", and no living node may take any: start one with a weight above 0."
        found.append(
            _node("shards_unowned", "warning" if nodes.able else "error", sentence + more, nodes.unowned, "shard")
        )
    lost = process.unreachable
    if lost:
        sentence = (
            f"{many(len(lost), 'node')} cannot be called: {'; '.join(lost[:NAMED])}; requests go through the database."
        )
        found.append(_node("nodes_unreachable", "warning", sentence, len(lost), "node"))
    if len(nodes.releases) > 1:
        sentence = f"Nodes of {len(nodes.releases)} releases run together: {', '.join(nodes.releases)}."
        found.append(_node("mixed_releases", "info", sentence, len(nodes.releases), "node"))
    return found


def _node(name: str, severity: Severity, sentence: str, count: int, unit: str) -> Cause:
    return Cause(
        name=name,
        severity=severity,
        check="routing_health",
        sentence=sentence,
        count=count,
        unit="shard" if unit == "shard" else "node",
        link="/api/nodes",
        action=CauseAction(label="Look at the nodes", command="dw nodes"),
    )
