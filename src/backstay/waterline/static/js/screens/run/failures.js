// Failures: each with its place, and whether code handled it. Why a run is blocked stands under its sentence.

import { h } from "../../dom.js";
import { copy, empty, facts, held, link, mono, panel, pre, sign, time, words } from "../../parts.js";
import { payload } from "../../payload.js";
import { pages } from "./rows.js";

/** @param {import("./page.js").Context} ctx @returns {import("./page.js").Tab} */
export function tab(ctx) {
  const { list, moved, route, turn } = pages(ctx, "failures", 20);

  /** @param {any} failure */
  const one = (failure) => {
    const trace = failure.exception?.diagnostics?.traceback ?? failure.exception?.diagnostics?.trace?.join("\n");
    const event = link(`?tab=history&event=${failure.sequence}`, null, `event ${failure.sequence}`);
    return panel(
      failure.exception_type ?? words(failure.failure_category),
      [
        failure.handled ? sign("✓", "handled by code") : sign("✕", "not handled", "tone-red"),
        time(failure.recorded_at),
      ],
      h("p", null, h("bdi", null, failure.message)),
      facts({
        where: `${words(failure.source_kind)}${failure.attempt_number ? `, attempt ${failure.attempt_number}` : ""}`,
        event: event,
        "never retried": failure.non_retryable && "yes",
        "code gets": failure.resolved_class && [
          mono(failure.resolved_class),
          ` found by ${words(failure.resolution_source)}`,
        ],
        "not restored":
          failure.resolution_error &&
          h("span", { class: "tone-red" }, `${words(failure.resolution_source)}: ${failure.resolution_error}`),
        "blocks its replay": failure.exception_replay_blocked && "yes",
      }),
      trace
        ? h(
            "figure",
            { class: "shown" },
            h("figcaption", { class: "caption" }, "trace", copy(trace, "the trace")),
            pre("trace", trace),
          )
        : null,
      failure.exception ? payload(failure.exception.details, "details", ctx.app, event) : null,
    );
  };

  return {
    view: () =>
      [
        held(list, ({ failures, next_after }) => [
          failures.length
            ? failures.map((/** @type {any} */ each) => ({ ...one(each), key: each.failure_id }))
            : empty("Nothing has failed. The tab Activities lists attempts that are retried."),
          turn(next_after),
        ]),
      ].flat(),
    moved,
    route,
  };
}
