// The time axis of a run. Stretches of time without events are folded, and the stretch from the last fact to the next
// wake has a quarter of the width: a run that worked for 55 ms and waits for three days is about the wait. All times
// are milliseconds since the start.

import { span } from "./words.js";

export const FOLD = 48;
const MOST_FOLDS = 8;
const NICE = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5,
  216e5, 432e5, 864e5,
];

/**
 * A stretch of time and where it is drawn. `kind`: plain, fold, or tail (from the last fact to what is ahead).
 * @typedef {{t0: number, t1: number, x0: number, x1: number, kind: "plain" | "fold" | "tail"}} Stretch
 * @typedef {{x: number, text: string, kind: "tick" | "fold" | "ahead" | "now", left: number, title?: string}} Label
 * @typedef
 * {{stretches: Stretch[], place: (t: number) => number, now: number | null, facts: number, width: number, labels:
 * Label[]}}
 * Axis
 */

/**
 * Gaps between intervals, longest first.
 * @param {[number, number][]} busy
 * @param {number} end
 * @returns {[number, number][]}
 */
function gaps(busy, end) {
  const sorted = busy.toSorted((a, b) => a[0] - b[0]);
  /** @type {[number, number][]} */
  const found = [];
  let at = 0;
  for (const [from, to] of sorted) {
    if (from > at) found.push([at, Math.min(from, end)]);
    if (to > at) at = to;
  }
  if (end > at) found.push([at, end]);
  return found.sort((a, b) => b[1] - b[0] - (a[1] - a[0]));
}

/**
 * The gaps that are folded, by time: each is a second at least and 30 % of what would be shown without it being folded.
 * @param {[number, number][]} busy when something ran
 * @param {number} end
 * @param {number} [most]
 * @returns {[number, number][]}
 */
export function folded(busy, end, most = MOST_FOLDS) {
  let shown = end;
  /** @type {[number, number][]} */
  const found = [];
  for (const gap of gaps(busy, end)) {
    const length = gap[1] - gap[0];
    if (found.length >= Math.min(most, MOST_FOLDS) || length < 1000 || length < 0.3 * shown) break;
    found.push(gap);
    shown -= length;
  }
  return found.sort((a, b) => a[0] - b[0]);
}

/**
 * Lay out the axis. `last`: the last fact; `now`: null for a closed run; `wake`: when the run continues by itself, if
 * that is known.
 * @param
 * {{folds: [number, number][], last: number, now: number | null, wake: number | null, width: number, origin: number}}
 * of
 * @returns {Axis}
 */
export function axis({ folds, last, now, wake, width, origin }) {
  /** @type {Stretch[]} */
  const stretches = [];
  // Nothing has taken time yet: all is the wait.
  const facts = now === null ? width : last < 1 ? 0 : Math.round(width * 0.75);
  const plain = Math.max(last - folds.reduce((sum, [from, to]) => sum + to - from, 0), 1e-3);
  const scale = (facts - folds.length * FOLD) / plain;
  let t = 0;
  let x = 0;
  /** @param {number} to @param {number} end @param {Stretch["kind"]} kind */
  const add = (to, end, kind) => {
    stretches.push({ t0: t, t1: to, x0: x, x1: end, kind });
    [t, x] = [to, end];
  };
  for (const [from, to] of folds) {
    if (from > t) add(from, x + (from - t) * scale, "plain");
    add(to, x + FOLD, "fold");
  }
  if (last > t || stretches.length === 0) add(Math.max(last, t), facts, "plain");
  let at = null;
  if (now !== null) {
    const present = Math.max(now, t);
    const ahead = wake !== null && wake > present ? wake : null;
    // The line keeps off the ends, so that both the past and the future are visible.
    const room = width - facts;
    const share = ahead === null ? 0.75 : (present - t) / (ahead - t || 1);
    at = facts + Math.min(Math.max(share * room, room * 0.15), room * 0.75);
    add(present, at, "tail");
    add(ahead ?? present + 1, width, "tail");
  }
  const place = (/** @type {number} */ time) => {
    if (time <= 0) return 0;
    for (const one of stretches)
      if (time <= one.t1) return one.x0 + ((time - one.t0) / (one.t1 - one.t0 || 1)) * (one.x1 - one.x0);
    return width;
  };
  const made = { stretches, place, now: at, facts, width, labels: /** @type {Label[]} */ ([]) };
  made.labels = labels(made, { last, now, wake, origin });
  return made;
}

/** About how wide a caption is. @param {string} text */
const wide = (text) => text.length * 6.2 + 8;
/** The first part of a span, for narrow places. @param {number} ms */
const short = (ms) => span(ms).split(" ").slice(0, 2).join(" ");

/**
 * The labels above the axis. The most important ones are placed first, and no label covers another.
 * @param {Axis} of
 * @param {{last: number, now: number | null, wake: number | null, origin: number}} about
 * @returns {Label[]}
 */
function labels(of, { last, now, wake, origin }) {
  /** @type {Label[]} */
  const found = [];
  /**
   * @param {number} x
   * @param {string} text
   * @param {Label["kind"]} kind
   * @param {string} [title]
   * @param {number} [left]
   */
  const put = (x, text, kind, title, left = x - wide(text) / 2) => {
    const from = Math.max(Math.min(left, of.width - wide(text)), 0);
    if (found.some((one) => from < one.left + wide(one.text) && one.left < from + wide(text))) return;
    found.push({ x, text, kind, left: from, title });
  };
  if (of.now !== null && now !== null) {
    put(of.now, "now", "now");
    if (wake !== null && wake > now)
      put((of.now + of.width) / 2, short(wake - now), "ahead", `goes on in ${span(wake - now)}`);
    if (now - last >= 1000)
      put((of.facts + of.now) / 2, short(now - last), "fold", `nothing was recorded for ${span(now - last)}`);
  }
  for (const one of of.stretches)
    if (one.kind === "fold")
      put((one.x0 + one.x1) / 2, short(one.t1 - one.t0), "fold", `${span(one.t1 - one.t0)} folded`);
  put(0, new Date(origin).toTimeString().slice(0, 8), "tick", undefined, 0);
  for (const one of of.stretches) {
    if (one.kind !== "plain" || one.x1 - one.x0 < 8) continue;
    const least = ((one.t1 - one.t0) / (one.x1 - one.x0)) * 88;
    const step = NICE.find((size) => size >= least) ?? Math.ceil(least / 864e5) * 864e5;
    for (let t = Math.max(Math.ceil(one.t0 / step), 1) * step; t < one.t1; t += step)
      put(of.place(t), `+${span(t)}`, "tick", undefined, of.place(t) + 2);
  }
  return found;
}
