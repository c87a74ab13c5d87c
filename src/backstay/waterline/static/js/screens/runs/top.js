// Runs, top: saved views, the search box, ranges of time, filters, and how many runs are in each state.
/** @import { App } from "../../main.js" */
/** @import { Resource } from "../../api.js" */
/** @import { Asking } from "./asking.js" */

import { h } from "../../dom.js";
import { button, glyph, tone, words } from "../../parts.js";
import { count, now } from "../../words.js";
import { past } from "./bulk.js";
import { chooseColumns } from "./columns.js";
import { chips, fieldsOf } from "./filters.js";
import { keep } from "./views.js";

const SINCE = { "15 min": 15, hour: 60, "24 h": 1440, "7 d": 10_080, "30 d": 43_200 };

/**
 * @typedef {{definition: Resource<Api.Get<"/api/flows/definition">>, views: Resource<Api.Get<"/api/saved-views">>,
 *   counts: Resource<any>}} Lists
 */

/**
 * What stands above the list: views, the search box, and filters.
 * @param {App} app
 * @param {Asking} asks
 * @param {Lists} lists
 * @param {ReturnType<typeof import("./search.js").searchBox>} box
 */
export function top(app, asks, lists, box) {
  const { definition, views } = lists;
  const { view, pairs, write, choose } = asks;
  const options = views.data?.saved_views ?? [];
  const own = view()?.system === false;
  const menu = (
    /** @type {string} */ label,
    /** @type {string} */ first,
    /** @type {[string, string][]} */ entries,
    /** @type {(value: string) => void} */ take,
  ) =>
    h(
      "select",
      {
        "aria-label": label,
        on: {
          change: (event) => {
            take(event.target.value);
            event.target.value = "";
          },
        },
      },
      h("option", { value: "" }, first),
      ...entries.map(([value, text]) => h("option", { value }, text)),
    );
  const since = (/** @type {string} */ value) =>
    Number(value)
      ? write([
          ...pairs().filter(([name]) => name !== "started_after"),
          ["started_after", new Date(Math.floor(now() / 1000) * 1000 - Number(value) * 60_000).toISOString()],
        ])
      : box.begin(`${value}:`);
  return [
    h(
      "header",
      { class: "tools" },
      h("h1", null, "Runs"),
      h(
        "select",
        { "aria-label": "view", on: { change: (event) => choose(event.target.value) } },
        h("option", { value: "", prop: { selected: !view() } }, "All runs"),
        ...options.map((/** @type {any} */ one) =>
          h("option", { value: one.id, prop: { selected: one === view() } }, one.name),
        ),
      ),
      ...["Save", ...(own ? ["Rename", "Delete"] : [])].map((/** @type {any} */ what) =>
        button(`${what} view`, () => keep(app, asks, views, what), {
          class: "plain",
          disabled: !app.canWrite,
          title: app.readOnly,
        }),
      ),
      h("span", { class: "grow" }),
      button("Operations", () => past(app), { class: "plain" }),
      button("Columns", () => chooseColumns(app), { class: "plain" }),
    ),
    h(
      "div",
      { class: "tools" },
      box.view(),
      menu(
        "time range",
        "Started …",
        [
          .../** @type {[string, string][]} */ (
            Object.entries(SINCE).map(([text, minutes]) => [String(minutes), `last ${text}`])
          ),
          .../** @type {[string, string][]} */ (
            (definition.data?.ranges ?? []).map((name) => [name, `${words(name)} …`])
          ),
        ],
        since,
      ),
      menu(
        "add a filter",
        "Add filter …",
        [
          ...fieldsOf(definition.data).map(
            (field) => /** @type {[string, string]} */ ([`${field.field}:`, field.label]),
          ),
          ["label.", "Label"],
          ["attribute.", "Search attribute"],
        ],
        box.begin,
      ),
    ),
    filters(asks, lists),
  ];
}

/** @param {Asking} asks @param {Lists} lists */
function filters(asks, { definition, counts }) {
  const { bucket, pairs, write, toggle, choose } = asks;
  const asked = pairs();
  const active = asked.filter(([name]) => name !== "state");
  const states = fieldsOf(definition.data).find((field) => field.field === "state")?.options ?? [];
  const { groups = [], complete = true } = counts.data ?? {};
  return [
    active.length || bucket() !== "all"
      ? h(
          "div",
          { class: "chips", key: "active", role: "group", "aria-label": "filters" },
          ...chips(active, definition.data, (pair) => toggle(...pair)),
          ...chips(bucket() === "all" ? [] : [["bucket", bucket()]], null, () => write(pairs(), { bucket: null })),
          button("Clear", () => choose(null), { class: "plain" }),
        )
      : null,
    h(
      "div",
      { class: "states", key: "states", role: "group", "aria-label": "states" },
      ...states.map((/** @type {any} */ { value, label }) => {
        const number = groups.find((/** @type {any} */ group) => group.value === value)?.count ?? 0;
        return h(
          "button",
          {
            type: "button",
            key: value,
            class: `chip${number ? "" : " none"}`,
            "aria-pressed": String(asked.some(([name, one]) => name === "state" && one === value)),
            on: { click: () => toggle("state", value) },
          },
          h(
            "span",
            { class: `state${number ? ` tone-${tone(value)}` : ""}` },
            h("span", { class: "glyph", "aria-hidden": "true" }, glyph(value)),
            label,
          ),
          h("span", { class: "number" }, count(number) + (complete || !number ? "" : "+")),
        );
      }),
    ),
  ];
}
