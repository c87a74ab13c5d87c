// The history of a run: typed events in words. One page of it is shown at a time, so that any length is light.

import { Resource, runPath } from "../../api.js";
import { h } from "../../dom.js";
import { button, copy, empty, facts, held, link, mono, pre, time, words } from "../../parts.js";
import { payload, saver } from "../../payload.js";
import { bytes, count, plural } from "../../words.js";
import { here, isOpen, opener, table, turn } from "./rows.js";

const SIZE = 100;
const KINDS = "activity,child,command,condition,failure,side_effect,signal,stream,timer,update,version,workflow".split(
  ",",
);
const BEAT = "ActivityHeartbeatRecorded";
const TONES = /** @type {Record<string, string>} */ ({
  retry: "tone-amber",
  bad: "tone-red",
  quiet: "second",
  title: "title",
});
const NOWHERE = { from: null, kind: null, step: null, text: null };

/**
 * Heartbeats that follow each other are one row, but the one that is looked at.
 * @param {any[]} events
 * @param {number} wanted
 */
function folded(events, wanted) {
  /** @type {any[][]} */
  const rows = [];
  for (const event of events) {
    const last = rows.at(-1);
    if (
      last &&
      event.event_type === BEAT &&
      last[0].event_type === BEAT &&
      event.sequence !== wanted &&
      last[0].sequence !== wanted
    )
      last.push(event);
    else rows.push([event]);
  }
  return rows;
}

