// The layout of the timeline: where facts stand, and which of them are drawn as one.

import { axis, FOLD, folded } from "../../axis.js";
import { now } from "../../words.js";
import { merged } from "./outline.js";

/**
 * What the rows are drawn from. `key`: what facts are laid out for; `margin`: room after the axis; `now`: since the run
 * began.
 * @typedef {{key: string, folds: any[], open: import("./outline.js").Step[], axis: any, code: any[], marks: any[],
 *   margin: number, now: number}} Layout
 */

/** @type {Layout} */
export const NOTHING = { key: "", folds: [], open: [], axis: null, code: [], marks: [], margin: 0, now: 0 };

/**
 * Lay out what has changed since the last time: facts with the outline, the rest with the clock.
 * @param {Layout} before
 * @param {import("./outline.js").Outline} outline
 * @param {string | null | undefined} until when the run goes on, if that is known
 * @param {number} room for the axis, with its margin
 * @param {number} margin
 * @returns {Layout}
 */
export function laidOut(before, outline, until, room, margin) {
  const width = Math.max(room - margin, 120);
  const key = `${outline.run} ${outline.version} ${width}`;
  const fresh = before.key !== key;
  const view = fresh
    ? {
        ...NOTHING,
        key,
        folds: folded(outline.busy(), outline.last, Math.floor((width * (outline.closed ? 1 : 0.75)) / 2 / FOLD)),
        open: outline.steps.filter((step) => step.ended === null && step.until !== null),
      }
    : before;
  const present = now() - outline.origin;
  const wakes = view.open.map((step) => step.started + (step.until ?? 0)).filter((at) => at > present);
  const wake = until ? Date.parse(until) - outline.origin : wakes.length ? Math.min(...wakes) : null;
  view.margin = margin;
  view.now = outline.closed ? outline.last : Math.max(present, outline.last);
  view.axis = axis({
    folds: view.folds,
    last: outline.last,
    now: outline.closed ? null : view.now,
    wake,
    width,
    origin: outline.origin,
  });
  if (!fresh) return view;
  const { place } = view.axis; // of facts, which stay where they are
  view.code = merged(
    outline.tasks.map((one) => ({ x0: place(one.leased), x1: Math.max(place(one.recorded), place(one.leased) + 2) })),
    2,
  );
  view.marks = merged(
    outline.marks.map((one) => ({
      x0: place(one.at) - 4,
      x1: place(one.at) + 4,
      n: 1,
      title: `${one.type} ${one.name ?? ""}`.trim(),
    })),
    2,
    (into, from) => {
      into.n += from.n;
      if (into.title.length < 200) into.title += `, ${from.title}`;
    },
  );
  return view;
}
