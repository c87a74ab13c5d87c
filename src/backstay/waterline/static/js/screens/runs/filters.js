// The filters of a list. A filter is a pair of the API's name and a value; the address, saved views and the search box
// have pairs.

import { h } from "../../dom.js";
import { button, words } from "../../parts.js";
import { exact } from "../../words.js";

/** @typedef {[string, string][]} Pairs */

/** Parameters of the address that are no filters. */
export const OTHERS = ["bucket", "view", "columns", "next_page_token", "bulk", "ns", "sort", "order"];
const SHORT = /** @type {Record<string, string>} */ ({
  type: "workflow_type",
  id: "instance_id",
  key: "business_key",
  build: "compatibility",
  run: "run_id",
});

/**
 * The fields of the server's definition, those that people ask for first in front.
 * @param {any} definition
 * @returns {any[]}
 */
export const fieldsOf = (definition) => (definition ? [...definition.further_fields, ...definition.fields] : []);

/** The API's name of a field as people write it, or undefined. @param {string} name @param {any} definition */
export function parameter(name, definition) {
  const [, kind, key] = /^(label|attribute)\.(.+)$/.exec(name) ?? [];
  if (kind) return `${kind}[${key}]`;
  const full = SHORT[name] ?? name;
  return definition?.ranges.includes(full) || fieldsOf(definition).some((field) => field.field === full)
    ? full
    : undefined;
}

/**
 * `type:order state:blocked abc` as pairs; what is no `field:value` is looked for.
 * @param {string} text
 * @param {any} definition
 * @returns {Pairs}
 */
export function parse(text, definition) {
  /** @type {Pairs} */
  const pairs = [];
  const rest = [];
  for (const [token, name, value = ""] of text.matchAll(/(?:([\w.-]+):)?("[^"]*"|\S+)/g)) {
    const known = name && parameter(name, definition);
    const plain = value.replace(/^"(.*)"$/, "$1");
    if (known && plain) pairs.push([known, plain]);
    else rest.push(name ? token : plain);
  }
  return rest.length ? [["q", rest.join(" ")], ...pairs] : pairs;
}

/** @param {URLSearchParams} query @param {any} definition @returns {Pairs} */
export const ofQuery = (query, definition) =>
  [...query]
    .filter(([name, value]) => !OTHERS.includes(name) && value)
    .flatMap(([name, value]) => (name === "q" ? parse(value, definition) : [[name, value]]));

/** @param {any} view @returns {Pairs} */
export const ofView = (view) =>
  [
    ["filters", "*"],
    ["labels", "label[*]"],
    ["attributes", "attribute[*]"],
  ].flatMap(([part = "", name = ""]) =>
    Object.entries(view?.[part] ?? {}).flatMap(([key, value]) =>
      part === "filters" && OTHERS.includes(key)
        ? []
        : [value].flat().map((one) => /** @type {[string, string]} */ ([name.replace("*", key), String(one)])),
    ),
  );

/**
 * Both together, as the server joins them: for a field of both, those of the address count.
 * @param {Pairs} own
 * @param {Pairs} under
 * @returns {Pairs}
 */
export const over = (own, under) => [...under.filter(([name]) => !own.some(([other]) => other === name)), ...own];

/** @param {Pairs} pairs @returns {Record<string, string[]>} */
export function grouped(pairs) {
  /** @type {Record<string, string[]>} */
  const found = {};
  for (const [name, value] of pairs) if (!(found[name] ??= []).includes(value)) found[name]?.push(value);
  return found;
}

/** What a saved view of these filters has. @param {Pairs} pairs */
export function asView(pairs) {
  const made = /** @type {Record<string, Record<string, any>>} */ ({ filters: {}, labels: {}, attributes: {} });
  for (const [name, values] of Object.entries(grouped(pairs))) {
    const [, kind, key = name] = /^(label|attribute)s?\[(.+)\]$/.exec(name) ?? [];
    /** @type {any} */ (made[kind ? `${kind}s` : "filters"])[key] = values.length === 1 ? values[0] : values;
  }
  return made;
}

/**
 * The active filters, each with a button that removes it.
 * @param {Pairs} pairs
 * @param {any} definition
 * @param {(pair: [string, string]) => void} remove
 */
export const chips = (pairs, definition, remove) =>
  pairs.map((pair) => {
    const [name, value] = pair;
    const label =
      fieldsOf(definition)
        .find((field) => field.field === name)
        ?.label.toLowerCase() ?? (name === "q" ? "finds" : words(name).replace(/\[(.*)\]$/, " $1"));
    const text = /_(after|before)$/.test(name) ? exact(value).replace(".000", "") : value;
    return h(
      "span",
      { class: "chip", key: `${name} ${value}` },
      h("span", { class: "second" }, label),
      h("bdi", { class: "mono clip", title: text }, text),
      button("✕", () => remove(pair), { "aria-label": `remove ${label} ${text}` }),
    );
  });
