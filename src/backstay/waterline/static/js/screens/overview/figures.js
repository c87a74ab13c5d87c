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

export const queue = (/** @type {string} */ name) => `/waterline/queues/${encodeURIComponent(name)}`;
export const runsOf = (/** @type {string} */ type, /** @type {string} */ bucket) =>
  `/waterline/runs?workflow_type=${encodeURIComponent(type)}&bucket=${bucket}`;
/** Not all is never 100 %. @param {number | null} rate */
export const percent = (rate) =>
  rate === null ? "–" : `${rate > 0.99 && rate < 1 ? "> 99" : Math.round(rate * 100)} %`;

/** Percentiles are right within a factor of two. @param {number | null} ms */
export const about = (ms) => (ms === null ? "–" : `≈ ${span(ms)}`);
