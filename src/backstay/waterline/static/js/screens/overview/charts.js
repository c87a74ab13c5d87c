// Overview, charts: how many runs begin and end, and what will wake.
/** @import { App } from "../../main.js" */

import { bars, chartTable } from "../../chart.js";
import { h } from "../../dom.js";
import { button, panel, time } from "../../parts.js";
import { count, plural, span } from "../../words.js";
import { about, firstOf, KINDS, LEAST, percent, WINDOWS } from "./figures.js";

/** @param {App} app @param {string} name @param {any} chart */
function charted(app, name, chart) {
  return [bars(chart), app.route.query.get("table") === name ? chartTable(chart) : null];
}

/** The button that shows charts as tables. @param {App} app @param {string} name */
function tables(app, name) {
  const on = app.route.query.get("table") === name;
  return button("Show as table", () => app.query({ table: on ? null : name }), {
    class: "plain caption",
    "aria-pressed": String(on),
  });
}

/**
 * @param {App} app
 * @param {Api.OverviewAnswer} data
 * @param {string} period the window that is asked for
 */
export function flow(app, { series: { since, interval_seconds, points }, totals, window: shown }, period) {
  const [, label, ticks] = WINDOWS.find(([name]) => name === shown) ?? ["", "", 4];
  // Before the first run nothing is drawn, so that a chart is as long as what it has to show.
  const from = Math.max(0, Math.min(firstOf(points) - 1, points.length - (LEAST[shown] ?? points.length)));
  const step = interval_seconds * 1000;
  const kinds = KINDS.map(([name, tone]) => ({ name, tone, values: points.slice(from).map((point) => point[name]) }));
  return panel(
    "Flow",
    [
      tables(app, "flow"),
      h(
        "div",
        { class: "chips", role: "group", "aria-label": "window" },
        ...WINDOWS.map(([name, said]) =>
          button(said, () => app.query({ window: name }, { replace: false }), {
            class: "chip number",
            "aria-pressed": String(period === name),
          }),
        ),
      ),
    ],
    h(
      "dl",
      { class: "totals" },
      ...[
        ...kinds.map(({ name, tone }) => [name, count(totals[name]), tone]),
        ["cancelled", count(totals.cancelled)],
        ["terminated", count(totals.terminated)],
        ["pass rate", percent(totals.pass_rate)],
        ["p50", about(totals.p50_ms)],
        ["p95", about(totals.p95_ms)],
      ].map(([name, value, tone]) =>
        h(
          "div",
          null,
          h("dt", { class: "caption" }, tone ? h("span", { class: `swatch fill-${tone}` }) : null, name),
          h("dd", { class: "number" }, value),
        ),
      ),
    ),
    ...charted(app, "flow", {
      label: from ? `Runs of the last ${span((points.length - from) * step)}` : `Runs of the last ${label}`,
      start: Date.parse(since) + from * step,
      step,
      ticks: from ? 3 : ticks,
      series: kinds,
    }),
  );
}

/** What will wake: it is expected, so its bars are hollow. @param {App} app @param {Api.Get<"/api/overview">} data */
export function tide(app, { wakes, generated_at: at }) {
  const start = Date.parse(at);
  return panel(
    "Upcoming wakes",
    tables(app, "tide"),
    h(
      "div",
      { class: "pair" },
      .../** @type {[string, Api.WakeIntervals, number][]} */ ([
        ["next hour", wakes.next_hour, 12],
        ["next day", wakes.next_day, 24],
      ]).map(([name, { runs, intervals, interval_seconds }, n]) => {
        const step = interval_seconds * 1000;
        const values = Array(n).fill(0);
        for (const one of intervals)
          values[Math.min(n - 1, Math.max(0, Math.round((Date.parse(one.at) - start) / step)))] += one.runs;
        const label = `${plural(runs, "run")} in the ${name}`;
        return h(
          "figure",
          null,
          h("figcaption", null, label),
          ...charted(app, "tide", {
            label,
            start,
            step,
            ticks: 4,
            ahead: true,
            series: [{ name: "runs", tone: "none", values }],
          }),
        );
      }),
    ),
    wakes.complete ? null : h("p", { class: "second" }, "There are more after ", time(wakes.counted_until), "."),
  );
}
