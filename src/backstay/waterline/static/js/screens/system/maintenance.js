// System, maintenance: what the engine does by itself, and buttons that do it now.
/** @import { App } from "../../main.js" */
/** @import { All } from "../system.js" */

import { h } from "../../dom.js";
import { held, panel, pre, time, words } from "../../parts.js";
import { count, plural, span } from "../../words.js";
import { adminOnly, asked, figures, press, table, tell } from "../house/kit.js";

/** @param {App} app @param {All} all @param {() => void} load */
export function maintenance(app, all, load) {
  /** The lines of the dry run of a pass. @param {any} answer @returns {string[]} */
  const seen = (answer) =>
    answer.would_reconcile ??
    answer.results?.map(
      (/** @type {any} */ one) => `${words(one.outcome)} ${one.workflow_id ?? one.execution_id ?? one.run_id}`,
    ) ?? [`views of ${plural(answer.matched, "run")}`];
  /** @param {any} answer */
  const done = (answer) => {
    load();
    tell(
      "What was done",
      pre(
        "what was done",
        Object.entries(answer)
          .filter(([, value]) => typeof value === "number")
          .map(([name, value]) => `${words(name)}: ${value}`)
          .join("\n"),
      ),
    );
  };
  /**
   * @param {string} title
   * @param {string} label
   * @param {string} path
   * @param {string} sentence
   * @param {any} body
   * @param {(data: any) => any} view
   */
  const pass = (title, label, path, sentence, body, view) =>
    panel(
      title,
      press(
        app,
        label,
        asked(app, "post", `/api/${path}${path.endsWith("s/rebuild") ? "" : "/pass"}`, () => body, {
          title: `${label}?`,
          sentence,
          label,
          seen,
          done,
        }),
        adminOnly(app, "do this"),
      ),
      ...held(
        /** @type {import("../../api.js").Resource<any>} */ (
          all[/** @type {keyof All} */ (path.replace("/rebuild", ""))]
        ),
        view,
      ),
    );
  return [
    pass(
      "Repair",
      "Repair now",
      "system/repair",
      "Restores missing tasks and wakes from the histories, and retries blocked tasks.",
      {},
      (data) => [
        figures(data.candidates, [
          "tasks to check=existing_task_candidates",
          "runs without a task=missing_task_candidates red",
          ["oldest", span(Math.max(data.candidates.max_task_candidate_age_ms, data.candidates.max_missing_run_age_ms))],
        ]),
        h(
          "p",
          { class: "caption" },
          `The engine does this by itself every ${data.policy.loop_throttle_seconds} s; the button only saves the wait.`,
        ),
      ],
    ),
    pass(
      "Retention",
      "Remove now",
      "system/retention",
      "Removes closed runs that are older than the retention of this namespace. This cannot be undone.",
      {},
      (data) =>
        figures(data, [
          "days kept=retention_days",
          `${data.scan_pressure ? "expired, at least" : "expired"}=expired_run_count`,
          ["closed before", time(data.cutoff)],
          ["archive", data.archive ? "yes" : "no"],
        ]),
    ),
    pass(
      "Activity timeouts",
      "Enforce now",
      "system/activity-timeouts",
      "Times out activities that are past a timeout.",
      {},
      (data) => figures(data, ["past a timeout=expired_count amber"]),
    ),
    pass(
      "Stored views",
      "Rebuild",
      "system/projections/rebuild",
      "Rebuilds missing or wrong views from the histories, and removes views of deleted runs.",
      { needs_rebuild: true, prune_stale: true },
      ({ projections: found }) => [
        table(
          "stored views",
          [
            ["view", ({ name }) => words(name)],
            ["rows", (row) => count(row.rows ?? row.summaries), "number"],
            ["runs", (row) => count(row.projected_runs ?? row.projected), "number"],
            "orphaned=orphaned number",
            "to rebuild=runs_to_rebuild number",
          ],
          Object.keys(found)
            .filter((name) => name.startsWith("run_"))
            .map((name) => ({ name, ...found[name] })),
          "name",
        ),
        h(
          "p",
          { class: "caption" },
          `${plural(found.looked_at, "run")} looked at${found.complete ? "" : ", not all"}; the views follow commits by ${span(found.lag_ms)}.`,
        ),
      ],
    ),
  ];
}
