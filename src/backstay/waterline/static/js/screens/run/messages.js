// Messages: signals and updates with sender, origin and outcome. And forms that send more.

import { asProblem, Resource, runPath } from "../../api.js";
import { wouldWrite } from "../../dialog.js";
import { h } from "../../dom.js";
import { Arguments } from "../../forms.js";
import {
  announce,
  button,
  empty,
  facts,
  held,
  link,
  mono,
  panel,
  pre,
  sign,
  time,
  trouble,
  words,
} from "../../parts.js";
import { HIDDEN, payload, pretty } from "../../payload.js";
import { isOpen, opener, pages, table } from "./rows.js";

const VERBS = { signal: "Send a signal", update: "Send an update", query: "Ask a query" };
const SIGNS = /** @type {Record<string, [string, string?]>} */ ({
  rejected: ["✕", "tone-red"],
  failed: ["✕", "tone-red"],
  accepted: ["✓"],
  completed: ["✓"],
  applied: ["✓"],
});

/**
 * Why a message was refused, or what it failed with.
 * @param {any} message
 * @param {any} told its signal or update
 */
function whyNot(message, told) {
  const wrong = Object.entries(message.validation_errors).map(([field, said]) => `${field}: ${said}`);
  const reason = message.rejection_reason ?? told?.rejection_reason;
  return [reason && words(reason), ...wrong, told?.failure_message].filter(Boolean).join("; ");
}

