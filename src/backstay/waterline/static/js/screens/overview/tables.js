// Overview, tables: the queues, the types, and where the time of those goes.
/** @import { Resource } from "../../api.js" */

import { spark, table } from "../../chart.js";
import { h } from "../../dom.js";
import { held, link, panel, time } from "../../parts.js";
import { count, plural } from "../../words.js";
import { about, KINDS, percent, queue, runsOf } from "./figures.js";

const SPENT = /** @type {(keyof Api.TimeSpent)[]} */ (["code", "activities", "backoff", "queue", "timers", "waiting"]);

/** @param {Api.OverviewAnswer} data */
export function queues({ queues: { count: all, oldest_waiting: rows }, fleet, schedules }) {
  const workers = fleet
    ? `${plural(fleet.active, "worker")} on ${plural(fleet.queues, "queue")}${fleet.stale ? `, ${count(fleet.stale)} stale` : ""}`
    : "This server does not know the workers";
  return panel(
    "Queues",
    link("/waterline/queues", null, all > rows.length ? `All ${count(all)}` : workers),
    table(
      "queues",
      [
        ["queue", ({ name }) => link(queue(name), { class: "clip", title: name }, name)],
        ["backlog"],
        ["oldest", ({ oldest_ready_at: at }) => (at ? time(at) : "–")],
        ["running", ({ leased }) => count(leased)],
        [
          "workers",
          ({ backlog, workers }) => (backlog && !workers ? h("span", { class: "tone-red" }, "▲ none") : count(workers)),
        ],
      ],
      rows,
    ),
    h(
      "p",
      { class: "caption" },
      fleet?.builds.length ? `Builds ${fleet.builds.slice(0, 5).join(", ")}. ` : null,
      link("/waterline/schedules", null, plural(schedules.active, "active schedule")),
      schedules.next_fire_at ? [", next ", time(schedules.next_fire_at)] : null,
    ),
  );
}

/** @param {Api.OverviewAnswer} data */
export function types({ types: { count: all, busiest } }) {
  return panel(
    "Types",
    all > busiest.length ? h("span", { class: "second" }, `the busiest ${busiest.length} of ${count(all)}`) : null,
    table(
      "types",
      [
        ["type", ({ workflow_type: type }) => link(runsOf(type, "all"), { class: "clip", title: type }, type)],
        [
          "trend",
          ({ trend }) => spark(/** @type {any} */ (KINDS.map(([name, tone]) => ({ name, tone, values: trend[name] })))),
        ],
        ["started"],
        ["completed"],
        [
          "failed",
          ({ failed, workflow_type: type }) =>
            failed ? link(runsOf(type, "failed"), { class: "tone-red" }, `✕ ${count(failed)}`) : "0",
        ],
        ["pass rate", (type) => percent(type.pass_rate)],
        ["p50", (type) => about(type.p50_ms)],
        ["p95", (type) => about(type.p95_ms)],
      ],
      busiest,
    ),
  );
}

/**
 * Where the time of the busiest types goes: a bar, and the same in numbers.
 * @param {Resource<Api.Get<"/api/time-spent">>} spent
 */
export function spending(spent) {
  /** @param {Api.TypeTimeSpent} one @param {keyof Api.TimeSpent} kind */
  const share = ({ milliseconds: all }, kind) => all[kind] / (SPENT.reduce((sum, name) => sum + all[name], 0) || 1);
  return panel(
    "Where the time goes",
    h("span", { class: "second" }, "of the last closed runs"),
    ...held(spent, ({ types: found }) =>
      !found.some(({ runs }) => runs)
        ? h("p", { class: "second" }, "No run of these types has closed yet.")
        : table(
            "where the time goes",
            [
              ["type", ({ workflow_type: type }) => link(runsOf(type, "all"), { class: "clip", title: type }, type)],
              ["runs", ({ runs, sampled }) => `${sampled ? "last " : ""}${count(runs)}`],
              [
                "share",
                (one) =>
                  h(
                    "div",
                    { class: "spent", "aria-hidden": "true" },
                    ...SPENT.map((kind) =>
                      h("span", {
                        class: `spent-${kind}`,
                        title: kind,
                        style: { width: `${100 * share(one, kind)}%` },
                      }),
                    ),
                  ),
              ],
              ...SPENT.map(
                (kind) =>
                  /** @type {any} */ ([
                    [h("span", { class: `swatch spent-${kind}` }), kind],
                    (/** @type {Api.TypeTimeSpent} */ one) => percent(share(one, kind)),
                  ]),
              ),
            ],
            found.filter(({ runs }) => runs),
          ),
    ),
  );
}
