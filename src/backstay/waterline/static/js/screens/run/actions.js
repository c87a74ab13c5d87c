// The actions on a run: the one that helps now as a button, all others in a menu. The server says which are possible.

import { Resource, runPath } from "../../api.js";
import { confirm } from "../../dialog.js";
import { h } from "../../dom.js";
import { announce, button, capital, copy, field, link, runAddress, words, workerCommand } from "../../parts.js";

/** Reasons of the server that are not of one command, in words. */
const REASONS = /** @type {Record<string, string>} */ ({
  run_closed: "It has ended.",
  run_not_closed: "It has not ended yet.",
  selected_run_not_current: "It is not the current run of its workflow.",
  no_declared_signals: "Its code takes no signals.",
  no_declared_updates: "Its code takes no updates.",
  no_declared_queries: "Its code answers no queries.",
});

/**
 * Ask before a run gets a command, and send it.
 * @param {import("./page.js").Context} ctx
 * @param {Api.OperatorCommandAnswer} command
 * @param {string | null | undefined} target the part of the run that it is about
 * @param {() => void} reload
 */
export function askCommand({ app, id, run, summary }, command, target, reload) {
  const { label, verb, danger } = command;
  const part = command.fields.find((each) => each.part)?.part;
  const state = { reason: "" };
  // A command goes to the run that is shown, not to one that has taken its place meanwhile.
  const where = runPath(
    id,
    run ?? summary.data?.run_id,
    target && part ? `${part}/${encodeURIComponent(target)}/${verb}` : verb,
  );
  const body = () => (state.reason ? state : {});
  confirm({
    title: `${label}: ${id}`,
    sentence: `${command.help} ${command.more}`,
    label,
    danger,
    fields: command.fields.some((each) => each.name === "reason")
      ? (update) => field(state, "reason", "Reason, recorded with the command (optional)", update, { maxlength: 1000 })
      : undefined,
    preview: () => app.api.post(where, body(), { dry_run: 1 }),
    act: (intent) => app.api.post(where, body(), {}, intent),
    done: (answer) => {
      announce(`${id}: ${command.outcomes[answer.outcome] ?? words(answer.outcome)}`);
      reload();
    },
  });
}

/**
 * Buttons of the commands that an entry of a list of the run accepts.
 * @param {import("./page.js").Context} ctx
 * @param {string} list
 * @param {any} entry
 * @param {string} target its id
 * @param {() => void} reload
 */
export const partButtons = (ctx, list, entry, target, reload) =>
  ctx.app.commands
    .filter(
      (/** @type {Api.OperatorCommandAnswer} */ command) =>
        command.parts.includes(list) && entry[`can_${command.action}`],
    )
    .map((/** @type {Api.OperatorCommandAnswer} */ command) =>
      button(command.label, () => askCommand(ctx, command, target, reload), {
        key: command.name,
        why: ctx.app.readOnly,
      }),
    );

/** @param {import("./page.js").Context} ctx @param {() => void} reload */
export function actions(ctx, reload) {
  const { app, id } = ctx;
  const detail = new Resource(() => app.api.get(runPath(id, ctx.run)), ctx.update);
  /** @type {HTMLDetailsElement | null} */
  let menu = null;

  /** @param {Api.OperatorCommandAnswer} command @param {string | null} [target] */
  function ask(command, target) {
    if (menu) menu.open = false;
    askCommand(ctx, command, target, reload);
  }

  /** A form of the messages tab. @param {string} form @param {string} [name] */
  const toForm = (form, name) => app.query({ tab: "messages", form, name: name ?? null }, { replace: false });

  /**
   * @param {string} label
   * @param {() => void} act
   * @param {string | null | undefined} not why it is not possible
   * @param {Api.OperatorCommandAnswer} [command]
   */
  const item = (label, act, not, command) => {
    const why = not ? (command?.blocked_words[not] ?? REASONS[not] ?? words(not)) : app.readOnly;
    return h(
      "li",
      { key: label },
      button(label, act, { class: `plain ${command?.danger ? "danger" : ""}`, why: why }),
      not ? h("span", { class: "caption" }, why) : null,
    );
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
        return h(
          "p",
          { class: "help" },
          h("b", null, action.label),
          h("span", { class: "second" }, h("bdi", null, `${capital(action.reason)}.`)),
          command ? [h("code", null, command), copy(command, "the command")] : null,
        );
      }
      if (action.verb === "open_children")
        return link(`${runAddress(id, ctx.run)}?tab=lineage`, { class: "button primary" }, action.label);
      if (action.verb === "open_child" || action.verb === "open_run")
        return link(
          action.verb === "open_run" ? runAddress(id, action.target) : runAddress(action.target),
          { class: "button primary" },
          action.label,
        );
      const command = app.commands.find((/** @type {Api.OperatorCommandAnswer} */ each) => each.name === action.verb);
      const act =
        action.verb === "signal"
          ? () => toForm("signal", action.target)
          : command
            ? () => ask(command, action.target)
            : null;
      if (!act) return h("p", { class: "help second" }, action.label);
      return button(h("bdi", null, action.label), act, { class: "primary", why: app.readOnly });
    },

    menu() {
      const can = detail.data?.actions;
      const problem = detail.problem;
      return h(
        "details",
        {
          class: "menu",
          ref: (/** @type {HTMLDetailsElement} */ made) => {
            menu = made;
          },
          on: {
            toggle: () => {
              if (menu?.open) void detail.load();
            },
            keydown: (/** @type {KeyboardEvent} */ event) => {
              if (event.key !== "Escape" || !menu?.open) return;
              menu.open = false;
              menu.querySelector("summary")?.focus();
            },
            focusout: (/** @type {FocusEvent} */ event) => {
              if (menu && event.relatedTarget instanceof Element && !menu.contains(event.relatedTarget))
                menu.open = false;
            },
          },
        },
        h("summary", { class: "button" }, "Actions"),
        h(
          "ul",
          null,
          can
            ? [
                ...["signal", "update", "query"].map((form) =>
                  item(
                    `Send ${form === "update" ? "an" : "a"} ${form} …`,
                    () => {
                      if (menu) menu.open = false;
                      toForm(form);
                    },
                    can[`can_${form}`] ? null : can[`${form}_blocked_reason`],
                  ),
                ),
                ...app.commands.map((/** @type {Api.OperatorCommandAnswer} */ command) => {
                  const not = can[`can_${command.action}`] ? null : can[`${command.action}_blocked_reason`];
                  return command.hidden.includes(not)
                    ? null
                    : item(`${command.label} …`, () => ask(command), not, command);
                }),
              ]
            : h("li", { class: "caption" }, problem ? problem.message : "Loading …"),
        ),
      );
    },
  };
}
