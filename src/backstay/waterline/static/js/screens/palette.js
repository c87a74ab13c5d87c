// The command palette (Ctrl-K): type a few letters of a run, a type, a queue, a schedule or an action, and press Enter.
/** @import { App } from "../main.js" */
/** @import { Entry } from "./palette/entries.js" */

import { show } from "../dialog.js";
import { h } from "../dom.js";
import { runAddress, words } from "../parts.js";
import { count } from "../words.js";
import { actionEntries, commandEntries } from "./palette/actions.js";
import { entry, matching } from "./palette/entries.js";

const TYPED = 80; // milliseconds without a key until the server is asked

/** @param {App} app @param {(text: string) => void} find goes to a run, or to the list that looks for it */
export function palette(app, find) {
  let [text, at, turn] = ["", 0, 0];
  let known = /** @type {Entry[]} */ ([]);
  let asked = /** @type {Entry[]} */ ([]); // what the server finds for the text
  let found = /** @type {Entry[]} */ ([]);

  /** What is offered for the text now. */
  function choose() {
    found = matching([...known, ...asked], text);
    if (text.trim()) found.push(entry(`Search runs for “${text.trim()}”`, "list", 9, () => find(text.trim())));
    at = Math.min(at, Math.max(found.length - 1, 0));
    update();
  }

  /** @param {string} now */
  async function type(now) {
    [text, at] = [now, 0];
    const mine = (turn += 1);
    choose();
    await new Promise((after) => setTimeout(after, TYPED));
    if (mine !== turn || !text.trim()) return;
    const entries = await fromServer(text.trim()).catch(() => []);
    if (mine !== turn) return;
    asked = entries;
    choose();
  }

  /** @param {string} prefix @returns {Promise<Entry[]>} */
  async function fromServer(prefix) {
    const suggested = async (/** @type {string} */ field) =>
      (await app.api.get("/api/suggest", { field, prefix: prefix.slice(0, 100), limit: 6 })).suggestions;
    const [ids, types, queues, commands] = await Promise.all([
      suggested("instance_id"),
      suggested("workflow_type"),
      suggested("queue"),
      commandEntries(app, prefix),
    ]);
    const { flows } = ids.length
      ? await app.api.get("/api/flows/all", {
          instance_id: ids,
          is_current_run: true,
          fields: "workflow_id,workflow_type,state",
          definition: 0,
        })
      : { flows: [] };
    return [
      ...commands,
      ...flows.map((row) =>
        entry(row.workflow_id, `run, ${words(row.state)}, ${row.workflow_type}`, 3, () =>
          app.go(runAddress(row.workflow_id)),
        ),
      ),
      ...types.map((name) =>
        entry(name, "type", 4, () => app.go(`/waterline/runs?workflow_type=${encodeURIComponent(name)}`)),
      ),
      ...queues
        .filter((name) => !known.some((one) => one.label === name && one.hint.startsWith("queue")))
        .map((name) => entry(name, "queue", 5, () => app.go(`/waterline/queues/${encodeURIComponent(name)}`))),
    ];
  }

  /** @param {Entry | undefined} one */
  function take(one) {
    if (!one) return;
    close();
    one.take();
  }

  /** @param {any} event */
  function key(event) {
    if (event.key === "ArrowDown") at = (at + 1) % (found.length || 1);
    else if (event.key === "ArrowUp") at = (at || found.length) - 1;
    else if (event.key !== "Enter") return;
    event.preventDefault(); // else Enter would press the first button of the dialog that it opens
    if (event.key === "Enter") return take(found[at]);
    update();
    document.getElementById(`choice-${at}`)?.scrollIntoView({ block: "nearest" });
  }

  const view = () => [
    h("input", {
      type: "text",
      id: "palette",
      role: "combobox",
      autocomplete: "off",
      spellcheck: "false",
      maxlength: 200,
      placeholder: "a run, type, queue or schedule, or what to do",
      "aria-label": "find or do",
      "aria-expanded": String(found.length > 0),
      "aria-autocomplete": "list",
      "aria-controls": "choices",
      "aria-activedescendant": found.length ? `choice-${at}` : null,
      prop: { value: text },
      on: { input: (event) => void type(event.target.value), keydown: key },
      ref: (element) => setTimeout(() => element.focus()),
    }),
    h(
      "ul",
      { id: "choices", role: "listbox", "aria-label": "what to find or do" },
      ...found.map((one, index) =>
        h(
          "li",
          {
            id: `choice-${index}`,
            role: "option",
            "aria-selected": String(index === at),
            on: {
              pointermove: () => {
                if (at === index) return;
                at = index;
                update();
              },
              click: () => take(one),
            },
          },
          h("bdi", { class: "clip", title: one.label }, one.label),
          h("span", { class: "caption" }, one.hint),
        ),
      ),
    ),
    h(
      "p",
      { class: "caption" },
      `${count(found.length)} shown · `,
      h("kbd", null, "↑↓"),
      " choose · ",
      h("kbd", null, "Enter"),
      " go · ",
      h("kbd", null, "Esc"),
      " close",
    ),
  ];

  const { close, update } = show(
    "Find or do",
    view,
    () => {
      turn = -1;
    },
    "palette",
  );
  choose();
  void actionEntries(app).then((entries) => {
    if (turn < 0) return;
    known = entries;
    choose();
  });
}
