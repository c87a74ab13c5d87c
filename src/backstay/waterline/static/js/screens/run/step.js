// The details of the selected row of a timeline, each value with the events that prove it.

import { h } from "../../dom.js";
import { badge, button, copy, facts, mono, time, trouble, words } from "../../parts.js";
import { count, exact, isAbsolute, plural, span } from "../../words.js";

const LAST = 8; // of long lists

/** @param {import("./page.js").Context} ctx @param {number} sequence */
const event = (ctx, sequence) =>
  button(`event ${sequence}`, () => ctx.openEvent(sequence), { class: "text mono", title: "the event that says so" });

/** A time on the axis. @param {import("./outline.js").Outline} outline @param {number} ms */
const since = (outline, ms) =>
  h(
    "time",
    { class: "number", datetime: new Date(outline.origin + ms).toISOString(), title: exact(outline.origin + ms) },
    isAbsolute() ? exact(outline.origin + ms).slice(11, 23) : `+${span(ms)}`,
  );

/** @param {string} title @param {...any} children */
const side = (title, ...children) =>
  h("section", { class: "side", "aria-label": "selected row" }, h("h2", null, h("bdi", null, title)), ...children);

/**
 * The options of a call that no other fact tells, whatever they are; without one that is shown already.
 * @param {Record<string, any> | undefined} options @param {any} [shown] @returns {[string, any][]}
 */
export const given = (options, shown) =>
  Object.entries(options ?? {})
    .filter(([, value]) => value !== shown)
    .map(([name, value]) => [
      words(name),
      typeof value === "string" ? h("bdi", null, value) : mono(JSON.stringify(value)),
    ]);

/**
 * How far an activity says it is.
 * @param {any} progress
 */
export function meter(progress) {
  if (!progress?.total || typeof progress.current !== "number") return null;
  const share = Math.min(Math.max(progress.current / progress.total, 0), 1);
  return h(
    "span",
    { class: "meter", role: "img", "aria-label": `${Math.round(share * 100)} %` },
    h("span", { style: { width: `${share * 100}%` } }),
  );
}

/** @param {any} progress */
export const progressed = ({ current, total, unit, message }) =>
  [
    typeof current === "number" && `${count(current)}${total ? ` of ${count(total)}` : ""} ${unit ?? ""}`.trim(),
    message,
  ]
    .filter(Boolean)
    .join(", ");

/**
 * @param {import("./page.js").Context} ctx
 * @param {import("./outline.js").Outline} outline
 * @param {import("./outline.js").Step} step
 * @param {any} activity what the server knows of it, if it is an activity
 * @param {import("../../api.js").Problem | null} problem
 */
export function stepSide(ctx, outline, step, activity, problem) {
  const at = (/** @type {number} */ t) => since(outline, step.started + t);
  const progress = activity?.last_heartbeat_progress;
  const tries = activity?.attempts ?? [];
  const policy = activity?.retry_policy;
  return side(
    `Step ${step.step}: ${step.name ?? words(step.kind)}`,
    step.note ? h("p", null, h("bdi", null, step.note)) : null,
    h("p", null, badge(STATE[step.state] ?? step.state)),
    facts([
      ["kind", words(step.kind)],
      ["opened", [at(0), " ", event(ctx, step.first)]],
      step.ended !== null
        ? ["ended", [at(step.ended), " ", event(ctx, step.last)]]
        : step.last > step.first
          ? ["last", event(ctx, step.last)]
          : null,
      step.ended !== null ? ["took", h("span", { class: "number" }, span(step.ended))] : null,
      step.began !== null && step.began > 0 && step.tries.length === 0
        ? ["waited for a worker", h("span", { class: "number" }, span(step.began))]
        : null,
      step.until !== null
        ? [
            step.kind === "activity" ? "next attempt" : step.kind === "timer" ? "fires" : "times out",
            time(outline.origin + step.started + step.until),
          ]
        : null,
      step.group ? ["group", mono(step.group)] : null,
      progress ? ["progress", [meter(progress), " ", h("bdi", null, progressed(progress))]] : null,
      policy
        ? ["attempts", `${activity.attempt_count}${policy.max_attempts ? ` of ${policy.max_attempts}` : ", no limit"}`]
        : null,
      ...given(activity?.options, step.note),
      activity
        ? [
            "idempotency key",
            [
              h("span", { class: "mono" }, activity.idempotency_key),
              copy(activity.idempotency_key, "the idempotency key"),
            ],
          ]
        : null,
      activity?.message && !tries.some((/** @type {any} */ one) => one.message === activity.message)
        ? ["said", h("bdi", null, activity.message)]
        : null,
    ]),
    problem ? trouble(problem) : null,
    tries.length
      ? h(
          "ol",
          { "aria-label": "attempts" },
          ...tries
            .slice(-LAST)
            .map((/** @type {any} */ one) =>
              h(
                "li",
                { key: one.id },
                h(
                  "p",
                  { class: "try" },
                  h("span", { class: "number" }, `try ${one.attempt_number}`),
                  badge(one.status),
                  h(
                    "span",
                    { class: "number" },
                    one.closed_at ? span(Date.parse(one.closed_at) - Date.parse(one.started_at)) : "",
                  ),
                  h("span", { class: "mono second" }, one.lease_owner ?? ""),
                ),
                one.message ? h("bdi", { class: "second" }, one.message) : null,
              ),
            ),
        )
      : null,
  );
}

/** States of steps that have no glyph of their own. */
const STATE = /** @type {Record<string, string>} */ ({
  backoff: "retrying",
  pending: "sleeping",
  scheduled: "ready",
  open: "waiting",
  fired: "completed",
  satisfied: "completed",
  applied: "completed",
  recorded: "completed",
});

/** When workflow code ran. @param {import("./page.js").Context} ctx @param {import("./outline.js").Outline} outline */
export function codeSide(ctx, outline) {
  const { tasks } = outline;
  const summary = ctx.summary.data;
  return side(
    "Workflow code",
    h(
      "p",
      null,
      tasks.length
        ? `It ran ${plural(tasks.length, "time")}, for ${span(tasks.reduce((sum, one) => sum + one.recorded - one.leased, 0))} altogether.`
        : "It has not run yet.",
    ),
    summary?.next_task_kind === "workflow"
      ? facts([
          ["next task", words(summary.next_task_state)],
          ["due", time(summary.next_task_at)],
          ["queue", h("span", { class: "mono" }, summary.queue)],
          summary.next_task_owner ? ["worker", h("span", { class: "mono" }, summary.next_task_owner)] : null,
        ])
      : null,
    tasks.length
      ? h(
          "ul",
          null,
          ...tasks
            .slice(-LAST)
            .map((one) =>
              h(
                "li",
                { key: one.first },
                since(outline, one.leased),
                ` took ${span(one.recorded - one.leased)}, wrote ${plural(one.events, "event")} from `,
                event(ctx, one.first),
                one.owner ? h("span", { class: "third" }, ` at ${one.owner}`) : null,
              ),
            ),
        )
      : null,
  );
}

/** Commands and messages. @param {import("./page.js").Context} ctx @param {import("./outline.js").Outline} outline */
export function marksSide(ctx, outline) {
  return side(
    "Messages and the run itself",
    h(
      "ul",
      null,
      ...outline.marks
        .slice(-LAST)
        .map((one) =>
          h(
            "li",
            { key: one.sequence },
            since(outline, one.at),
            " ",
            h("bdi", null, `${one.type} ${one.name ?? ""}`),
            " ",
            event(ctx, one.sequence),
          ),
        ),
    ),
  );
}
