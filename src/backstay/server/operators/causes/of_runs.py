"""Causes of runs: from stored views, the liveness certificate, wakes and recent results."""

from __future__ import annotations

from collections.abc import Callable

from backstay.kernel.features.repair import REPAIR
from backstay.kernel.features.retry_now import RETRY_NOW
from backstay.kernel.spans import whole_span
from backstay.kernel.values import SECOND, Micros
from backstay.kernel.views.why_open import block_words, quoted
from backstay.server.operators.causes.cause import Cause, CauseAction, CauseSubject, ExampleRun, Unit, many, runs_link
from backstay.server.operators.causes.situation import LATE_LOOKED_AT, Situation
from backstay.store.figures import AttentionGroup

OLD_PROOF = 120 * SECOND
LONG_RETRY = 3600 * SECOND  # a run that fails for longer needs attention
FAILING = 0.9  # a type with a lower pass rate fails too often
ENOUGH = 5  # ends of a type in an hour, or its rate says nothing
NAMED = 20  # types that fail

REPAIR_PASS = CauseAction(label="Run a repair pass", command="dw repair-pass", operator="repair_pass")


def of_runs(situation: Situation) -> list[Cause]:
    return [
        *repair_needed(situation),
        *_groups(situation),
        *overdue(situation),
        *failing(situation),
        *over_budget(situation),
        *_old_proof(situation),
    ]


def repair_needed(situation: Situation) -> list[Cause]:
    """Runs with nothing on disk that resumes them, by the certificate and by their summaries."""
    proof = situation.proof
    stored = next((group for group in situation.groups if group.cause == "repair_needed"), None)
    stranded = 0 if proof is None else proof.without_source(situation.namespace)
    count = max(stranded, 0 if stored is None else stored.all_runs)
    if not count:
        return []
    return [
        Cause(
            name="repair_needed",
            severity="error",
            check="durable_resume_paths",
            sentence=f"{many(count, 'open run')} {'has' if count == 1 else 'have'} nothing on disk that will resume"
            f" {'it' if count == 1 else 'them'}: a task or a wake is missing. The sweep restores it.",
            count=count,
            since=None if stored is None else stored.all_since,
            link=runs_link("running", attention="repair_needed"),
            action=REPAIR_PASS,
            example=None if stored is None else _example(situation, stored),
        )
    ]


def _groups(situation: Situation) -> list[Cause]:
    """Blocked, damaged and retrying runs, grouped; and the rest of each, if there are too many groups to read."""
    makers: dict[tuple[str, bool], Callable[[Situation, AttentionGroup], Cause]] = {
        ("blocked", False): _blocked,
        ("blocked", True): _damaged,
        ("retrying", False): _retrying,
    }
    found: list[Cause] = []
    for (cause, damaged), make in makers.items():
        groups = [one for one in situation.groups if (one.cause, bool(one.damaged)) == (cause, damaged)]
        if damaged and groups:
            groups = [groups[0]._replace(runs=groups[0].all_runs, since=groups[0].all_since)]
        found += [make(situation, one) for one in groups]
        rest = groups[0].all_runs - sum(one.runs for one in groups) if groups else 0
        if rest:
            found.append(_rest(found[-1], rest, groups[0].all_since))
    return found


def _rest(like: Cause, runs: int, since: Micros) -> Cause:
    return Cause(
        name=like.name,
        severity=like.severity,
        check=like.check,
        sentence=f"{many(runs, 'other run')} {'is' if runs == 1 else 'are'} {like.name}, each for a reason of few runs.",
        count=runs,
        since=since,
        link=runs_link("running", attention=like.name),
    )


def _blocked(situation: Situation, group: AttentionGroup) -> Cause:
    example = situation.examples.get(group.run)
    what = block_words(group.reason)
    by = f" by {group.worker}" if group.worker else ""
    error = f" {quoted(example.last_error)}" if example is not None and example.last_error else ""
    fits = group.reason in ("history_shape_mismatch", "workflow_entry_arguments_mismatch")
    filters = _filters(group)
    action = (
        CauseAction(label="Deploy code that fits: a worker with other code gets them at once")
        if fits
        else CauseAction(
            label=REPAIR.label,
            command=f"dw bulk repair --attention blocked --type {group.workflow_type}",
            operator=REPAIR.name,
            arguments={"filter": filters},
        )
    )
    return Cause(
        name="blocked",
        severity="error",
        check="task_transport",
        sentence=f"{_runs_of(group)} {'is' if group.runs == 1 else 'are'} blocked{by}: {what}.{error}",
        count=group.runs,
        since=group.since,
        subject=CauseSubject(
            workflow_type=group.workflow_type,
            reason=group.reason or "replay_blocked",
            error=group.error,
            worker=group.worker,
        ),
        link=runs_link("running", **filters),
        action=action,
        example=_example(situation, group),
    )


