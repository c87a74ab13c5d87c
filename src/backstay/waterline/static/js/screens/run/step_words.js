// What the rows of the timeline say: of the code, of a step, and of how it stands.

import { words } from "../../parts.js";
import { now, plural, span } from "../../words.js";
import { attention } from "./head.js";

/** @param {import("./outline.js").Step} step */
export const title = (step) =>
  (step.kind === "activity" && step.name ? step.name : `${words(step.kind)} ${step.name ?? ""}`.trim()) +
  (step.note ? `: ${step.note}` : "");

/** Where a workflow task stands, and since when. @param {import("./page.js").Context} ctx */
export const codeState = (ctx) => {
  const summary = ctx.summary.data;
  return summary
    ? `${words(attention(ctx) ?? summary.state)} ${span(now() - Date.parse(summary.next_task_at ?? summary.since))}`
    : "";
};

/** @param {import("./page.js").Context} ctx @param {import("./outline.js").Outline} outline */
export const codeWords = (ctx, outline) =>
  `workflow code, ran ${plural(outline.tasks.length, "time")}${ctx.summary.data?.next_task_kind === "workflow" && !outline.closed ? `, ${codeState(ctx)}` : ""}`;

export const stepWords = (/** @type {import("./outline.js").Step} */ step) =>
  `step ${step.step}, ${title(step)}, ${words(step.state)}, ${step.attempts > 1 ? `${step.attempts} attempts, ` : ""}began after ${span(step.started)}, ${step.ended === null ? "open" : `took ${span(step.ended)}`}`;

/**
 * What a step came to, and its tone.
 * @param {import("./outline.js").Step} step
 * @param {number} now since the run began
 * @returns {[string, string]}
 */
export function state(step, now) {
  const tries = step.attempts > 1 ? ` ×${step.attempts}` : "";
  if (step.state === "recorded") return ["", "wait"];
  if (step.ended !== null)
    return step.state === "failed" || step.state === "timed_out"
      ? [`✕ ${words(step.state)} ${span(step.ended)}${tries}`, "red"]
      : [`${step.state === "cancelled" ? "⊘ " : ""}${span(step.ended)}${tries}`, "wait"];
  const ahead = step.until === null ? null : step.until - (now - step.started);
  if (ahead !== null && ahead > 0)
    return [
      `${step.state === "backoff" ? "↻ " : ""}in ${span(ahead)}${tries}`,
      step.state === "backoff" ? "amber" : "wait",
    ];
  return [
    `${step.state === "running" && step.kind === "activity" ? "▸ " : ""}${span(now - step.started - (step.began ?? 0))}${tries}`,
    step.state === "running" && step.kind === "activity" ? "run" : "wait",
  ];
}
