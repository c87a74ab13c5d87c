// Dialogs. One at a time, by the element that browsers have for it: it keeps the focus inside, and Escape closes it.

import { h, patch } from "./dom.js";
import { asProblem } from "./api.js";
import { button, field, pre, trouble } from "./parts.js";

/** @type {{element: HTMLDialogElement, render: () => void} | null} */
let open = null;

/**
 * Show a dialog. `view` is called for its content, with `close` and `update`; it is drawn again after `update`.
 * @param {string} title
 * @param {(dialog: {close: () => void, update: () => void}) => any} view
 * @param {() => void} [closed]
 * @param {string} [look]
 */
export function show(title, view, closed, look) {
  open?.element.close();
  const element = document.createElement("dialog");
  element.setAttribute("aria-label", title);
  if (look) element.className = look;
  document.body.append(element);
  const before = document.activeElement;
  const close = () => element.close();
  const render = () => patch(element, [h("h1", null, title), view({ close, update: render })].flat(4));
  element.addEventListener("close", () => {
    element.remove();
    if (open?.element === element) open = null;
    if (before instanceof HTMLElement && before.isConnected) before.focus();
    closed?.();
  });
  open = { element, render };
  render();
  element.showModal();
  return { close, update: render };
}

/** The last line of a dialog that only shows a message. @param {() => void} close @param {string} [label] */
export const closing = (close, label = "Close") =>
  h("div", { class: "buttons" }, button(label, close, { class: "primary" }));

export const isOpen = () => open !== null;

/**
 * Ask before something is done, and show what would be written: `preview` is the dry run, `act` does it, with the
 * intent of this dialog. `type`: a word that has to be typed before the button works, for what cannot be undone.
 * @param
 * {{title: string, sentence: any, label: string, danger?: boolean, type?: string, fields?: (update: () => void) => any,
 *   preview?: () => Promise<any>, act: (intent: import("./api.js").Intent) => Promise<any>, done?: (answer: any) =>
 * void}} ask
 */
export function confirm(ask) {
  /** @type {{problem: import("./api.js").Problem | null, busy: boolean, typed: string, preview: any}} */
  const state = { problem: null, busy: false, typed: "", preview: null };
  const intent = {};
  const dialog = show(ask.title, ({ close, update }) => [
    h("p", { class: "sentence" }, ask.sentence),
    ask.fields ? ask.fields(update) : null,
    state.preview ? wouldWrite(state.preview) : null,
    ask.type ? field(state, "typed", `Type ${ask.type} to confirm`, update) : null,
    state.problem ? trouble(state.problem) : null,
    h(
      "div",
      { class: "buttons" },
      ask.preview ? button("Show what would be written", () => void look(update), { disabled: state.busy }) : null,
      button("Back", close),
      button(ask.label, () => void act(close, update), {
        class: ask.danger ? "danger" : "primary",
        disabled: state.busy || (ask.type !== undefined && state.typed !== ask.type),
      }),
    ),
  ]);

  /** @param {() => void} update */
  async function look(update) {
    await during(update, async () => {
      state.preview = await ask.preview?.();
    });
  }

  /** @param {() => void} close @param {() => void} update */
  async function act(close, update) {
    await during(update, async () => {
      const answer = await ask.act(intent);
      close();
      ask.done?.(answer);
    });
  }

  /** @param {() => void} update @param {() => Promise<void>} work */
  async function during(update, work) {
    state.busy = true;
    state.problem = null;
    update();
    try {
      await work();
    } catch (error) {
      state.problem = asProblem(error);
    }
    state.busy = false;
    update();
  }
  return dialog;
}

/** The result of a dry run. @param {any} answer */
export function wouldWrite(answer) {
  if (!answer.accepted) return h("p", { class: "notice" }, `It would be refused: ${answer.message ?? answer.reason}`);
  const written = answer.would_write ?? {};
  const lines = [];
  for (const [kind, entries] of Object.entries(written))
    if (Array.isArray(entries))
      for (const entry of entries.slice(0, 20))
        lines.push(
          `${kind.replace(/s$/, "")} ${entry.type ?? entry.event_type ?? entry.command_type ?? entry.kind ?? entry.name ?? entry.change ?? ""} ${entry.workflow_id ?? ""}`.trim(),
        );
  return pre("what would be written", lines.length ? lines.join("\n") : "nothing");
}