/** @param {import("./page.js").Context} ctx @returns {import("./page.js").Tab} */
export function tab(ctx) {
  const { app } = ctx;
  const { list, moved, route, turn } = pages(ctx, "messages", 50);
  const detail = new Resource(
    () => ctx.part("detail"),
    () => {
      follow();
      ctx.update();
    },
  );
  /** The form that is open: which message, what is written, and what became of it. @type {any} */
  let form = null;
  let status = "";
  void detail.load();

  /** The address says which form is open. */
  function follow() {
    const [kind, name] = ["form", "name"].map((each) => app.route.query.get(each));
    const targets = /** @type {any[] | undefined} */ (detail.data?.[`declared_${kind}_targets`]);
    const target = targets?.find((each) => each.name === name) ?? targets?.[0];
    if (!target) form = null;
    else if (form?.kind !== kind || form.target.name !== target.name)
      form = { kind, target, targets, arguments: new Arguments(target), intent: {} };
  }

  /** @param {boolean} [dry] */
  async function send(dry) {
    const now = form;
    const { kind, target } = now;
    const input = now.arguments.read();
    if (input === null) return ctx.update();
    Object.assign(now, { busy: true, problem: null, said: null });
    ctx.update();
    const how = kind === "update" ? ',"wait_for":"completed","wait_timeout_seconds":3' : "";
    try {
      now.said = await app.api.post(
        runPath(ctx.id, ctx.run, `${kind}/${encodeURIComponent(target.name)}`),
        `{"input":${input}${how}}`,
        { dry_run: dry ? 1 : null },
        dry || kind === "query" ? undefined : now.intent,
      );
      if (dry) now.arguments.blame(now.said.answer?.validation_errors);
      else if (kind !== "query") {
        now.arguments = new Arguments(target);
        announce(`${target.name}: ${words(now.said.outcome)}`);
        for (const each of [ctx.summary, ctx.why]) void each.load();
      }
    } catch (error) {
      now.problem = asProblem(error);
      now.arguments.blame(now.problem.body.validation_errors);
    }
    now.busy = false;
    void list.load();
    ctx.update();
  }

  const saying = () =>
    held(detail, (data) => {
      const blocked = (/** @type {string} */ kind) =>
        (kind !== "query" && app.readOnly) ||
        (data[`can_${kind}`] ? null : `not possible: ${words(data[`${kind}_blocked_reason`])}`);
      return [
        h(
          "div",
          { class: "chips" },
          Object.entries(VERBS).map(([kind, label]) =>
            button(label, () => app.query({ form: form?.kind === kind ? null : kind, name: null }), {
              key: kind,
              disabled: Boolean(blocked(kind)),
              title: blocked(kind),
              "aria-pressed": String(form?.kind === kind),
            }),
          ),
        ),
        form ? writing(form, blocked(form.kind)) : null,
      ];
    });

  /** @param {any} now @param {string | null} blocked */
  const writing = (now, blocked) => {
    const { kind, target, targets, problem, said } = now;
    const disabled = Boolean(now.busy || blocked);
    return h(
      "form",
      {
        class: "writing",
        key: `${kind} ${target.name}`,
        "aria-label": `${kind} ${target.name}`,
        novalidate: true,
        ref: (element) => requestAnimationFrame(() => element.querySelector("[id^=argument]")?.focus()),
        on: {
          submit: (event) => {
            event.preventDefault();
            void send();
          },
        },
      },
      targets.length > 1
        ? h(
            "div",
            { class: "field" },
            h("label", { for: "target" }, `which ${kind}`),
            h(
              "select",
              { id: "target", on: { change: (event) => app.query({ name: event.target.value }) } },
              targets.map((/** @type {any} */ { name }) =>
                h("option", { value: name, prop: { selected: name === target.name } }, name),
              ),
            ),
          )
        : null,
      now.arguments.view(ctx.update),
      problem ? trouble(problem) : null,
      problem?.body.command_id
        ? h("p", { class: "caption" }, "It is recorded as ", mono(problem.body.command_id))
        : null,
      said?.dry_run
        ? wouldWrite(said)
        : said
          ? h(
              "div",
              { role: "status" },
              kind === "query" ? null : sign("✓", words(said.outcome)),
              kind === "query" || said.outcome === "update_completed"
                ? pre("answer", app.session.payloads ? pretty(JSON.stringify(said.result)) : HIDDEN)
                : null,
            )
          : null,
      blocked ? h("p", { class: "second" }, blocked) : null,
      h(
        "div",
        { class: "chips" },
        h("button", { class: "primary", disabled }, `${kind === "query" ? "Ask" : "Send"} `, mono(target.name)),
        kind === "query" ? null : button("Show what would be written", () => void send(true), { disabled }),
        button("Close", () => app.query({ form: null, name: null }), { class: "plain" }),
      ),
    );
  };

  /** @param {any} message @returns {import("./rows.js").Row} */
  const row = (message) => {
    const { who, update, command_id: id } = message;
    const told = update ?? message.signal;
    const state = message.status === "rejected" ? "rejected" : (told?.status ?? message.status);
    const name = id ?? `${message.type} ${message.command_sequence}`;
    const [glyph, tone] = SIGNS[state] ?? ["○"];
    const rest = link(`?tab=history&text=${encodeURIComponent(id ?? "")}`, null, "its events");
    return [
      name,
      [
        message.command_sequence,
        opener(app, name, [words(message.type), mono(message.name)]),
        [
          sign(glyph, words(state), tone),
          whyNot(message, told) ? h("bdi", { class: "because" }, whyNot(message, told)) : null,
        ],
        time(message.recorded_at),
        [message.source, who.caller, who.token_id ?? who.program, who.address ?? who.host].filter(Boolean).join(" · "),
      ],
      isOpen(app, name) && [
        facts({
          outcome: words(told?.outcome ?? message.outcome),
          [state === "failed" ? "failed with" : "refused because"]: whyNot(message, told),
          from: message.source,
          caller: who.caller,
          token: mono(who.token_id),
          session: mono(who.session_id),
          address: mono(who.address),
          host: mono(who.host),
          program: mono(who.program),
          route: mono(who.route),
          credential: who.auth_outcome && words(who.auth_outcome),
          command: mono(id),
          update: mono(update?.update_id),
          request: mono(message.request_id),
          events: rest,
        }),
        Object.keys(message.context).length ? pre("context", pretty(JSON.stringify(message.context))) : null,
        payload(message.payload, "payload", app, rest),
        update ? payload(update.result, "result", app, rest) : null,
      ],
    ];
  };

  return {
    view: () => [
      panel("Send a message", null, saying()),
      panel(
        "Messages received",
        null,
        held(list, ({ messages, next_after }) => [
          messages.length
            ? table("#:number,what,outcome,when,from:wide second", messages.map(row))
            : empty("No messages yet."),
          turn(next_after),
        ]),
      ),
    ],
    moved(news) {
      moved();
      // The possible messages change with the status of the run. The rest of the detail is long and not needed here.
      if (news.data?.status !== status) void detail.load();
      status = news.data?.status;
    },
    route: () => {
      follow();
      route();
    },
  };
}
