// System, health: the certificate, what is wrong, and the figures.
/** @import { App } from "../../main.js" */
/** @import { All } from "../system.js" */

import { h } from "../../dom.js";
import { button, held, panel, runAddress, time, words } from "../../parts.js";
import { bytes, count, plural, span } from "../../words.js";
import { attempt, figures, named, table } from "../house/kit.js";
import { told } from "./tones.js";

/** @param {App} app @param {All} all */
export function health(app, all) {
  const prove = () =>
    void attempt(app, "proven", async () => {
      all["system/liveness"].data = await app.api.get("/api/system/liveness", { fresh: 1 });
      app.update();
    });
  return [
    panel(
      "Liveness certificate",
      button("Prove now", prove),
      ...held(all["system/liveness"], (proof) => [
        h(
          "p",
          { class: `sentence ${proof.stranded ? "tone-red" : ""}` },
          `${plural(proof.open_runs, "open run")}, ${count(proof.stranded)} stranded, proven `,
          time(proof.proven_at),
        ),
        h(
          "p",
          { class: "caption" },
          `A task or wake on disk resumes each open run. The proof took ${span(proof.took_ms)}.`,
        ),
        figures(
          proof.resume_sources,
          Object.keys(proof.resume_sources).map((name) => `${words(name)}=${name}`),
        ),
        table(
          "stranded runs",
          [
            ["run", ({ workflow_id: id }) => named(runAddress(id), id)],
            ["why", ({ reason }) => words(reason)],
            "action=action mono",
          ],
          proof.stranded_runs,
          "workflow_id",
        ),
      ]),
    ),
    panel(
      "Causes",
      null,
      ...held(all["system/health"], (data) => [
        table(
          "causes",
          [
            ["severity", ({ severity }) => told(severity)],
            "what=sentence note",
            "count=count number",
            "since=since time wide",
            "action=action.label second wide note",
          ],
          data.causes,
          "sentence",
          "There is nothing to report.",
        ),
        h(
          "ul",
          { class: "checks" },
          ...Object.entries(data.checks).map(([name, check]) =>
            h("li", { key: name }, told(/** @type {any} */ (check).status, words(name))),
          ),
        ),
      ]),
    ),
    panel(
      "Figures",
      null,
      ...held(all["system/health"], ({ operator_metrics: found }) =>
        found
          ? figures(found, [
              "open runs=runs.running",
              "tasks due=tasks.ready_due",
              "leased=tasks.leased",
              "delayed=tasks.delayed",
              "leases lost=leases.expired amber",
              "retrying=activities.retrying amber",
              "failed attempts=activities.failed_attempts",
              "workers=workers.active",
              "schedules missed=schedules.missed amber",
              "longest history=history.max_event_count",
              ["largest history", bytes(found.history.max_size_bytes)],
            ])
          : null,
      ),
    ),
  ];
}
