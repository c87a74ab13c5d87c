// Activities: every attempt with its times, worker, progress and failure, and the attempts with unknown outcome.

import { asProblem, runPath } from "../../api.js";
import { h } from "../../dom.js";
import {
  announce,
  badge,
  button,
  copy,
  empty,
  facts,
  held,
  link,
  mono,
  panel,
  sign,
  time,
  trouble,
  words,
} from "../../parts.js";
import { payload } from "../../payload.js";
import { now, plural, span } from "../../words.js";
import { here, isOpen, opener, pages, table } from "./rows.js";
import { given, meter, progressed } from "./step.js";

const SHOWN = 3; // attempts of an activity that is not open
const UNKNOWN = /** @type {Record<string, string>} */ ({ expired: "never reported", timed_out: "timed out" });
const LIMITS = ["start_to_close", "schedule_to_start", "schedule_to_close", "heartbeat"];

/** @param {any} each */
const took = (each) =>
  span((each.closed_at ? Date.parse(each.closed_at) : now()) - Date.parse(each.started_at ?? each.created_at));

/** How far an attempt is, beside its time and not on it. @param {any} progress */
const far = (progress) =>
  progress && h("span", { class: "chips" }, meter(progress), h("bdi", null, progressed(progress)));

/** @param {any} policy */
function retries(policy) {
  const waits = policy.backoff_seconds.map((/** @type {number} */ seconds) => span(seconds * 1000));
  return [
    policy.max_attempts ? plural(policy.max_attempts, "attempt") : "until it succeeds",
    waits.length ? `after ${waits.slice(0, 6).join(", ")}${waits.length > 6 ? " …" : ""}` : "",
    ...LIMITS.map((name) => policy[`${name}_timeout`] && `${words(name)} ${span(policy[`${name}_timeout`] * 1000)}`),
    policy.non_retryable_error_types.length ? `not after ${policy.non_retryable_error_types.join(", ")}` : "",
  ]
    .filter(Boolean)
    .join("; ");
}

/** @param {import("./page.js").Context} ctx @returns {import("./page.js").Tab} */
export function tab(ctx) {
  const { app } = ctx;
  const { list, moved, route, turn } = pages(ctx, "activities", 40);
  /** @type {Record<string, any>} what became of a button, by activity */
  const problems = {};
  /** @type {Record<string, import("../../api.js").Intent>} */
  const intents = {};
  const retry = app.commands.find((/** @type {Api.OperatorCommandAnswer} */ command) => command.name === "retry_now");

  /** @param {any} activity @param {string} verb */
  async function tryNow({ id, activity_type }, verb) {
    problems[id] = null;
    try {
      await app.api.post(
        runPath(ctx.id, ctx.run, `activities/${encodeURIComponent(id)}/${verb}`),
        {},
        {},
        (intents[id] ??= {}),
      );
      announce(`${activity_type} is retried now`);
    } catch (error) {
      problems[id] = asProblem(error);
    }
    for (const each of [list, ctx.summary, ctx.why]) void each.load();
  }

  /** @param {any} attempt @returns {import("./rows.js").Row} */
  const attempted = (attempt) => [
    attempt.id,
    [
      null,
      `attempt ${attempt.attempt_number}`,
      UNKNOWN[attempt.status] ? sign("?", UNKNOWN[attempt.status], "tone-amber") : badge(attempt.status),
      time(attempt.started_at),
      took(attempt),
      mono(attempt.lease_owner),
      attempt.status === "running"
        ? far(attempt.last_heartbeat_progress)
        : h("bdi", { class: "tone-amber" }, attempt.message),
    ],
    null,
    "attempt",
  ];

  /** @param {any} activity @returns {import("./rows.js").Row[]} */
  const row = (activity) => {
    const { id, attempts, sequence: step, retry_policy: policy } = activity;
    const open = isOpen(app, id);
    const waits = activity.status === "pending" && activity.attempt_count && activity.available_at;
    const shown = open
      ? attempts
      : attempts.length > 1 || activity.status !== "completed"
        ? attempts.slice(-SHOWN)
        : [];
    const rest = link(`?tab=history&step=${step}`, null, "its events");
    return [
      [
        id,
        [
          step,
          opener(app, id, mono(activity.activity_type)),
          badge(waits ? "retrying" : activity.status),
          waits ? ["next ", time(activity.available_at)] : time(activity.started_at ?? activity.created_at),
          took(activity),
          waits || activity.attempt_count > 1
            ? `attempt ${activity.attempt_count + (waits ? 1 : 0)}${policy.max_attempts ? ` of ${policy.max_attempts}` : ""}`
            : null,
          waits && retry
            ? button(retry.label, () => void tryNow(activity, retry.verb), {
                disabled: !app.canWrite,
                title: app.readOnly,
              })
            : null,
        ],
        problems[id]
          ? trouble(problems[id])
          : open
            ? [
                facts({
                  ...Object.fromEntries(given(activity.options)),
                  retries: retries(policy),
                  queue: mono(activity.queue),
                  "idempotency key": [mono(activity.idempotency_key), copy(activity.idempotency_key, "the key")],
                  "last failure": mono(activity.message),
                  events: rest,
                }),
                payload(activity.arguments, "arguments", app, rest),
                payload(activity.result, "result", app, rest),
              ]
            : null,
      ],
      ...(shown.length < attempts.length && shown.length
        ? [
            /** @type {any} */ ([
              `${id} more`,
              [null, link(here(app, { open: id }), null, `${attempts.length - shown.length} before`)],
              null,
              "attempt",
            ]),
          ]
        : []),
      ...shown.map(attempted),
    ];
  };

  /** @param {any[]} activities */
  function unsure(activities) {
    const found = activities.flatMap((activity) =>
      activity.attempts
        .filter((/** @type {any} */ each) => UNKNOWN[each.status])
        .map((/** @type {any} */ each) => ({ ...activity, ...each, key: activity.idempotency_key })),
    );
    return found.length
      ? panel(
          "Attempts with unknown outcome",
          null,
          h(
            "p",
            { class: "second" },
            "These attempts began and never reported an end: they may have done their work. Look up the idempotency key in the called system.",
          ),
          table(
            "activity,attempt,began,outcome,worker:wide,idempotency key",
            found
              .slice(0, 50)
              .map((each) => [
                each.id,
                [
                  mono(each.activity_type),
                  each.attempt_number,
                  time(each.started_at),
                  UNKNOWN[each.status],
                  mono(each.lease_owner),
                  [mono(each.key), copy(each.key, "the key")],
                ],
              ]),
          ),
        )
      : null;
  }

  return {
    view: () =>
      held(list, ({ activities, next_after }) => [
        unsure(activities),
        activities.length
          ? table(
              "step:number,activity,state,when,took:number,worker:wide second,",
              activities.flatMap(row),
              "activities",
            )
          : empty("This run has started no activity yet."),
        turn(next_after),
      ]),
    moved,
    route,
  };
}