def _damaged(situation: Situation, group: AttentionGroup) -> Cause:
    one = group.runs == 1
    return Cause(
        name="history_damaged",
        severity="error",
        check="durable_resume_paths",
        sentence=f"{many(group.runs, 'open run')} cannot go on: {'its' if one else 'their'} stored history is damaged."
        " The page of a run names the first event that is wrong.",
        count=group.runs,
        since=group.since,
        link=runs_link("running", attention="blocked"),
        action=CauseAction(label="Restore the database from a backup"),
        example=_example(situation, group),
    )


def _retrying(situation: Situation, group: AttentionGroup) -> Cause:
    example = situation.examples.get(group.run)
    error = f": {quoted(example.last_error)}" if example is not None and example.last_error else ""
    until = example.until if example is not None else None
    soon = f" The next attempt is in {whole_span(until - situation.now)}." if until and until > situation.now else ""
    of_code = group.reason is None
    what = "their code" if of_code and group.runs > 1 else "its code" if of_code else f"activity {group.reason}"
    long = situation.now - group.since > LONG_RETRY
    filters = _filters(group)
    return Cause(
        name="retrying",
        severity="warning" if long or of_code else "info",
        check="task_transport" if of_code else "activity_path",
        sentence=f"{_runs_of(group)} {'is' if group.runs == 1 else 'are'} retrying {what}{error}.{soon}",
        count=group.runs,
        since=group.since,
        subject=CauseSubject(workflow_type=group.workflow_type, reason=group.reason, error=group.error),
        link=runs_link("running", **filters),
        action=CauseAction(
            label=(REPAIR if of_code else RETRY_NOW).label,
            command=f"dw bulk {(REPAIR if of_code else RETRY_NOW).verb} --attention retrying --type {group.workflow_type}",
            operator=(REPAIR if of_code else RETRY_NOW).name,
            arguments={"filter": filters},
        ),
        example=_example(situation, group),
    )


def _filters(group: AttentionGroup) -> dict[str, str]:
    return {"attention": group.cause, "workflow_type": group.workflow_type}


def _runs_of(group: AttentionGroup) -> str:
    return many(group.runs, f"{group.workflow_type} run")


def _example(situation: Situation, group: AttentionGroup) -> ExampleRun | None:
    summary = situation.examples.get(group.run)
    return None if summary is None else ExampleRun(workflow_id=summary.workflow_id, run_id=summary.run_id)


def overdue(situation: Situation) -> list[Cause]:
    late = situation.overdue
    if not late.instances:
        return []
    oldest = late.oldest or situation.now
    exact = late.instances < LATE_LOOKED_AT
    number = many(late.instances, "run") if exact else f"At least {many(late.instances, 'run')}"
    why = "; another process is the engine" if situation.engine == "elsewhere" else ""
    return [
        Cause(
            name="overdue",
            severity="error",
            check="durable_resume_paths",
            sentence=f"{number} should have continued by now, the first {whole_span(situation.now - oldest)} ago{why}.",
            count=late.instances,
            exact=exact,
            since=oldest,
            link=runs_link("running", attention="overdue"),
            action=REPAIR_PASS,
        )
    ]


def failing(situation: Situation) -> list[Cause]:
    """Workflow types that fail too often, the worst first."""
    found: list[tuple[float, Cause]] = []
    for one in situation.hour.types:
        rate = one.pass_rate
        if rate is None or rate >= FAILING or one.ended < ENOUGH:
            continue
        failed = one.counts.get("failed", 0)
        cause = Cause(
            name="failing",
            severity="error" if rate < 0.5 else "warning",
            check="activity_path",
            sentence=f"{failed:,} of {one.ended:,} {one.workflow_type} runs failed in the"
            f" {situation.hour.window.said} ({failed / one.ended:.0%}).",
            count=failed,
            subject=CauseSubject(workflow_type=one.workflow_type, pass_rate=rate),
            link=runs_link("failed", workflow_type=one.workflow_type),
            action=CauseAction(
                label="Look at the failures", command=f"dw list --status failed --type {one.workflow_type}"
            ),
        )
        found.append((rate, cause))
    return [cause for _, cause in sorted(found, key=lambda pair: pair[0])[:NAMED]]


def over_budget(situation: Situation) -> list[Cause]:
    sizes = situation.sizes
    if not sizes.over:
        return []
    return [
        Cause(
            name="history_budget",
            severity="warning",
            check="history_retention_invariant",
            sentence=f"{many(sizes.over, 'open run')} should continue as new: the longest history has"
            f" {sizes.events:,} events, the largest {sizes.bytes:,} bytes.",
            count=sizes.over,
            link=runs_link("running", continue_as_new_recommended="true"),
            action=CauseAction(label="Let their code continue as new"),
        )
    ]


def _old_proof(situation: Situation) -> list[Cause]:
    proof = situation.proof
    if proof is None or situation.now - proof.began_at <= OLD_PROOF:
        return []
    process: Unit = "process"
    return [
        Cause(
            name="certificate_old",
            severity="warning",
            check="durable_resume_paths",
            sentence="No liveness pass has completed lately, so a stranded run would not be noticed.",
            unit=process,
            since=proof.began_at,
            link="/api/system/liveness",
            action=CauseAction(label="Check whether the database is overloaded"),
        )
    ]
