// What can be done with a run: the one thing that helps now, and everything else in a menu. The server says what is possible.

import { Resource, runPath } from "../../api.js";
import { confirm } from "../../dialog.js";
import { h } from "../../dom.js";
import { announce, button, capital, copy, field, link, runAddress, words, workerCommand } from "../../parts.js";

/** verb -> label, what it means, what was done, whether it harms */
const COMMANDS = /** @type {Record<string, [string, string, string, boolean?]>} */ ({
  "retry-now": ["Try now", "The next attempt of what backs off begins at once. It counts as one of its attempts.", "the next attempt is due"],
  pause: ["Pause", "No more of its code runs until somebody lets it go on. What happens meanwhile is recorded, and deadlines go on.", "paused"],
  unpause: ["Let it go on", "Its code runs again.", "goes on"],
  repair: ["Repair", "What its history expects and what is missing or blocked is made again. Nothing that is recorded changes.", "repaired"],
  cancel: ["Cancel the run", "It is asked to end. Code that handles cancellation may clean up first; other code ends at once. This cannot be undone.", "asked to end", true],
  terminate: ["Terminate the run", "It ends at once, and none of its code runs any more, not even to clean up. This cannot be undone.", "terminated", true],
  archive: ["Archive", "It is marked as dealt with. All of it is kept.", "archived"],
});

/** Reasons of the server, in words. */
const REASONS = /** @type {Record<string, string>} */ ({
  run_closed: "It has ended.", run_not_closed: "It has not ended yet.", already_archived: "It is archived already.", not_paused: "It is not paused.", already_paused: "It is paused already.",
  repair_not_needed: "Everything the history expects exists.", selected_run_not_current: "It is not the current run of its workflow.",
  no_declared_signals: "Its code takes no signals.", no_declared_updates: "Its code takes no updates.", no_declared_queries: "Its code answers no queries.",
});

/** @param {import("./page.js").Context} ctx @param {() => void} reload */
export function actions(ctx, reload) {
  const { app, id } = ctx;
  const detail = new Resource(() => app.api.get(runPath(id, ctx.run)), ctx.update);
  /** @type {HTMLDetailsElement | null} */
  let menu = null;

  /** @param {string} verb @param {string} [path] */
  function ask(verb, path = verb) {
    const [label, sentence, done, danger] = COMMANDS[verb] ?? [verb, "", verb];
    const said = { reason: "" };
    if (menu) menu.open = false;
    // A command goes to the run that is shown, not to one that has taken its place meanwhile.
    const where = runPath(id, ctx.run ?? ctx.summary.data?.run_id, path);
    const body = () => (said.reason ? said : {});
    confirm({
      title: `${label}: ${id}`, sentence, label, danger,
      fields: (update) => field(said, "reason", "Reason, for the record (optional)", update, { maxlength: 1000 }),
      preview: () => app.api.post(where, body(), { dry_run: 1 }),
      act: (intent) => app.api.post(where, body(), {}, intent),
      done: () => {
        announce(`${id}: ${done}`);
        reload();
      },
    });
  }

  /** A form of the messages tab. @param {string} form @param {string} [name] */
  const toForm = (form, name) => app.query({ tab: "messages", form, name: name ?? null }, { replace: false });

  /** @param {string} label @param {() => void} act @param {string | null | undefined} not why it is not possible @param {boolean} [danger] */
  const item = (label, act, not, danger) => {
    const why = not ? (REASONS[not] ?? words(not)) : app.readOnly;
    return h("li", { key: label }, button(label, act, { class: `plain ${danger ? "danger" : ""}`, why: why }),
      not ? h("span", { class: "caption" }, why) : null);
  };

  return {
    moved() {
      if (menu?.open) void detail.load();
    },

    /** The action that unblocks it. @param {any} action */
    primary(action) {
      if (!action) return null;
      if (!action.allowed) {
        const queue = ctx.summary.data?.queue;
        const command = queue && action.verb === "start_worker" ? workerCommand(app, queue) : null;
        return h("p", { class: "help" }, h("span", { class: "second" }, h("bdi", null, `${capital(action.reason)}.`)), command ? [h("code", null, command), copy(command, "the command")] : null);
      }
      if (action.verb === "open_child" || action.verb === "open_run")
        return link(action.verb === "open_run" ? runAddress(id, action.target) : runAddress(action.target), { class: "button primary" }, action.label);
      const path = action.verb.replaceAll("_", "-");
      const act = action.verb === "signal" ? () => toForm("signal", action.target)
        : path in COMMANDS ? () => ask(path, path === "retry-now" && action.target ? `activities/${encodeURIComponent(action.target)}/retry-now` : path) : null;
      if (!act) return h("p", { class: "help second" }, action.label);
      return button(h("bdi", null, action.label), act, { class: "primary", why: app.readOnly });
    },

    menu() {
      const can = detail.data?.actions;
      const problem = detail.problem;
      return h("details", {
        class: "menu",
        ref: (/** @type {HTMLDetailsElement} */ made) => { menu = made; },
        on: {
          toggle: () => { if (menu?.open) void detail.load(); },
          keydown: (/** @type {KeyboardEvent} */ event) => {
            if (event.key !== "Escape" || !menu?.open) return;
            menu.open = false;
            menu.querySelector("summary")?.focus();
          },
          focusout: (/** @type {FocusEvent} */ event) => { if (menu && event.relatedTarget instanceof Element && !menu.contains(event.relatedTarget)) menu.open = false; },
        },
      },
        h("summary", { class: "button" }, "Actions"),
        h("ul", null,
          can ? [
            ...["signal", "update", "query"].map((form) => item(`Send ${form === "update" ? "an" : "a"} ${form} …`, () => { if (menu) menu.open = false; toForm(form); }, can[`can_${form}`] ? null : can[`${form}_blocked_reason`])),
            ...Object.entries(COMMANDS).map(([verb, [label, , , danger]]) => {
              if (verb === (can.can_unpause ? "pause" : "unpause")) return null;
              if (verb === "retry-now") return ctx.summary.data?.state === "retrying" ? item(`${label} …`, () => ask(verb), null) : null;
              return item(`${label} …`, () => ask(verb), can[`can_${verb}`] ? null : can[`${verb}_blocked_reason`], danger);
            }),
          ] : h("li", { class: "caption" }, problem ? problem.message : "Loading …")));
    },
  };
}
