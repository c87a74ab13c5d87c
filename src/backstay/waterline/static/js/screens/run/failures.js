// Failures: what went wrong, where, and whether code took care of it. Of a run that its code does not fit: the difference.

import { Resource } from "../../api.js";
import { h } from "../../dom.js";
import { copy, empty, facts, held, link, mono, panel, pre, reach, runAddress, sign, time, word, words } from "../../parts.js";
import { payload } from "../../payload.js";
import { plural } from "../../words.js";
import { pages, table } from "./rows.js";

/** @param {import("./page.js").Context} ctx @returns {import("./page.js").Tab} */
export function tab(ctx) {
  const { list, moved, route, turn } = pages(ctx, "failures", 20);
  const replay = new Resource(() => ctx.part("replay-difference"), ctx.update);
  void replay.load();

  /** @param {any} failure */
  const one = (failure) => {
    const trace = failure.exception?.diagnostics?.traceback ?? failure.exception?.diagnostics?.trace?.join("\n");
    const event = link(`?tab=history&event=${failure.sequence}`, null, `event ${failure.sequence}`);
    return panel(failure.exception_type ?? words(failure.failure_category), [failure.handled ? sign("✓", "handled by code") : sign("✕", "not handled", "tone-red"), time(failure.recorded_at)],
      h("p", null, h("bdi", null, failure.message)),
      facts({ where: `${words(failure.source_kind)}${failure.attempt_number ? `, attempt ${failure.attempt_number}` : ""}`, "says who": event, "never retried": failure.non_retryable && "yes",
        "code gets": failure.resolved_class && [mono(failure.resolved_class), ` found by ${words(failure.resolution_source)}`],
        "not restored": failure.resolution_error && h("span", { class: "tone-red" }, `${words(failure.resolution_source)}: ${failure.resolution_error}`), "blocks its replay": failure.exception_replay_blocked && "yes" }),
      trace ? h("figure", { class: "shown" }, h("figcaption", { class: "caption" }, "trace", copy(trace, "the trace")), pre("trace", trace)) : null,
      failure.exception ? payload(failure.exception.details, "details", ctx.app, event) : null);
  };

  /** The steps of history and of the code side by side. @param {any} found */
  function difference({ block, same_block, same_block_count: others, complete }) {
    const rows = /** @type {any[]} */ (block.difference);
    const first = rows.findIndex((each) => each.recorded.replace(/^\d+: /, "") !== each.replayed);
    return panel("Its code does not fit its history", sign("▲", words(block.reason), "tone-red"),
      h("p", null, h("bdi", null, block.message)),
      rows.length ? table("recorded,code asked for", rows.map((each, at) => [String(at), [[at === first ? h("span", { class: "unseen" }, "the first difference: ") : null, mono(each.recorded)], mono(each.replayed || "not reached")], null, at === first ? "first" : null]), "difference") : null,
      facts({ "recorded as": mono(block.recorded_event_types?.join(", ")), "code needs": mono(block.expected_history_shape), exception: mono(block.exception_type), because: block.resolution_error, definition: mono(block.workflow_definition_fingerprint) }),
      block.stack_trace ? pre("stack", block.stack_trace) : null,
      h("p", null, others ? `${plural(others, "other open run")}${complete ? "" : " or more"} of this type ${others === 1 ? "has" : "have"} the same difference:` : "No other open run of this type has the same difference."),
      h("ul", { class: "chips" }, same_block.map((/** @type {any} */ each) => h("li", { key: each.run_id }, link(`${runAddress(each.workflow_id, each.run_id)}?tab=failures`, null, mono(each.workflow_id))))),
      empty("Deploy code that takes the recorded steps, and the run goes on by itself. Try it first:", `dw replay FILE ${word(ctx.id)} ${reach(ctx.app)}`));
  }

  return {
    view: () => [
      replay.problem ? held(replay, () => null) : null,
      replay.data?.blocked ? difference(replay.data) : null,
      held(list, ({ failures, next_after }) => [
        failures.length || replay.data?.blocked ? failures.map((/** @type {any} */ each) => ({ ...one(each), key: each.failure_id })) : empty("Nothing has failed. Attempts that are tried again are among the activities."),
        turn(next_after)]),
    ].flat(),
    moved: () => { moved(); void replay.load(); },
    route,
  };
}
