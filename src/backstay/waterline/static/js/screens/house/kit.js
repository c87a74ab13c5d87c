// Shared parts of the screens: tables, figures, buttons that check the role, fields of forms.
/** @import { App } from "../../main.js" */

import { asProblem, Resource } from "../../api.js";
import { closing, confirm, show } from "../../dialog.js";
import { h } from "../../dom.js";
import { button, empty, link, time, trouble } from "../../parts.js";
import { count } from "../../words.js";

/**
 * "heading=field classes", or heading, what to show, classes. A field of a part is `part.field`.
 * @template Row
 * @typedef
 * {`${string}=${keyof Row & string}${"" | ` ${string}` | `.${string}`}` | [string, (row: Row) => any, string?] | null |
 * false}
 * Column
 */

/** @template {string} Path @param {App} app @param {Path} path @param {() => any} [params] */
export const get = (app, path, params) => new Resource(() => app.api.get(path, params?.()), app.update);

/** The value of a field, as its classes want it. @param {any} row @param {string} name @param {string} kind */
function value(row, name, kind) {
  const found = name.split(".").reduce((part, one) => part?.[one], row);
  return kind.includes("time")
    ? time(found)
    : typeof found === "number" && !kind.includes("mono")
      ? count(Math.round(found * 10) / 10)
      : (found ?? "–");
}

/** @param {string} text @returns {[string, string, string]} heading, field, classes */
function parts(text) {
  const [head = "", rest = ""] = text.split("=");
  const [name = "", ...kind] = rest.split(" ");
  return [head, name, kind.join(" ")];
}

/**
 * A table, which scrolls by itself where it is too narrow; columns of class `wide` are left out on small screens.
 * Without rows: the sentence `none`, and the command that helps. `key` is the field that tells rows apart.
 * @template Row
 * @param {string} label
 * @param {Column<NoInfer<Row>>[]} columns
 * @param {Row[]} rows
 * @param {keyof NoInfer<Row> & string} key
 * @param {string} [none]
 * @param {string} [command]
 */
export function table(label, columns, rows, key, none, command) {
  if (!rows.length) return none ? empty(none, command) : null;
  const shown = columns
    .filter((one) => typeof one === "string" || Array.isArray(one))
    .map((one) => {
      if (typeof one !== "string") return one;
      const [head, name, kind] = parts(one);
      return /** @type {[string, (row: any) => any, string?]} */ ([head, (row) => value(row, name, kind), kind]);
    });
  return h(
    "div",
    { class: "scroll house", tabindex: "0", role: "region", "aria-label": label, key: label },
    h(
      "table",
      null,
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          ...shown.map(([head, , kind]) =>
            h("th", { scope: "col", class: kind }, head || h("span", { class: "unseen" }, "actions")),
          ),
        ),
      ),
      h(
        "tbody",
        null,
        ...rows.map((row) =>
          h("tr", { key: row[key] }, ...shown.map(([, show, kind]) => h("td", { class: kind }, show(row)))),
        ),
      ),
    ),
  );
}

/**
 * Figures in a row: "label=field tone", or label and value. The tone is for what is not zero.
 * @param {any} data
 * @param {(string | [string, any])[]} list
 */
export const figures = (data, list) =>
  h(
    "dl",
    { class: "figures" },
    ...list.map((one) => {
      const [label, shown, tone] = typeof one === "string" ? parts(one) : [...one, ""];
      const found = typeof one === "string" ? value(data, shown, "") : shown;
      return h(
        "div",
        null,
        h("dt", { class: "caption" }, label),
        h("dd", { class: `mono ${tone && found !== "0" ? `tone-${tone}` : ""}` }, found),
      );
    }),
  );

/** A link to something with a name that a user made up. @param {string} to @param {string} name */
export const named = (to, name) => link(to, { class: "mono long" }, name);

/** The reason why the session may not do something that needs the role admin. @param {App} app @param {string} what */
export const adminOnly = (app, what) =>
  app.isAdmin ? undefined : `Only an administrator may ${what}. You are signed in as ${app.session.role}.`;

/**
 * A button that changes something. `why`: why it cannot be pressed.
 * @param {App} app
 * @param {string} label
 * @param {() => void} act
 * @param {string} [why]
 * @param {string} [kind]
 */
export function press(app, label, act, why, kind) {
  const reason = why ?? app.readOnly;
  return button(label, act, { class: kind, why: reason });
}

/** An entry of a registry that would change, in words. @param {any} one */
const entry = (one) => {
  const fields = Object.entries(one.fields ?? {}).filter(([name]) => !name.endsWith("_at"));
  const changes = fields.map(([name, { from, to }]) => `${name} ${from ?? "–"} → ${to ?? "–"}`);
  return `${one.kind} ${one.name} ${one.change}: ${changes.join(", ")}`;
};

/**
 * Ask, show the dry run, and send one request. `seen`: the lines of a dry run, for routes that say it in words of their
 * own.
 * @param {App} app @param {string} method @param {string} path @param {() => any} body
 * @param
 * {{title: string, sentence: string, label: string, danger?: boolean, fields?: (update: () => void) => any, done:
 * (answer: any) => void, seen?: (answer: any) => string[]}}
 * ask
 */
export const asked = (app, method, path, body, ask) => () => {
  /** @param {any} params @param {import("../../api.js").Intent} [intent] */
  const send = (params, intent) =>
    method === "delete"
      ? app.api.delete(path, params, intent)
      : /** @type {any} */ (app.api)[method](path, body(), params, intent);
  return confirm({
    ...ask,
    preview: async () => {
      const answer = await send({ dry_run: 1 });
      if (answer.accepted === false) return answer;
      const lines = ask.seen?.(answer) ?? answer.would_write.registry.map(entry);
      return ask.seen || lines.length
        ? { accepted: true, would_write: { "": lines.map((/** @type {string} */ name) => ({ name })) } }
        : answer;
    },
    act: (intent) => send({}, intent),
    done: (answer) => {
      app.announce(`${ask.label}: done`);
      ask.done(answer);
    },
  });
};

/** Say something that has to be closed. @param {string} title @param {any} content @param {string} [label] */
export const tell = (title, content, label) => show(title, ({ close }) => [content, closing(close, label)]);

/** Do it at once; a refusal is shown. @param {App} app @param {string} said @param {() => Promise<any>} act */
export async function attempt(app, said, act) {
  try {
    await act();
    app.announce(said);
  } catch (error) {
    tell("It was refused", trouble(asProblem(error)));
  }
}

/**
 * The way to the first and the next page of a list; the page is part of the address.
 * @param {App} app
 * @param {string | null} next
 */
export function pages(app, next) {
  const at = app.route.query.get("page");
  /** @param {string} label @param {string | null} page @param {boolean} off */
  const to = (label, page, off) => button(label, () => app.query({ page }, { replace: false }), { disabled: off });
  return at || next ? h("div", { class: "actions" }, to("First page", null, !at), to("Next page", next, !next)) : null;
}

/** Keys that go through the links of the tables. @returns {import("../../keys.js").Keys} */
export function tableKeys() {
  /** @param {number} step */
  const move = (step) => () => {
    const all = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("main tbody a")]);
    const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    all[Math.min(Math.max(at + step, 0), all.length - 1)]?.focus();
  };
  return {
    j: ["next link of a table", move(1)],
    k: ["the one before", move(-1)],
    o: ["open it", () => document.activeElement?.closest("a")?.click()],
  };
}