/** @param {import("./page.js").Context} ctx @returns {import("./page.js").Tab} */
export function tab(ctx) {
  const { app } = ctx;
  const q = (/** @type {string} */ name) => app.route.query.get(name);
  const chosen = () => Number(q("event")) || 0;
  const filtered = () => q("kind") || q("step") || q("text");
  const rows = (/** @type {any[]} */ events) =>
    q("beats") ? events.map((event) => [event]) : folded(events, chosen());
  const shows = () => page.data?.events.some((/** @type {any} */ event) => event.sequence === chosen());
  /** @type {number | null} where the page begins */
  let start = null;
  let asked = "";
  let newest = 0;
  let raw = false;
  const page = new Resource(read, ctx.update);
  const one = new Resource(async () => {
    const [found, why] = await Promise.all([ctx.part(`events/${chosen()}`), ctx.part("why", { event: chosen() })]);
    return { ...found.event, why };
  }, ctx.update);

  /** A page of rows. With a filter, and among heartbeats, it takes several questions. */
  async function read() {
    const down = q("order") === "desc";
    let at = start;
    /** @type {any[]} */
    const events = [];
    for (let round = 1; ; round += 1) {
      const filter = { kind: q("kind"), step: q("step"), text: q("text"), order: q("order"), payloads: "none" };
      const found = await ctx.part("history", {
        ...filter,
        [down ? "to" : "from"]: at,
        page_size: SIZE - rows(events).length,
      });
      if (!down && at && at > found.last_sequence) {
        start = at = null; // beyond its end: all of it is before
        continue;
      }
      events.push(...found.events);
      at = down ? Math.min(at ?? Infinity, found.last_sequence) - found.looked_at : (at ?? 1) + found.looked_at;
      if (found.complete || round === 20 || rows(events).length >= SIZE)
        return { events, last: found.last_sequence, next: found.complete ? null : at };
    }
  }

  /** Make what is loaded fit the address. */
  function settle() {
    const key = ["order", "kind", "step", "text", "from", "beats"].map(q).join("\n");
    const event = chosen();
    const away = event && !filtered() && !shows();
    if (key !== asked || away) {
      const around = event && !filtered() ? (q("order") ? event + 20 : event - 20) : 0;
      start = Math.max((key !== asked && Number(q("from"))) || around, 0) || null;
      asked = key;
      newest = 0;
      page.reset();
    }
    if (event && one.data?.sequence !== event) one.reset();
  }
  settle();

  const set = (/** @type {string} */ name) => (/** @type {any} */ event) =>
    app.query({ from: null, event: null, [name]: event.target.value.trim() || null });
  const pick = (/** @type {string} */ name, /** @type {string[][]} */ options) =>
    h(
      "select",
      { "aria-label": name, on: { change: set(name) } },
      options.map(([value, label]) => h("option", { value, prop: { selected: (q(name) ?? "") === value } }, label)),
    );
  const field = (/** @type {string} */ name, /** @type {string} */ type, /** @type {string} */ label) =>
    h("input", {
      type,
      "aria-label": label,
      placeholder: label,
      maxlength: "200",
      min: "0",
      key: name + q(name),
      value: q(name),
      on: { change: set(name) },
    });

  const toolbar = () =>
    h(
      "form",
      { class: "chips toolbar", "aria-label": "which events", on: { submit: (event) => event.preventDefault() } },
      pick("kind", [["", "every kind"], ...KINDS.map((kind) => [kind, words(kind)])]),
      pick("order", [
        ["", "oldest first"],
        ["desc", "newest first"],
      ]),
      field("text", "search", "find in events"),
      field("step", "number", "step"),
      h(
        "label",
        { class: "check" },
        h("input", {
          type: "checkbox",
          prop: { checked: Boolean(q("beats")) },
          on: { change: (event) => app.query({ beats: event.target.checked ? "1" : null }) },
        }),
        "each heartbeat",
      ),
      h("span", { class: "grow" }),
      page.data && newest > page.data.last
        ? button(`${count(newest - page.data.last)} new`, () => void page.load())
        : null,
      h("input", {
        type: "number",
        min: "1",
        "aria-label": "go to event",
        placeholder: "event #",
        on: {
          change: ({ target }) => {
            if (target.value) app.query({ ...NOWHERE, event: target.value }, { replace: false });
            target.value = "";
          },
        },
      }),
    );

  /** @param {any[]} events @returns {import("./rows.js").Row} */
  const row = (events) => {
    const [event] = events;
    const name = String(event.sequence);
    const glyph = h("span", { class: "glyph", "aria-hidden": "true" }, event.mark);
    return [
      name,
      [
        name,
        time(event.recorded_at),
        h(
          "span",
          { class: TONES[event.tone] },
          events.length > 1
            ? button(
                [glyph, `${count(events.length)} heartbeats, to event ${events.at(-1).sequence}`],
                () => app.query({ beats: "1" }),
                { class: "opener" },
              )
            : opener(app, name, [glyph, h("bdi", null, event.words)], "event"),
        ),
        event.event_type,
      ],
      isOpen(app, name, "event") && detail(),
      isOpen(app, name, "event") ? "open" : null,
    ];
  };

  const detail = () =>
    held(one, (event) => {
      const { context, why } = event;
      const path = runPath(ctx.id, ctx.run, `events/${event.sequence}?download=`);
      return h(
        "div",
        { class: "stack" },
        h("p", null, h("bdi", null, why.sentence)),
        h(
          "p",
          { class: "origins" },
          "events: ",
          why.chain.map((/** @type {any} */ each) =>
            each.sequence === event.sequence
              ? h("b", null, "this event")
              : [
                  link(here(app, { ...NOWHERE, event: String(each.sequence) }), null, `${each.sequence} ${each.about}`),
                  " → ",
                ],
          ),
        ),
        facts({
          type: mono(event.event_type),
          step: event.step && link(here(app, { ...NOWHERE, step: String(event.step), event: null }), null, event.step),
          recorded: mono(event.recorded_at),
          "by task": mono(context.task_id),
          "on worker": mono(context.worker),
          "by command": mono(context.command_id),
          from: context.source,
          size: bytes(event.size_bytes),
        }),
        event.payload_fields.map((/** @type {string} */ name) =>
          payload(
            event.payloads.find((/** @type {any} */ each) => each.field === name),
            name,
            app,
            saver("download all of it", path + encodeURIComponent(name), `${ctx.id}-${event.sequence}-${name}.json`),
          ),
        ),
        h(
          "div",
          { class: "chips" },
          button(
            raw ? "hide the JSON" : "raw JSON",
            () => {
              raw = !raw;
              ctx.update();
            },
            { "aria-expanded": String(raw) },
          ),
          h(
            "span",
            { class: "caption" },
            "link to this event",
            copy(new URL(here(app, { from: null }), location.href).href, "the link"),
          ),
        ),
        raw ? pre("raw JSON", JSON.stringify({ ...event, why: undefined }, null, 2)) : null,
      );
    });

  return {
    view: () => [
      toolbar(),
      chosen() && page.data && !shows()
        ? h("section", { class: "apart", "aria-label": "event" }, h("h2", null, `Event ${chosen()}`), detail())
        : null,
      ...held(page, ({ events, last, next }) => [
        events.length
          ? table("#:number,when,what,type:wide mono second", rows(events).map(row), "history")
          : empty("No event matches."),
        h(
          "div",
          { class: "chips" },
          h("span", { class: "caption" }, plural(last, "event"), filtered() ? ", of which these match" : ""),
          turn(app, "from", start !== null, next),
        ),
      ]),
    ],
    moved(news) {
      newest = news.data?.sequence ?? newest;
      if (q("tab") !== "history") asked = "";
      // New rows on top would push everything down: they wait for a click.
      else if (news.kind === "reload" || (page.data?.next === null && !q("order"))) void page.load();
    },
    route: settle,
  };
}
