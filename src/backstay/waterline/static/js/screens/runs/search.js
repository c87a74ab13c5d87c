// The search box for runs: by the beginning of an id, a type, a business key, or `field:value`, with suggestions.
/** @import { App } from "../../main.js" */

import { h } from "../../dom.js";
import { fieldsOf, parameter } from "./filters.js";

/** @typedef {{text: string, label: string, hint: string}} Offer */

const FIRST = ["type", "state", "attention", "queue", "key", "id", "label.", "attribute."];
const COMPLETED = ["instance_id", "workflow_type", "business_key", "queue", "compatibility"];
const quoted = (/** @type {string} */ text) => (/\s/.test(text) ? `"${text}"` : text);

/**
 * @param {App} app
 * @param {() => any} definition
 * @param {() => string} current what is looked for
 * @param {(text: string) => void} find
 */
export function searchBox(app, definition, current, find) {
  /** @type {string | null} what was typed and is not looked for yet */
  let typed = null;
  /** @type {Offer[]} */
  let offers = [];
  let at = -1;
  let turn = 0;

  /** @param {string} field @param {string} prefix @returns {Promise<string[]>} */
  const ask = (field, prefix) =>
    app.api.get("/api/suggest", { field, prefix, limit: 6 }).then(
      (/** @type {any} */ found) => found.suggestions,
      () => [],
    );

  /** What may follow. @param {string} text @returns {Promise<Offer[]>} */
  async function offersFor(text) {
    const [, before = "", last = ""] = /^(.*?)(\S*)$/s.exec(text) ?? [];
    const [, name = "", prefix = ""] = /^([\w.-]+):"?(.*)$/.exec(last) ?? [];
    const made = (/** @type {string[]} */ values, /** @type {string} */ begin, /** @type {string} */ hint) =>
      values.map((value) => ({
        text: before + begin + quoted(value),
        label: hint === "field" ? begin + value : value,
        hint,
      }));
    const field = parameter(name, definition());
    if (field) {
      const options = fieldsOf(definition()).find((one) => one.field === field)?.options ?? [];
      const inside = field.replace(/\[(.*)\]$/, ":$1");
      const values =
        options.length || !(inside !== field || COMPLETED.includes(field))
          ? options
              .map((/** @type {any} */ one) => one.value)
              .filter((/** @type {string} */ one) => one.startsWith(prefix))
          : await ask(inside, prefix);
      return made(values, `${name}:`, name);
    }
    const [, kind = "", key = ""] = /^(label|attribute)\.(.*)$/.exec(last) ?? [];
    if (kind)
      return made(
        (await ask(kind, key)).map((one) => `${one}:`),
        `${kind}.`,
        "field",
      );
    const fields = made(
      FIRST.filter((one) => one.startsWith(last)).map((one) => (one.endsWith(".") ? one : `${one}:`)),
      "",
      "field",
    );
    if (!last) return fields;
    const [types, ids] = await Promise.all([ask("workflow_type", last), ask("instance_id", last)]);
    return [...fields, ...made(types, "type:", "type"), ...made(ids, "", "id")];
  }

  /** @param {string} text */
  async function input(text) {
    const mine = ++turn;
    typed = text;
    app.update();
    await new Promise((after) => setTimeout(after, 80));
    const found = mine === turn ? await offersFor(text) : [];
    if (mine !== turn) return;
    [offers, at] = [found, -1];
    app.update();
  }

  function clear() {
    [typed, offers, at] = [null, [], -1];
    turn += 1;
    app.update();
  }

  /** @param {string} text */
  function submit(text) {
    clear();
    find(text.trim());
  }

  /** @param {Offer} offer */
  // After a field its value is still to be said.
  const take = (offer) => (offer.hint === "field" ? void input(offer.text) : submit(offer.text));

  /** @param {any} event */
  function key(event) {
    const offer = offers[at];
    if (!offers.length) return;
    if (event.key === "Escape") {
      event.stopPropagation();
      offers = [];
    } else if (event.key === "ArrowDown") at = (at + 1) % offers.length;
    else if (event.key === "ArrowUp") at = (at <= 0 ? offers.length : at) - 1;
    else if (event.key === "Enter" && offer) take(offer);
    else return;
    event.preventDefault();
    app.update();
  }

  const view = () =>
    h(
      "form",
      {
        class: "finder",
        role: "search",
        "aria-label": "runs",
        on: {
          submit: (event) => {
            event.preventDefault();
            submit(event.target.elements.box.value);
          },
        },
      },
      h("input", {
        type: "search",
        id: "box",
        role: "combobox",
        autocomplete: "off",
        spellcheck: "false",
        maxlength: 400,
        "aria-label": "find runs",
        "aria-expanded": String(offers.length > 0),
        "aria-autocomplete": "list",
        "aria-controls": "offers",
        "aria-activedescendant": at >= 0 ? `offer-${at}` : null,
        placeholder: "id, type or key; or type:order state:blocked label.team:shop",
        prop: { value: typed ?? current() },
        on: {
          input: (event) => (event.target.value || !current() ? void input(event.target.value) : submit("")),
          focus: (event) => {
            if (!event.target.value) void input("");
          },
          blur: () => {
            offers = [];
            turn += 1;
            app.update();
          },
          keydown: key,
        },
      }),
      h(
        "ul",
        { id: "offers", role: "listbox", "aria-label": "suggestions", hidden: !offers.length },
        ...offers.map((offer, index) =>
          h(
            "li",
            {
              id: `offer-${index}`,
              role: "option",
              "aria-selected": String(index === at),
              on: {
                pointerdown: (event) => {
                  event.preventDefault();
                  take(offer);
                },
              },
            },
            h("bdi", { class: "mono clip" }, offer.label),
            h("span", { class: "caption" }, offer.hint),
          ),
        ),
      ),
    );

  /** Begin a filter: the field is set, its value comes next. @param {string} text */
  function begin(text) {
    document.getElementById("box")?.focus();
    void input(text);
  }
  return { view, clear, begin };
}
