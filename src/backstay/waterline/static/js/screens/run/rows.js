// What the tabs of a run share: tables whose rows open, and lists in pages.
/** @import { App } from "../../main.js" */

import { Resource } from "../../api.js";
import { h } from "../../dom.js";
import { button, link } from "../../parts.js";
import { changed } from "../../router.js";

/**
 * @typedef {[key: string, cells: any[], below?: any, look?: string | null]} Row what is below a row is shown under it
 */

/** This page with some of its query changed. @param {App} app @param {Record<string, string | null>} changes */
export const here = (app, changes) => `?${changed(app.route.query, changes)}`;

/**
 * A table. Its columns: `#:number,what,from:wide`, each a name and a class.
 * @param {string} columns
 * @param {Row[]} rows
 * @param {string} [look]
 */
export function table(columns, rows, look) {
  const heads = columns.split(",").map((each) => each.split(":"));
  const span = matchMedia("(max-width: 800px)").matches
    ? heads.filter(([, kind]) => !kind?.includes("wide")).length
    : heads.length;
  return h(
    "table",
    { class: look },
    h(
      "thead",
      null,
      h(
        "tr",
        null,
        heads.map(([name, kind], at) =>
          h(name ? "th" : "td", { scope: name ? "col" : null, class: kind, key: at }, name),
        ),
      ),
    ),
    h(
      "tbody",
      null,
      rows.flatMap(([key, cells, below, kind]) => [
        h(
          "tr",
          { key, class: kind },
          cells.map((cell, at) => h("td", { class: heads[at]?.[1], key: at }, cell)),
        ),
        below ? h("tr", { key: `${key} below`, class: "below", ref: seen }, h("td", { colspan: span }, below)) : null,
      ]),
    ),
  );
}

/** @param {Element} element */
const seen = (element) => requestAnimationFrame(() => element.scrollIntoView({ block: "nearest" }));

/** Whether a row is open: the address says so. @param {App} app @param {string} name @param {string} [of] */
export const isOpen = (app, name, of = "open") => app.route.query.get(of) === name;

/**
 * A button in a row that opens and closes it.
 * @param {App} app
 * @param {string} name
 * @param {any} label
 * @param {string} [of]
 */
export function opener(app, name, label, of = "open") {
  const open = isOpen(app, name, of);
  return button(label, () => app.query({ [of]: open ? null : name }), {
    class: "opener",
    "aria-expanded": String(open),
  });
}

/** Links to other pages of a list. @param {App} app @param {string} name @param {any} at @param {any} next */
export const turn = (app, name, at, next) =>
  (at || next) &&
  h(
    "nav",
    { class: "turn", "aria-label": "pages" },
    at ? link(here(app, { [name]: null, event: null, open: null }), null, "← first page") : null,
    next ? link(here(app, { [name]: String(next), event: null, open: null }), null, "next page →") : null,
  );

/**
 * A part of the run in pages. The address says which is shown: so the page never grows, and Back goes back.
 * @param {import("./page.js").Context} ctx
 * @param {string} part which is also the name of its tab
 * @param {number} size
 * @param {string} [parameter]
 */
export function pages(ctx, part, size, parameter = "after") {
  const { app } = ctx;
  const place = () => app.route.query.get("after");
  let at = place();
  const list = new Resource(() => ctx.part(part, { page_size: size, [parameter]: at }), ctx.update);
  void list.load();
  return {
    list,
    moved: () => {
      if (app.route.query.get("tab") === part) void list.load();
    },
    route() {
      if (at === place()) return void list.load();
      at = place();
      list.reset();
    },
    /** @param {any} next */
    turn: (next) => turn(app, "after", at, next),
  };
}
