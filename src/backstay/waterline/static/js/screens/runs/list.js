// Runs, list: the rows of a page, and what is picked of them.
/** @import { Asking } from "./asking.js" */
/** @import { Selection } from "./selection.js" */

import { h } from "../../dom.js";
import { button, empty } from "../../parts.js";
import { count, plural } from "../../words.js";
import { actionsOf } from "./bulk.js";
import { cells, chosen, head, least } from "./columns.js";
import { grouped } from "./filters.js";

export const PAGE = 50; // as many values as a filter of the server may have: rows are asked for again by their run ids

/**
 * @typedef
 * {{key: string, rows: Api.ListedRunAnswer[], next: string | null, complete: boolean, looked: number, fresh: number,
 *   among: number | null}}
 * Shown
 */

/** The number of matches, as far as they were counted. @param {Asking} asks @param {any} counts */
function total(asks, counts) {
  const states = grouped(asks.pairs())["state"];
  const { groups = [], count: all = 0, complete = true } = counts ?? {};
  const number = states
    ? groups
        .filter((/** @type {any} */ group) => states.includes(group.value))
        .reduce((/** @type {number} */ sum, /** @type {any} */ group) => sum + group.count, 0)
    : all;
  return { number, text: complete ? plural(number, "run") : `${count(number)}+ runs` };
}

/**
 * What stands between the filters and the list: how many runs match, those that are new, and what is done with those
 * that
 * are picked.
 * @param {Selection} picks
 * @param {any} counts
 * @param {number} fresh runs that are new
 * @param {() => void} renew
 */
export function bar(picks, counts, fresh, renew) {
  const { app, asks, picked, every } = picks;
  const all = total(asks, counts);
  const unbounded = every && Object.keys(asks.matching() ?? {}).length === 0;
  return h(
    "div",
    { class: "picks", role: "group", "aria-label": "selection" },
    picked.size === 0 ? h("span", { class: "second", key: "total" }, counts ? all.text : " ") : null,
    fresh ? button(`${fresh >= PAGE ? `${PAGE}+` : fresh} new`, renew, { class: "fresh", key: "fresh" }) : null,
    picked.size === 0
      ? null
      : [
          h("span", { key: "picked" }, every ? `all ${all.text} that match` : plural(picked.size, "run")),
          every || all.number <= picked.size
            ? null
            : button(`all ${all.text} that match`, () => picks.takeEvery(), { class: "plain", key: "every" }),
          ...actionsOf(app).map(({ name, label, danger }) =>
            button(label, () => void picks.act(name), {
              key: name,
              class: danger ? "danger" : "",
              disabled: !app.canWrite || unbounded,
              title:
                app.readOnly ??
                (unbounded ? "A command to all runs of the namespace is refused: add a filter first." : undefined),
            }),
          ),
          button("✕", () => picks.none(), { key: "none", class: "plain", "aria-label": "select none" }),
        ],
  );
}

/**
 * The runs of a page, and the way to others.
 * @param {Selection} picks
 * @param {Shown} data
 * @param {boolean} current whether it is what is asked for now
 */
export function table(picks, data, current) {
  const { app, asks, picked } = picks;
  const { query, view, bucket, pairs, sort, down, write } = asks;
  const names = chosen(query());
  const token = query().get("next_page_token");
  const all = data.rows.length > 0 && data.rows.every((row) => picked.has(row.run_id));
  const by = (/** @type {string} */ order) =>
    write(pairs(), { sort: order, order: order === sort() && down() ? "asc" : null });
  const box_ = h("input", {
    type: "checkbox",
    "aria-label": "select all on this page",
    prop: { checked: all, indeterminate: !all && picked.size > 0 },
    on: { click: () => picks.take(all ? [] : data.rows.map((row) => row.run_id)) },
  });
  return [
    !data.among
      ? null
      : h(
          "p",
          { class: "notice", key: "part" },
          `Sorted among the newest ${plural(data.among, "run")} only: an older run may belong above these. Filter by type, state or time, so that fewer runs match and all of them are sorted.`,
        ),
    data.rows.length
      ? h(
          "div",
          { class: "scroll", id: "runs", tabindex: "-1", key: "rows", "aria-busy": String(!current) },
          h(
            "table",
            { role: "table", "aria-label": "runs", style: { "--least": least(names) } },
            ...head(names, sort(), down(), by, box_),
            h(
              "tbody",
              { role: "rowgroup" },
              ...data.rows.map((row) =>
                h(
                  "tr",
                  {
                    key: row.run_id,
                    role: "row",
                    class: `${picked.has(row.run_id) ? "picked" : ""}${row.run_id === picks.cursor ? " at" : ""}`,
                    on: { focusin: () => picks.moveTo(row.run_id) },
                  },
                  h(
                    "td",
                    { role: "cell", class: "pick" },
                    h("input", {
                      type: "checkbox",
                      "aria-label": `select ${row.workflow_id}`,
                      prop: { checked: picked.has(row.run_id) },
                      on: { click: (event) => picks.pick(row.run_id, event.shiftKey) },
                    }),
                  ),
                  ...cells(row, names),
                ),
              ),
            ),
          ),
        )
      : token
        ? null
        : pairs().length || bucket() !== "all" || view()
          ? empty("No run matches these filters. The same in a terminal:", "dw list --why --state blocked")
          : empty("There is no run yet. Start one:", "dw start shop.py:order order-1"),
    h(
      "div",
      { class: "tools", key: "pages" },
      token ? button("Newest", () => app.query({ next_page_token: null }, {})) : null,
      data.next
        ? button("Older", () => {
            app.query({ next_page_token: data.next }, {});
            scrollTo(0, 0);
          })
        : null,
      data.complete || (data.next && data.rows.length)
        ? null
        : h("span", { class: "second" }, `Looked at ${plural(data.looked, "run")}; there are more.`),
    ),
  ];
}
