// Forms from declared contracts: a field for each parameter. The page checks by the rules of the server, and the server
// decides.

import { h } from "./dom.js";
import { mono } from "./parts.js";

/**
 * @typedef
 * {{name: string, required?: boolean, variadic?: boolean, default_available?: boolean, default?: any, type: string |
 * null, allows_null?: boolean}}
 * Parameter
 */

const PLAIN = /** @type {Record<string, RegExp>} */ ({
  string: /^/,
  int: /^-?\d+$/,
  float: /^-?(0|[1-9]\d*)(\.\d+)?(e[+-]?\d+)?$/i,
  bool: /^(true|false)$/,
});
const FITS = /** @type {Record<string, string>} */ ({
  int: "number",
  float: "number",
  string: "string",
  bool: "boolean",
  array: "object",
  iterable: "object",
  object: "object",
});

/** @param {string} type @param {any} value */
const fits = (type, value) =>
  type
    .split("|")
    .some((part) => !FITS[part] || (typeof value === FITS[part] && !(part === "object" && Array.isArray(value))));

/**
 * The JSON of one argument, or what is wrong with its text. The text of a number stays as it is typed, however large it
 * is.
 * @param {Parameter} parameter @param {string} text @returns {{json?: string, wrong?: string}}
 */
export function encode(parameter, text) {
  const type = parameter.type ?? "mixed";
  if (type === "string") return { json: JSON.stringify(text) };
  text = text.trim();
  if (PLAIN[type])
    return PLAIN[type].test(text)
      ? { json: type === "int" ? String(BigInt(text)) : text }
      : { wrong: `must be ${type}` };
  try {
    const value = JSON.parse(text);
    if (value === null)
      return parameter.allows_null || /mixed|null|^\?/.test(type) ? { json: text } : { wrong: "must not be null" };
    return fits(type, value)
      ? { json: text }
      : { wrong: `must be ${type}, not ${Array.isArray(value) ? "array" : typeof value}` };
  } catch (/** @type {any} */ error) {
    return { wrong: `is no JSON: ${error.message}` };
  }
}

/** The arguments of a message while a user writes them. */
export class Arguments {
  /** @param {{has_contract: boolean, parameters: Parameter[]}} target */
  constructor({ has_contract, parameters }) {
    // Without a contract, and for variadic parameters, the arguments are one JSON list.
    this.whole = !has_contract || parameters.some((each) => each.variadic);
    this.parameters = this.whole ? [{ name: "arguments", type: "array", required: true }] : parameters;
    /** @type {Record<string, string>} */ this.texts = this.whole ? { arguments: "[]" } : {};
    /** @type {Record<string, boolean>} */ this.nulls = {};
    /** @type {Record<string, string[]>} */ this.errors = {};
  }

  /** The JSON of all arguments; null if one of them is wrong, which its field then says. @returns {string | null} */
  read() {
    this.errors = {};
    /** @type {[string, string][]} */
    const given = [];
    for (const each of this.parameters) {
      const text = this.texts[each.name] ?? "";
      if (text === "" && !each.required && !this.nulls[each.name]) continue;
      const { json, wrong } = this.nulls[each.name]
        ? { json: "null" }
        : text === ""
          ? { wrong: "is missing" }
          : encode(each, text);
      if (json === undefined) this.errors[each.name] = [wrong ?? ""];
      else given.push([each.name, json]);
    }
    if (Object.keys(this.errors).length) return null;
    if (this.whole) return given[0]?.[1] ?? "[]";
    // By name, so that the server fills the gaps. An object of codec and blob alone would be taken for an encoded
    // payload.
    const named = given.some(([name]) => name !== "codec" && name !== "blob");
    return named
      ? `{${given.map(([name, json]) => `${JSON.stringify(name)}:${json}`).join()}}`
      : `[${given.map(([, json]) => json).join()}]`;
  }

  /** Show the errors of the server at their fields. @param {Record<string, string[]> | undefined} errors */
  blame(errors) {
    for (const [name, said] of Object.entries(errors ?? {})) {
      const named = /argument '(\w+)'/.exec(said.join(" "))?.[1];
      const place = this.parameters.find((each) => each.name === name || each.name === named || this.whole);
      if (place) this.errors[place.name] = said;
    }
  }

  /** @param {() => void} update */
  view(update) {
    return this.parameters.map((each, at) => {
      const { name, required, type } = each;
      const [id, wrong, text] = [`argument-${at}`, this.errors[name], this.texts[name] ?? ""];
      const props = {
        id,
        disabled: Boolean(this.nulls[name]),
        "aria-invalid": wrong ? "true" : null,
        "aria-describedby": wrong ? `${id}-wrong` : null,
        autocomplete: "off",
        spellcheck: "false",
        prop: { value: text },
        on: {
          input: (/** @type {any} */ event) => {
            this.texts[name] = event.target.value;
            delete this.errors[name];
            update();
          },
        },
      };
      const plain = PLAIN[type ?? ""];
      return h(
        "div",
        { class: "field", key: name },
        h(
          "label",
          { for: id },
          mono(name),
          " ",
          h(
            "span",
            { class: "caption" },
            `${plain ? type : `${type ?? ""} as JSON`}, ${required ? "required" : each.default_available ? `${JSON.stringify(each.default)} if left empty` : "optional"}`,
          ),
        ),
        type === "bool"
          ? h(
              "select",
              props,
              ["", "true", "false"].map((value) =>
                h("option", { value, prop: { selected: text === value } }, value || (required ? "choose" : "default")),
              ),
            )
          : h(plain ? "input" : "textarea", { ...props, inputmode: type === "int" ? "numeric" : null }),
        each.allows_null && plain
          ? h(
              "label",
              { class: "check" },
              h("input", {
                type: "checkbox",
                prop: { checked: Boolean(this.nulls[name]) },
                on: {
                  change: (event) => {
                    this.nulls[name] = event.target.checked;
                    update();
                  },
                },
              }),
              "null",
            )
          : null,
        wrong ? h("p", { class: "wrong", id: `${id}-wrong` }, wrong.join("; ")) : null,
      );
    });
  }
}
