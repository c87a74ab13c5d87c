// The timeline of a run: a row for its code, one for messages, one for each step. Facts are solid, expectations hollow, and the line
// "now" is the waterline between them.

import { Resource } from "../../api.js";
import { axis, folded, FOLD } from "../../axis.js";
import { h } from "../../dom.js";
import { held, tone, words } from "../../parts.js";
import { RowWindow } from "../../window.js";
import { count, now, plural, span } from "../../words.js";
import { attention } from "./head.js";
import { merged, Outline, pieces } from "./outline.js";
import { codeSide, marksSide, meter, stepSide } from "./step.js";
import { travel } from "./travel.js";

const ROW = 24;
const LANES = 2; // before the steps: the code, and messages

/** @param {import("./page.js").Context} ctx @returns {import("./page.js").Tab} */
export function tab(ctx) {
  const { app } = ctx;
  const outline = new Outline();
  const loaded = new Resource(() => outline.extend((after) => ctx.part("outline", { after: after || null })), ctx.update);
  const past = travel(ctx, () => outline.through);
  // What activities that run say of themselves: from the first of them on, and the selected one.
  const running = new Resource(async () => (firstRunning() ? ctx.part("activities", { after: firstRunning() - 1, page_size: 100, payloads: "none" }) : null), ctx.update);
  const chosen = new Resource(async () => {
    const step = stepOf(selected());
    return step?.kind === "activity" ? (await ctx.part("activities", { after: step.step - 1, page_size: 1, payloads: "none" })).activities[0] : null;
  }, ctx.update);
  /** @type {RowWindow | null} */
  let rows = null;
  let revealed = -1;
  let chosenFor = "";
  /** @type {any} */
  let view = { key: "", folds: [], axis: null, code: [], marks: [], now: 0 };
  let picked = 0;
  let soon = 0;
  void refresh();

  async function refresh() {
    await loaded.load();
    if (firstRunning()) await running.load();
  }

  const stepOf = (/** @type {number} */ row) => outline.steps[row - LANES];
  const firstRunning = () => outline.steps.find((step) => step.kind === "activity" && step.state === "running")?.step ?? 0;
  const names = () => ((rows?.width ?? 0) < 600 ? 120 : 208);
  const margin = () => ((rows?.width ?? 0) < 600 ? 64 : 96);

  /** The row that the address names, else that which the sentence is about. */
  function selected() {
    const asked = app.route.query.get("step");
    if (asked === "code") return 0;
    if (asked === "messages") return 1;
    const named = asked ? outline.steps.findIndex((step) => String(step.first) === asked) : -1;
    if (named >= 0) return named + LANES;
    const summary = ctx.summary.data;
    if (!summary || summary.next_task_kind === "workflow") return 0;
    const about = outline.steps.findLastIndex((step) => (summary.step === null ? step.state === "failed" || step.state === "timed_out" : step.step === summary.step));
    if (about >= 0) return about + LANES;
    return 0;
  }

  /** @param {number} row */
  function select(row) {
    const to = Math.min(Math.max(row, 0), outline.steps.length + LANES - 1);
    rows?.reveal(to);
    app.query({ step: to === 0 ? "code" : to === 1 ? "messages" : String(stepOf(to)?.first) });
  }

  /** Lay out what has changed since the last time: facts with the outline, the rest with the clock. */
  function layOut() {
    const width = Math.max((rows?.width ?? 0) - names() - margin(), 120);
    const key = `${outline.run} ${outline.version} ${width}`;
    const fresh = view.key !== key;
    if (fresh) view = { key, folds: folded(outline.busy(), outline.last, Math.floor((width * (outline.closed ? 1 : 0.75)) / 2 / FOLD)), open: outline.steps.filter((step) => step.ended === null && step.until !== null) };
    const present = now() - outline.origin;
    const until = ctx.summary.data?.until;
    const wakes = view.open.map((/** @type {import("./outline.js").Step} */ step) => step.started + (step.until ?? 0)).filter((/** @type {number} */ at) => at > present);
    const wake = until ? Date.parse(until) - outline.origin : wakes.length ? Math.min(...wakes) : null;
    view.now = outline.closed ? outline.last : Math.max(present, outline.last);
    view.axis = axis({ folds: view.folds, last: outline.last, now: outline.closed ? null : view.now, wake, width, origin: outline.origin });
    if (!fresh) return;
    const { place } = view.axis; // of facts, which stay where they are
    view.code = merged(outline.tasks.map((one) => ({ x0: place(one.leased), x1: Math.max(place(one.recorded), place(one.leased) + 2) })), 2);
    view.marks = merged(outline.marks.map((one) => ({ x0: place(one.at) - 4, x1: place(one.at) + 4, n: 1, title: `${one.type} ${one.name ?? ""}`.trim() })), 2, (into, from) => {
      into.n += from.n;
      if (into.title.length < 200) into.title += `, ${from.title}`;
    });
  }

  /** @param {number} row @param {HTMLElement} element */
  function render(row, element) {
    const step = stepOf(row);
    element.className = row === picked ? "row picked" : "row";
    element.dataset.row = String(row);
    const attributes = { id: `row-${row}`, role: "option", "aria-selected": row === picked, "aria-posinset": row + 1, "aria-setsize": outline.steps.length + LANES, "aria-label": row === 0 ? codeWords() : row === 1 ? `${plural(outline.marks.length, "message and mark", "messages and marks")}` : step ? stepWords(step) : "" };
    for (const [name, value] of Object.entries(attributes)) if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
    if (row === 0) return cells("", "code", [...view.code.map((/** @type {any} */ one) => bar(one.x0, one.x1, "bar code")), ...nextTask()], null);
    if (row === 1) return cells("", "messages", view.marks.map((/** @type {any} */ one) => h("i", { class: "mark", title: one.title, style: { translate: `${one.x0}px` } }, one.n > 1 ? h("b", null, one.n > 99 ? "+" : String(one.n)) : null)), null);
    return step ? cells(String(step.step), title(step), ...drawn(step)) : [];
  }

  /** @param {string} number @param {string} name @param {any} marks @param {any} label */
  const cells = (number, name, marks, label) => [h("span", { class: "step number" }, number), h("bdi", { class: "name mono clip", title: name }, name), h("span", { class: "track" }, marks, label)];

  /** A workflow task that is not done: somebody may be worried just then. */
  function nextTask() {
    const summary = ctx.summary.data;
    if (summary?.next_task_kind !== "workflow" || outline.closed) return [];
    const from = view.axis.place(Math.max(Date.parse(summary.next_task_at ?? summary.since) - outline.origin, 0));
    const colour = tone(attention(ctx) ?? summary.state);
    return [bar(from, view.axis.now, summary.next_task_state === "leased" ? "bar run" : `thin ${colour === "run" ? "wait" : colour}`), label(view.axis.now, codeState(), colour, from)];
  }

  const codeState = () => {
    const summary = ctx.summary.data;
    return summary ? `${words(attention(ctx) ?? summary.state)} ${span(now() - Date.parse(summary.next_task_at ?? summary.since))}` : "";
  };

  /** @param {import("./outline.js").Step} step @returns {[any, any]} */
  function drawn(step) {
    const { place } = view.axis;
    const found = pieces(step, view.now);
    const shapes = found.map((one) => {
      const x0 = place(one.from);
      if (one.kind === "point") return h("i", { class: "mark small", style: { translate: `${x0 - 3}px` } });
      return bar(x0, Math.max(one.to === Infinity ? view.axis.width : place(one.to), x0 + 2), `${one.kind === "wait" ? "thin" : one.kind} ${one.tone}`);
    });
    const last = found.at(-1);
    const end = !last || last.to === Infinity ? view.axis.width : Math.max(place(last.to), place(last.from) + 2);
    const progress = step.state === "running" ? progressOf(step) : null;
    if (progress?.total) return [shapes, h("span", { class: "label", style: { translate: `${end + 6}px` } }, meter(progress))];
    const [text, colour] = state(step);
    return [shapes, label(end, text, colour, place(step.started))];
  }

  /** Beside a bar, where there is room: after it, before it, or nowhere. @param {number} end @param {string} text @param {string} colour @param {number} start */
  function label(end, text, colour, start) {
    const wide = text.length * 6.2 + 4;
    const left = end + 6 + wide <= view.axis.width + margin() ? end + 6 : start - wide - 6;
    return left < 0 ? null : h("span", { class: `label tone-${colour}`, style: { translate: `${left}px` } }, text);
  }

  /** What a step came to, and its tone. @param {import("./outline.js").Step} step @returns {[string, string]} */
  function state(step) {
    const tries = step.attempts > 1 ? ` ×${step.attempts}` : "";
    if (step.state === "recorded") return ["", "wait"];
    if (step.ended !== null) return step.state === "failed" || step.state === "timed_out" ? [`✕ ${words(step.state)} ${span(step.ended)}${tries}`, "red"]
      : [`${step.state === "cancelled" ? "⊘ " : ""}${span(step.ended)}${tries}`, "wait"];
    const ahead = step.until === null ? null : step.until - (view.now - step.started);
    if (ahead !== null && ahead > 0) return [`${step.state === "backoff" ? "↻ " : ""}in ${span(ahead)}${tries}`, step.state === "backoff" ? "amber" : "wait"];
    return [`${step.state === "running" && step.kind === "activity" ? "▸ " : ""}${span(view.now - step.started - (step.began ?? 0))}${tries}`, step.state === "running" && step.kind === "activity" ? "run" : "wait"];
  }

  /** @param {import("./outline.js").Step} step */
  const progressOf = (step) => running.data?.activities.find((/** @type {any} */ one) => one.sequence === step.step)?.last_heartbeat_progress;
  const codeWords = () => `workflow code, ran ${plural(outline.tasks.length, "time")}${ctx.summary.data?.next_task_kind === "workflow" && !outline.closed ? `, ${codeState()}` : ""}`;
  const stepWords = (/** @type {import("./outline.js").Step} */ step) => `step ${step.step}, ${title(step)}, ${words(step.state)}, ${step.attempts > 1 ? `${step.attempts} attempts, ` : ""}began after ${span(step.started)}, ${step.ended === null ? "open" : `took ${span(step.ended)}`}`;

  /** @param {KeyboardEvent} event */
  function key(event) {
    const page = Math.max(Math.floor((rows?.scroller.clientHeight ?? 0) / ROW) - 1, 1);
    const at = selected();
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: Infinity }[event.key];
    const step = stepOf(at);
    if (event.key === "Enter" && step) ctx.openEvent(step.first);
    if (to === undefined) return;
    event.preventDefault();
    select(to);
  }

  function aside() {
    if (past.at()) return past.panel();
    const row = selected();
    const step = stepOf(row);
    return row === 0 ? codeSide(ctx, outline) : row === 1 ? marksSide(ctx, outline) : step ? stepSide(ctx, outline, step, chosen.data?.sequence === step.step ? chosen.data : null, chosen.problem) : null;
  }

  /** Draw the rows, which are no part of the view: they are drawn while it is scrolled, too. @param {number} total */
  function draw(total) {
    if (!rows?.width) return;
    rows.paint(total);
    if (revealed !== picked) {
      rows.reveal((revealed = picked));
      rows.paint(); // at once, or a frame shows none of them
    }
    if (document.getElementById(`row-${picked}`)) rows.scroller.setAttribute("aria-activedescendant", `row-${picked}`);
    else rows.scroller.removeAttribute("aria-activedescendant");
  }

  function chart() {
    layOut();
    const shown = view.axis;
    picked = selected();
    const moment = past.moment();
    const total = outline.steps.length + LANES;
    const want = `${outline.run} ${stepOf(picked)?.first} ${stepOf(picked)?.last}`;
    if (want !== chosenFor) {
      chosenFor = want;
      queueMicrotask(() => void chosen.load());
    }
    queueMicrotask(() => draw(total));
    const veil = moment === null ? null : names() + shown.place(moment - outline.origin);
    return h("div", { class: "chart", style: { "--names": `${names()}px` } },
      h("div", { class: "axis", "aria-hidden": "true" }, ...shown.labels.map((/** @type {any} */ one, /** @type {number} */ at) => h("span", { key: at, class: one.kind, title: one.title, style: { translate: `${one.left}px` } }, one.text))),
      h("div", { class: "plot" },
        h("div", { class: "ground", "aria-hidden": "true" },
          ...shown.stretches.filter((/** @type {any} */ one) => one.kind === "fold").map((/** @type {any} */ one) => bar(one.x0, one.x1, "fold")),
          ...shown.labels.filter((/** @type {any} */ one) => one.kind === "tick").map((/** @type {any} */ one) => bar(one.x, one.x, "grid")),
          shown.now === null ? null : [bar(shown.facts, shown.now, "fold"), bar(shown.now, shown.width, "future"), bar(shown.now, shown.now, "now")]),
        h("div", { class: "rows", opaque: true, role: "listbox", tabindex: "0", "aria-label": `timeline, ${count(total)} rows`, style: { height: `${Math.max(total * ROW + 8, 200)}px` },
          ref: (/** @type {HTMLElement} */ made) => {
            rows?.close();
            revealed = -1;
            rows = new RowWindow(made, ROW, render, ctx.update);
          },
          on: { keydown: key, click: (/** @type {any} */ event) => { const row = event.target.closest(".row")?.dataset.row; if (row !== undefined) select(Number(row)); } } }),
        veil === null ? null : h("div", { class: "veil", style: { left: `${veil}px` } })));
  }

  return {
    view: () => [past.slider(), h("div", { class: "timeline" }, held(loaded, chart), loaded.data ? aside() : null)],
    // A long run that moves all the time is drawn anew once a second: laying it out takes a while.
    moved: () => { soon ||= setTimeout(() => { soon = 0; void refresh(); }, outline.steps.length > 2000 ? 1000 : 0); },
    route: () => past.route(),
    keys: () => ({ j: ["the next row", () => select(selected() + 1)], k: ["the row before", () => select(selected() - 1)], o: ["open the event of the row", () => { const step = stepOf(selected()); if (step) ctx.openEvent(step.first); }] }),
    close: () => { clearTimeout(soon); rows?.close(); },
  };
}

/** @param {number} from @param {number} to @param {string} kind */
const bar = (from, to, kind) => h("i", { class: kind, style: { translate: `${from.toFixed(1)}px`, width: `${Math.max(to - from, 0).toFixed(1)}px` } });

/** @param {import("./outline.js").Step} step */
const title = (step) => (step.kind === "activity" && step.name ? step.name : `${words(step.kind)} ${step.name ?? ""}`.trim());
