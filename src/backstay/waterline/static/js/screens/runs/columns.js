// The columns of the list: the text of each, the fields that it needs, and its sort order.
/** @import { App } from "../../main.js" */

import { closing, show } from "../../dialog.js";
import { h } from "../../dom.js";
import { badge, button, link, runAddress, time } from "../../parts.js";
import { count, now, span } from "../../words.js";

/** @typedef {[label: string, width: number, cell: (row: any) => any, sort?: string, needs?: string]} Column */

const text = (/** @type {any} */ value, /** @type {string} */ more = " mono") =>
  h("bdi", { class: `clip${more}`, title: value }, value ?? "–");

/** By the name of the field. A width of 0 takes what is left. @type {Record<string, Column>} */
const COLUMNS = {
  state: ["state", 112, (row) => badge(row.state, row.attention), "", "attention"],
  workflow_id: [
    "workflow id",
    200,
    (row) =>
      link(
        runAddress(row.workflow_id, row.is_current_run ? null : row.run_id),
        { class: "mono clip", title: row.workflow_id },
        h("bdi", null, row.workflow_id),
      ),
    "",
    "run_id,is_current_run,is_terminal",
  ],
  workflow_type: ["type", 140, (row) => text(row.workflow_type)],
  why: ["why", 0, (row) => text(row.why, "")],
  business_key: ["business key", 140, (row) => text(row.business_key)],
  visibility_labels: [
    "labels",
    180,
    (row) =>
      text(
        Object.entries(row.visibility_labels ?? {})
          .map((pair) => pair.join("="))
          .join(" ") || null,
      ),
  ],
  queue: ["queue", 112, (row) => text(row.queue)],
  compatibility: ["build", 112, (row) => text(row.compatibility)],
  history_event_count: ["events", 80, (row) => count(row.history_event_count), "events"],
  since: ["since", 116, (row) => time(row.since), "since"],
  started_at: ["started", 116, (row) => time(row.started_at), "started"],
  closed_at: ["closed", 116, (row) => time(row.closed_at), "closed"],
  duration_ms: [
    "duration",
    92,
    (row) => span(row.is_terminal ? row.duration_ms : Math.max(0, now() - Date.parse(row.started_at))),
    "duration",
    "started_at",
  ],
};
const ALWAYS = ["state", "workflow_id"];
const USUAL = "workflow_type,why,started_at,duration_ms";
const column = (/** @type {string} */ name) => /** @type {Column} */ (COLUMNS[name]);
const kind = (/** @type {string} */ name) =>
  `c-${name}${name === "history_event_count" || name === "duration_ms" ? " number" : ""}`;

/** The names of the columns that are shown. @param {URLSearchParams} query */
export function chosen(query) {
  const wanted = (query.get("columns") ?? USUAL).split(",");
  return Object.keys(COLUMNS).filter((name) => ALWAYS.includes(name) || wanted.includes(name));
}

/** The fields that these columns need. @param {string[]} names */
export const fieldsFor = (names) =>
  [...new Set(names.flatMap((name) => [name, ...(column(name)[4]?.split(",") ?? [])]))].join(",");

/**
 * The head of the table, and how wide its columns are.
 * @param {string[]} names
 * @param {string} sort
 * @param {boolean} down
 * @param {(sort: string) => void} by
 * @param {any} all the checkbox of all rows
 */
export const head = (names, sort, down, by, all) => [
  h(
    "colgroup",
    null,
    h("col", { class: "pick" }),
    ...names.map((name) =>
      h("col", { key: name, class: kind(name), style: column(name)[1] ? { width: `${column(name)[1]}px` } : {} }),
    ),
  ),
  h(
    "thead",
    { role: "rowgroup" },
    h(
      "tr",
      { role: "row" },
      h("th", { role: "columnheader", scope: "col", class: "pick" }, all),
      ...names.map((name) => {
        const [label, , , order] = column(name);
        const on = order === sort;
        return h(
          "th",
          {
            key: name,
            role: "columnheader",
            scope: "col",
            class: kind(name),
            "aria-sort": on ? (down ? "descending" : "ascending") : null,
          },
          order
            ? button([label, h("span", { "aria-hidden": "true" }, on ? (down ? "↓" : "↑") : "")], () => by(order), {
                class: "plain",
              })
            : label,
        );
      }),
    ),
  ),
];

/** How narrow the table may be. @param {string[]} names */
export const least = (names) => `${names.reduce((sum, name) => sum + (column(name)[1] || 180), 36)}px`;

/** @param {Api.ListedRunAnswer} row @param {string[]} names */
export const cells = (row, names) =>
  names.map((name) => h("td", { key: name, role: "cell", class: kind(name) }, column(name)[2](row)));

/** Choose columns. @param {App} app */
export function chooseColumns(app) {
  show("Columns", ({ close, update }) => {
    const names = chosen(app.route.query);
    const toggle = (/** @type {string} */ name) => {
      const next = Object.keys(COLUMNS)
        .filter((one) => !ALWAYS.includes(one) && names.includes(one) !== (one === name))
        .join(",");
      app.query({ columns: next === USUAL ? null : next });
      update();
    };
    return [
      h(
        "div",
        { class: "choices" },
        ...Object.keys(COLUMNS).map((name) =>
          h(
            "label",
            null,
            h("input", {
              type: "checkbox",
              disabled: ALWAYS.includes(name),
              prop: { checked: names.includes(name) },
              on: { change: () => toggle(name) },
            }),
            column(name)[0],
          ),
        ),
      ),
      closing(close),
    ];
  });
}
