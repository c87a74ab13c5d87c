// The track of a row of the timeline: bars, marks, and what stands beside them.
/** @import { Layout } from "./layout.js" */

import { h } from "../../dom.js";
import { tone } from "../../parts.js";
import { attention } from "./head.js";
import { pieces } from "./outline.js";
import { meter } from "./step.js";
import { codeState, state } from "./step_words.js";

/** @param {number} from @param {number} to @param {string} kind */
export const bar = (from, to, kind) =>
  h("i", {
    class: kind,
    style: { translate: `${from.toFixed(1)}px`, width: `${Math.max(to - from, 0).toFixed(1)}px` },
  });

/** @param {string} number @param {string} name @param {any} marks @param {any} label */
export const cells = (number, name, marks, label) => [
  h("span", { class: "step number" }, number),
  h("bdi", { class: "name mono clip", title: name }, name),
  h("span", { class: "track" }, marks, label),
];

/**
 * A workflow task that is not completed: just then an operator may look at it.
 * @param {import("./page.js").Context} ctx
 * @param {import("./outline.js").Outline} outline
 * @param {Layout} view
 */
export function nextTask(ctx, outline, view) {
  const summary = ctx.summary.data;
  if (summary?.next_task_kind !== "workflow" || outline.closed) return [];
  const from = view.axis.place(Math.max(Date.parse(summary.next_task_at ?? summary.since) - outline.origin, 0));
  const colour = tone(attention(ctx) ?? summary.state);
  return [
    bar(
      from,
      view.axis.now,
      summary.next_task_state === "leased" ? "bar run" : `thin ${colour === "run" ? "wait" : colour}`,
    ),
    label(view, view.axis.now, codeState(ctx), colour, from),
  ];
}

/**
 * The shapes of a step, and what stands beside them.
 * @param {import("./outline.js").Step} step
 * @param {Layout} view
 * @param {any} progress what its activity says of itself
 * @returns {[any, any]}
 */
export function drawn(step, view, progress) {
  const { place } = view.axis;
  const found = pieces(step, view.now);
  const shapes = found.map((one) => {
    const x0 = place(one.from);
    if (one.kind === "point") return h("i", { class: "mark small", style: { translate: `${x0 - 3}px` } });
    return bar(
      x0,
      Math.max(one.to === Infinity ? view.axis.width : place(one.to), x0 + 2),
      `${one.kind === "wait" ? "thin" : one.kind} ${one.tone}`,
    );
  });
  const last = found.at(-1);
  const end = !last || last.to === Infinity ? view.axis.width : Math.max(place(last.to), place(last.from) + 2);
  if (progress?.total)
    return [shapes, h("span", { class: "label", style: { translate: `${end + 6}px` } }, meter(progress))];
  const [text, colour] = state(step, view.now);
  return [shapes, label(view, end, text, colour, place(step.started))];
}

/**
 * Beside a bar, where there is room: after it, before it, or nowhere.
 * @param {Layout} view
 * @param {number} end
 * @param {string} text
 * @param {string} colour
 * @param {number} start
 */
function label(view, end, text, colour, start) {
  const wide = text.length * 6.2 + 4;
  const left = end + 6 + wide <= view.axis.width + view.margin ? end + 6 : start - wide - 6;
  return left < 0 ? null : h("span", { class: `label tone-${colour}`, style: { translate: `${left}px` } }, text);
}
