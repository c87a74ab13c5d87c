// Overview, verdict: whether anything needs attention, in one line; the proof as small print; how the open runs are.

import { h } from "../../dom.js";
import { link, tone } from "../../parts.js";
import { count, now, plural, span } from "../../words.js";

/**
 * The first line. A tick stands only where nothing is red.
 * @param {Api.OverviewAnswer["verdict"]} verdict
 * @param {any} more what stands below it
 */
export const headline = ({ status, sentence }, more) =>
  h(
    "header",
    { class: `verdict verdict-${status}`, key: "verdict" },
    h(
      "h1",
      null,
      h("span", { class: "glyph", "aria-hidden": "true" }, status === "ok" ? "✓ " : status === "error" ? "▲ " : "! "),
      sentence.replace(/\.$/, ""),
    ),
    more,
  );

/** @param {Api.OverviewAnswer} data */
export function verdict({ verdict: found, certificate, stock }) {
  const states = Object.entries(stock.states);
  return headline(found, [
    h("p", { class: "proof" }, proof(certificate, stock.open)),
    h(
      "div",
      { class: "strip", "aria-hidden": "true" },
      ...ORDER.map((state) =>
        stock.states[state]
          ? h("i", { class: `of-${state}`, key: state, style: { "flex-grow": String(stock.states[state]) } })
          : null,
      ),
    ),
    h(
      "ul",
      { class: "stock", "aria-label": "open runs by state" },
      ...states
        .toSorted(([a], [b]) => ORDER.indexOf(a) - ORDER.indexOf(b))
        .map(([state, runs]) =>
          h(
            "li",
            { class: runs ? null : "none", key: state },
            link(
              `/waterline/runs?state=${state}&bucket=running`,
              null,
              h("i", { class: `swatch of-${state}`, "aria-hidden": "true" }),
              h("b", { class: runs && tone(state) === "red" ? "tone-red" : null }, count(runs)),
              " ",
              state,
            ),
          ),
        ),
    ),
  ]);
}

const ORDER = ["blocked", "retrying", "paused", "working", "ready", "waiting", "sleeping"]; // what wants eyes first

/**
 * What stands behind the verdict, and how long ago that was proven.
 * @param {Api.OverviewAnswer["certificate"]} found
 * @param {number} open
 */
function proof(found, open) {
  if (!found)
    return "This server has no proof that each open run will be resumed: the engine of the database makes it.";
  const age = Math.max(0, now() - Date.parse(found.proven_at));
  const when = `checked ${age < 1000 ? "just now" : `${age < 60_000 ? `${Math.floor(age / 1000)} s` : span(age)} ago`}`;
  if (found.stranded)
    return [
      link("/waterline/system", { class: "tone-red" }, plural(found.stranded, "open run")),
      ` ${found.stranded === 1 ? "has" : "have"} nothing on disk that would resume ${found.stranded === 1 ? "it" : "them"}, ${when}.`,
    ];
  if (!open && !found.open_runs) return `Nothing is left to resume, ${when}.`;
  const those = found.open_runs === open ? "" : `, when ${plural(found.open_runs, "run was", "runs were")} open`;
  return `Every open run has something on disk that will resume it, ${when}${those}.`;
}
