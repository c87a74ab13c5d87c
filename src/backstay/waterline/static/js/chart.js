// Bars over time. Facts are solid, expectations hollow, and "now" is a line. Each chart can be shown as a table.

import { h } from "./dom.js";
import { count, exact, isAbsolute, span } from "./words.js";

/**
 * Bars of `step` milliseconds from `start` on. The values of the first series go up from the line, the others down.
 * `ahead`: they are expected, and the line "now" is at their beginning instead of their end.
 * @typedef {{name: string, tone: string, values: number[]}} Series
 * @typedef
 * {{label: string, start: number, step: number, ticks: number, ahead?: boolean, series: [Series, ...Series[]]}} Chart
 */

const short = new Intl.NumberFormat("en-US", { notation: "compact" });

/** The next number that reads well, so that the scale seldom changes. @param {number} n */
function round(n) {
  const unit = 10 ** Math.floor(Math.log10(n));
  return n <= 4 ? n : ([1, 1.5, 2, 3, 4, 6, 8, 10].map((one) => one * unit).find((one) => one >= n) ?? n);
}

/** @param {Chart} chart */
export function bars({ label, start, step, series: all, ticks, ahead }) {
  const [first, ...others] = all;
  const n = first.values.length;
  const above = round(Math.max(...first.values));
  const below = round(
    Math.max(0, ...first.values.map((_, at) => others.reduce((sum, one) => sum + (one.values[at] ?? 0), 0))),
  );
  const scale = 100 / (above + below || 1);
  const line = above || below ? above * scale : others.length ? 50 : 100;
  const columns = first.values.map((_, at) => {
    let foot = line;
    const part = (/** @type {Series} */ { tone, values }) => {
      if (!values[at]) return null;
      const height = Math.max(values[at] * scale, 2); // one of thousands is seen, too
      const y = values === first.values ? line - height : foot;
      if (y === foot) foot += height;
      return h("rect", { class: `fill-${tone}`, x: at + 0.12, y, width: 0.76, height });
    };
    return h(
      "g",
      null,
      h(
        "title",
        null,
        `${exact(start + at * step).slice(0, 16)}: ${all.map((one) => `${count(one.values[at])} ${one.name}`).join(", ")}`,
      ),
      h("rect", { class: "hit", x: at, y: 0, width: 1, height: 100 }),
      all.map(part),
    );
  });
  return h(
    "div",
    { class: `bars ${ahead ? "ahead" : ""}` },
    h(
      "svg",
      { viewBox: `0 0 ${n} 100`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      ...columns,
      h("line", { x1: 0, x2: n, y1: line, y2: line }),
    ),
    h(
      "div",
      { class: "most", "aria-hidden": "true" },
      h("span", null, above ? short.format(above) : ""),
      h("span", null, below ? short.format(below) : ""),
    ),
    h(
      "div",
      { class: "ticks", "aria-hidden": "true" },
      ...Array.from({ length: ticks + 1 }, (_, at) => {
        const away = (Math.abs(at - (ahead ? 0 : ticks)) / ticks) * n * step;
        return h(
          "span",
          { class: away ? null : "now" },
          away === 0
            ? "now"
            : isAbsolute()
              ? exact(start + (at / ticks) * n * step).slice(...(n * step > 2e8 ? [5, 10] : [11, 16]))
              : span(away),
        );
      }),
    ),
  );
}

/** A chart without its scale, for a cell of a table. @param {[Series, ...Series[]]} all */
export function spark(all) {
  const [{ values: starts }, ...ends] = all;
  const feet = starts.map(() => 50);
  const scale =
    50 / Math.max(1, ...starts, ...starts.map((_, at) => ends.reduce((sum, { values }) => sum + (values[at] ?? 0), 0)));
  const label = all.map(({ name, values }) => `${name} ${values.join(" ")}`).join(", ");
  return h(
    "svg",
    {
      class: "spark",
      viewBox: `0 0 ${starts.length} 100`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    h("title", null, label),
    all.map(({ tone, values }) =>
      h("path", {
        class: `fill-${tone}`,
        d: values
          .map((value, at) => {
            const foot = feet[at] ?? 50;
            if (values !== starts) feet[at] = foot + value * scale;
            return value ? `M${at} ${foot}h.8v${value * (values === starts ? -scale : scale)}h-.8z` : "";
          })
          .join(""),
      }),
    ),
  );
}

/**
 * A table: of each column its name and how a row is shown in it, else as the number of this name; the first one heads
 * the row.
 * @param {string} label @param {[string, ((row: any) => any)?][]} columns @param {any[]} rows
 */
export function table(label, columns, rows) {
  return h(
    "div",
    { class: "scroll tall", tabindex: "0", role: "region", "aria-label": label },
    h(
      "table",
      null,
      h(
        "thead",
        null,
        h("tr", null, ...columns.map(([name], at) => h("th", { scope: "col", class: at ? "number" : null }, name))),
      ),
      h(
        "tbody",
        null,
        ...rows.map((row) =>
          h(
            "tr",
            null,
            ...columns.map(([name, cell], at) =>
              h(at ? "td" : "th", { class: "number", scope: at ? null : "row" }, cell ? cell(row) : count(row[name])),
            ),
          ),
        ),
      ),
    ),
  );
}

/** What a chart shows, without the intervals in which nothing is. @param {Chart} chart */
export function chartTable({ label, start, step, series }) {
  const rows = series[0].values.map((_, at) => at).filter((at) => series.some((one) => one.values[at]));
  return table(
    `${label}, as a table`,
    [
      ["from", (at) => exact(start + at * step).slice(0, 16)],
      ...series.map((one) => /** @type {any} */ ([one.name, (/** @type {number} */ at) => count(one.values[at])])),
    ],
    rows,
  );
}
