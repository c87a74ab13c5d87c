// The timeline of a run: a row for its code, one for messages, one for each step. Facts are solid, expectations hollow,
// and the line "now" is the waterline between them.

import { Resource } from "../../api.js";
import { h } from "../../dom.js";
import { held } from "../../parts.js";
import { RowWindow } from "../../window.js";
import { count, plural } from "../../words.js";
import { laidOut, NOTHING } from "./layout.js";
import { Outline } from "./outline.js";
import { codeSide, marksSide, stepSide } from "./step.js";
import { codeWords, stepWords, title } from "./step_words.js";
import { bar, cells, drawn, nextTask } from "./track.js";
import { travel } from "./travel.js";

const ROW = 24;
const LANES = 2; // before the steps: the code, and messages

/** @param {import("./page.js").Context} ctx @returns {import("./page.js").Tab} */
export function tab(ctx) {
  const { app } = ctx;
  const outline = new Outline();
  const loaded = new Resource(
    () => outline.extend((after) => ctx.part("outline", { after: after || null })),
    ctx.update,
  );
  const past = travel(ctx, () => outline.through);
  // The progress of running activities: from the first of them on, and of the selected one.
  const running = new Resource(
    async () =>
      firstRunning() ? ctx.part("activities", { after: firstRunning() - 1, page_size: 100, payloads: "none" }) : null,
    ctx.update,
  );
  const chosen = new Resource(async () => {
    const step = stepOf(selected());
    return step?.kind === "activity"
      ? (await ctx.part("activities", { after: step.step - 1, page_size: 1, payloads: "none" })).activities[0]
      : null;
  }, ctx.update);
  /** @type {RowWindow | null} */
  let rows = null;
  let revealed = -1;
  let chosenFor = "";
  let view = NOTHING;
  let picked = 0;
  let soon = 0;
  void refresh();

  async function refresh() {
    await loaded.load();
    if (firstRunning()) await running.load();
  }

  const stepOf = (/** @type {number} */ row) => outline.steps[row - LANES];
  const firstRunning = () =>
    outline.steps.find((step) => step.kind === "activity" && step.state === "running")?.step ?? 0;
  const names = () => ((rows?.width ?? 0) < 600 ? 120 : 208);
  const margin = () => ((rows?.width ?? 0) < 600 ? 64 : 96); // after the axis, for what stands beside bars

  /** The row that the address names, else the row that the sentence is about. */
  function selected() {
    const asked = app.route.query.get("step");
    if (asked === "code") return 0;
    if (asked === "messages") return 1;
    const named = asked ? outline.steps.findIndex((step) => String(step.first) === asked) : -1;
    if (named >= 0) return named + LANES;
    const summary = ctx.summary.data;
    if (!summary || summary.next_task_kind === "workflow") return 0;
    const about = outline.steps.findLastIndex((step) =>
      summary.step === null ? step.state === "failed" || step.state === "timed_out" : step.step === summary.step,
    );
    if (about >= 0) return about + LANES;
    return 0;
  }

  /** @param {number} row */
  function select(row) {
    const to = Math.min(Math.max(row, 0), outline.steps.length + LANES - 1);
    rows?.reveal(to);
    app.query({ step: to === 0 ? "code" : to === 1 ? "messages" : String(stepOf(to)?.first) });
  }

  /** @param {number} row @param {HTMLElement} element */
  function render(row, element) {
    const step = stepOf(row);
    element.className = row === picked ? "row picked" : "row";
    element.dataset.row = String(row);
    const attributes = {
      id: `row-${row}`,
      role: "option",
      "aria-selected": row === picked,
      "aria-posinset": row + 1,
      "aria-setsize": outline.steps.length + LANES,
      "aria-label":
        row === 0
          ? codeWords(ctx, outline)
          : row === 1
            ? `${plural(outline.marks.length, "message and mark", "messages and marks")}`
            : step
              ? stepWords(step)
              : "",
    };
    for (const [name, value] of Object.entries(attributes))
      if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
    if (row === 0)
      return cells(
        "",
        "code",
        [
          ...view.code.map((/** @type {any} */ one) => bar(one.x0, one.x1, "bar code")),
          ...nextTask(ctx, outline, view),
        ],
        null,
      );
    if (row === 1)
      return cells(
        "",
        "messages",
        view.marks.map((/** @type {any} */ one) =>
          h(
            "i",
            { class: "mark", title: one.title, style: { translate: `${one.x0}px` } },
            one.n > 1 ? h("b", null, one.n > 99 ? "+" : String(one.n)) : null,
          ),
        ),
        null,
      );
    return step
      ? cells(String(step.step), title(step), ...drawn(step, view, step.state === "running" ? progressOf(step) : null))
      : [];
  }

  /** @param {import("./outline.js").Step} step */
  const progressOf = (step) =>
    running.data?.activities.find((/** @type {any} */ one) => one.sequence === step.step)?.last_heartbeat_progress;
  /** @param {KeyboardEvent} event */
  function key(event) {
    const page = Math.max(Math.floor((rows?.scroller.clientHeight ?? 0) / ROW) - 1, 1);
    const at = selected();
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: Infinity }[
      event.key
    ];
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
    return row === 0
      ? codeSide(ctx, outline)
      : row === 1
        ? marksSide(ctx, outline)
        : step
          ? stepSide(ctx, outline, step, chosen.data?.sequence === step.step ? chosen.data : null, chosen.problem)
          : null;
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
    view = laidOut(view, outline, ctx.summary.data?.until, (rows?.width ?? 0) - names(), margin());
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
    return h(
      "div",
      { class: "chart", style: { "--names": `${names()}px` } },
      h(
        "div",
        { class: "axis", "aria-hidden": "true" },
        ...shown.labels.map((/** @type {any} */ one, /** @type {number} */ at) =>
          h("span", { key: at, class: one.kind, title: one.title, style: { translate: `${one.left}px` } }, one.text),
        ),
      ),
      h(
        "div",
        { class: "plot" },
        h(
          "div",
          { class: "ground", "aria-hidden": "true" },
          ...shown.stretches
            .filter((/** @type {any} */ one) => one.kind === "fold")
            .map((/** @type {any} */ one) => bar(one.x0, one.x1, "fold")),
          ...shown.labels
            .filter((/** @type {any} */ one) => one.kind === "tick")
            .map((/** @type {any} */ one) => bar(one.x, one.x, "grid")),
          shown.now === null
            ? null
            : [
                bar(shown.facts, shown.now, "fold"),
                bar(shown.now, shown.width, "future"),
                bar(shown.now, shown.now, "now"),
              ],
        ),
        h("div", {
          class: "rows",
          opaque: true,
          role: "listbox",
          tabindex: "0",
          "aria-label": `timeline, ${count(total)} rows`,
          style: { height: `${Math.max(total * ROW + 8, 200)}px` },
          ref: (/** @type {HTMLElement} */ made) => {
            rows?.close();
            revealed = -1;
            rows = new RowWindow(made, ROW, render, ctx.update);
          },
          on: {
            keydown: key,
            click: (/** @type {any} */ event) => {
              const row = event.target.closest(".row")?.dataset.row;
              if (row !== undefined) select(Number(row));
            },
          },
        }),
        veil === null ? null : h("div", { class: "veil", style: { left: `${veil}px` } }),
      ),
    );
  }

  return {
    view: () => [past.slider(), h("div", { class: "timeline" }, held(loaded, chart), loaded.data ? aside() : null)],
    // A long run that moves all the time is drawn anew once a second: laying it out takes a while.
    moved: () => {
      soon ||= setTimeout(
        () => {
          soon = 0;
          void refresh();
        },
        outline.steps.length > 2000 ? 1000 : 0,
      );
    },
    route: () => past.route(),
    keys: () => ({
      j: ["the next row", () => select(selected() + 1)],
      k: ["the row before", () => select(selected() - 1)],
      o: [
        "open the event of the row",
        () => {
          const step = stepOf(selected());
          if (step) ctx.openEvent(step.first);
        },
      ],
    }),
    close: () => {
      clearTimeout(soon);
      rows?.close();
    },
  };
}
