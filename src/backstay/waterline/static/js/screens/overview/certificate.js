// Overview, certificate: no run is stranded, and how long ago that was proven.

import { h } from "../../dom.js";
import { badge, link } from "../../parts.js";
import { count, now, plural, span } from "../../words.js";

/** The first line: no run is stranded, and how long ago that was proven. @param {Api.OverviewAnswer} data */
export function certificate({ certificate: proof, stock }) {
  const age = proof ? Math.max(0, Math.floor((now() - Date.parse(proof.proven_at)) / 1000)) : 0;
  const runs = `${plural(stock.open, "open run")}, `;
  return h(
    "header",
    { key: "certificate" },
    h(
      "h1",
      { class: proof?.stranded ? "tone-red" : null },
      !proof
        ? `${runs}not proven here`
        : [
            h("span", { class: proof.stranded ? null : "sound", "aria-hidden": "true" }, proof.stranded ? "▲ " : "✓ "),
            runs,
            proof.stranded ? link("/waterline/system", null, `${count(proof.stranded)} stranded`) : "0 stranded",
            h(
              "span",
              { class: "proven" },
              `, proven ${age < 60 ? `${age} s` : span(age * 1000)} ago${proof.open_runs === stock.open ? "" : ` for ${count(proof.open_runs)}`}`,
            ),
          ],
    ),
    proof
      ? null
      : h(
          "p",
          { class: "second" },
          "Another server is the engine of this database; it proves that no run is stranded.",
        ),
    h(
      "ul",
      { class: "stock", "aria-label": "open runs by state" },
      ...Object.entries(stock.states).map(([state, runs]) =>
        h(
          "li",
          { class: runs ? null : "none" },
          link(
            `/waterline/runs?state=${state}&bucket=running`,
            null,
            badge(state),
            " ",
            h("span", { class: "number" }, count(runs)),
          ),
        ),
      ),
    ),
  );
}
