// Overview, figures: what its charts and tables have in common.

import { span } from "../../words.js";

export const WINDOWS = /** @type {[string, string, number][]} */ ([
  ["1h", "1 h", 4],
  ["24h", "24 h", 4],
  ["7d", "7 d", 7],
]);
export const KINDS = /** @type {[keyof Api.TypeTrend, string][]} */ ([
  ["started", "wait"],
  ["completed", "done"],
  ["failed", "red"],
]);

/** Whether what a window shows began in its last part: all of it is in the newest two intervals, or after the first. */
export const isYoung = (/** @type {Api.Get<"/api/overview">} */ { series: { points }, window }) =>
  firstOf(points) >= (window === "1h" ? 1 : points.length - 2);

/** The interval in which the first run of a series began or ended. @param {Api.FlowPoint[]} points */
export function firstOf(points) {
  const first = points.findIndex((point) => Object.values(point).some((value) => typeof value === "number" && value));
  return first < 0 ? points.length : first;
}

/** Intervals that a chart has at least, of those of its window. */
export const LEAST = /** @type {Record<string, number>} */ ({ "1h": 15, "24h": 6, "7d": 24 });

export const queue = (/** @type {string} */ name) => `/waterline/queues/${encodeURIComponent(name)}`;
export const runsOf = (/** @type {string} */ type, /** @type {string} */ bucket) =>
  `/waterline/runs?workflow_type=${encodeURIComponent(type)}&bucket=${bucket}`;
/** Not all is never 100 %. @param {number | null} rate */
export const percent = (rate) =>
  rate === null ? "–" : `${rate > 0.99 && rate < 1 ? "> 99" : Math.round(rate * 100)} %`;

/** Percentiles are right within a factor of two. @param {number | null} ms */
export const about = (ms) => (ms === null ? "–" : `≈ ${span(ms)}`);
