// One command to many runs: dry run, progress and results.
/** @import { App } from "../../main.js" */

import { Problem, Resource } from "../../api.js";
import { closing, confirm, show } from "../../dialog.js";
import { h } from "../../dom.js";
import { button, field, held, link, panel, runAddress, time, words } from "../../parts.js";
import { count, plural } from "../../words.js";
import { fates } from "../operation.js";

/**
 * What can be sent to many runs: a name, the text of its button, and whether it ends them.
 * @param {App} app
 * @returns {{name: string, label: string, danger: boolean}[]}
 */
export const actionsOf = (app) => [
  ...app.commands.filter((command) => command.bulk),
  { name: "signal", label: "Signal", danger: false },
];

/** @param {App} app @param {string} action */
const labelOf = (app, action) => actionsOf(app).find((each) => each.name === action)?.label ?? action;

const CAREFUL = 100;

/** A table in a box of its own. @param {string} name @param {string[]} heads @param {any[]} rows */
const table = (name, heads, rows) =>
  h(
    "div",
    { class: "scroll results", tabindex: "0", role: "region", "aria-label": name },
    h(
      "table",
      null,
      h("thead", null, h("tr", null, ...heads.map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", null, ...rows),
    ),
  );

/** @param {any} run */
const outcome = (run) =>
  h(
    "td",
    { class: run.reason ? "tone-amber" : null },
    words(run.outcome) + (run.reason ? `: ${words(run.reason)}` : ""),
  );

/**
 * Ask before many runs get a command: how many, ten of them, and what would be written.
 * @param {App} app @param {string} action @param {Record<string, string[]>} filter @param {(id: string) => void} begun
 */
export async function ask(app, action, filter, begun) {
  const label = labelOf(app, action);
  const state = { reason: "", name: "", input: "[]" };
  const send = async (/** @type {any} */ more, /** @type {import("../../api.js").Intent} */ intent = {}) => {
    const signal = action === "signal" ? { signal_name: state.name, input: JSON.parse(state.input) } : {};
    return app.api.post(
      "/api/bulk",
      { action, filter, reason: state.reason || undefined, ...signal, ...more },
      {},
      intent,
    );
  };
  const sure = (/** @type {any} */ found) =>
    confirm({
      title: `${label} ${plural(found.count, "run")}`,
      label: `${label} ${plural(found.count, "run")}`,
      danger: actionsOf(app).some((each) => each.name === action && each.danger),
      type: found.count > CAREFUL ? String(found.count) : undefined,
      sentence:
        found.count > 10
          ? `${count(found.count)} runs get the command. Ten of them, and what would be written:`
          : "What would be written:",
      fields: (update) =>
        h(
          "div",
          null,
          table(
            "what would be written",
            ["run", "outcome", "would write"],
            found.examples.map((/** @type {any} */ run) =>
              h(
                "tr",
                { key: run.run_id },
                h("td", null, h("bdi", { class: "mono clip", title: run.workflow_id }, run.workflow_id)),
                outcome(run),
                h("td", { class: "mono" }, run.would_write.join(", ") || "nothing"),
              ),
            ),
          ),
          field(state, "reason", "Reason, recorded with each command", update, { maxlength: 500 }),
        ),
      act: (intent) => send({ expected_count: found.count }, intent),
      done: (answer) => begun(answer.bulk_id),
    });
  const look = async () => {
    const found = await send({ dry_run: true });
    if (!found.count)
      throw new Problem(
        0,
        "nothing_to_do",
        `There is no run among these to which “${label.toLowerCase()}” does anything.`,
      );
    return found;
  };
  if (action !== "signal") sure(await look());
  else
    confirm({
      title: "Signal",
      sentence: "Which signal?",
      label: "Show what would be written",
      fields: (update) =>
        h(
          "div",
          null,
          field(state, "name", "Name", update),
          field(state, "input", "Arguments, a list in JSON", update),
        ),
      act: look,
      done: sure,
    });
}

/**
 * How far an operation is, and what became of its runs.
 * @param {App} app
 * @param {import("../../api.js").Resource<Api.BulkResultsAnswer | null>} resource
 * @param {(token: string) => void} page
 */
export function progress(app, resource, page) {
  const begun = resource.data;
  const stop = async (/** @type {string} */ id) => {
    await app.api.post(`/api/bulk/${encodeURIComponent(id)}/stop`).catch((/** @type {any} */ problem) => {
      resource.problem = problem;
    });
    void resource.load();
  };
  return panel(
    begun ? `${labelOf(app, begun.action)}: ${plural(begun.total, "run")}` : "Operation",
    button("✕", () => app.query({ bulk: null }), { class: "plain", "aria-label": "close the operation" }),
    ...held(resource, (data) => [
      h(
        "p",
        { class: "chips" },
        h(
          "span",
          {
            class: "meter",
            role: "progressbar",
            "aria-label": "done",
            "aria-valuemin": 0,
            "aria-valuemax": data.total,
            "aria-valuenow": data.done,
          },
          h("span", { style: { width: `${data.total ? (100 * data.done) / data.total : 100}%` } }),
        ),
        h("span", { class: "number" }, `${count(data.done)} of ${count(data.total)}`),
        words(data.status),
        h("span", { class: "second" }, fates(data), data.reason ? ` “${data.reason}”` : ""),
        data.ended_at
          ? null
          : button("Stop", () => void stop(data.bulk_id), {
              disabled: !app.canWrite || data.status === "stopping",
              title: app.readOnly,
            }),
      ),
      table(
        "what was done",
        ["run", "outcome", "command"],
        data.results.map((run) =>
          h(
            "tr",
            { key: run.run_id },
            h(
              "td",
              null,
              link(
                runAddress(run.workflow_id, run.run_id),
                { class: "mono clip", title: run.workflow_id },
                h("bdi", null, run.workflow_id),
              ),
            ),
            outcome(run),
            h("td", { class: "mono second" }, run.command_id ?? "–"),
          ),
        ),
      ),
      data.next_page_token ? button("The next 100", () => page(data.next_page_token ?? "")) : null,
    ]),
  );
}

/**
 * The operations of the namespace, the newest first: which command, to how many runs, and what became of it.
 * @param {App} app
 */
export function past(app) {
  let draw = () => {};
  const found = new Resource(
    () => app.api.get("/api/bulk", { page_size: 100 }),
    () => draw(),
  );
  void found.load();
  show("Operations", ({ close, update }) => {
    draw = update;
    const row = (/** @type {Api.BulkAnswer} */ one) =>
      h(
        "tr",
        { key: one.bulk_id },
        h(
          "td",
          null,
          button(
            labelOf(app, one.action),
            () => {
              close();
              app.query({ bulk: one.bulk_id });
            },
            { class: "plain" },
          ),
        ),
        h("td", { class: "number" }, `${count(one.done)} of ${count(one.total)}`),
        h(
          "td",
          { class: one.rejected || one.failed ? "tone-amber" : null },
          one.rejected || one.failed
            ? `${words(one.status)}, ${count(one.rejected + one.failed)} not done`
            : words(one.status),
        ),
        h("td", null, time(one.created_at)),
      );
    return [
      ...held(found, ({ bulk_operations: all }) =>
        all.length
          ? table("operations", ["command", "runs", "state", "begun"], all.map(row))
          : h("p", { class: "empty" }, "There is no bulk operation yet. Select runs with x to start one."),
      ),
      closing(close),
    ];
  });
}
