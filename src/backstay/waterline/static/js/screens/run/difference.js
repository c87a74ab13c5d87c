// Of a run that its code does not fit: the steps of history and those that the code asked for, side by side, under the
// sentence that says so.

import { Resource } from "../../api.js";
import { h } from "../../dom.js";
import { copy, facts, held, link, mono, pre, reach, runAddress, word, words } from "../../parts.js";
import { count, plural } from "../../words.js";
import { table } from "./rows.js";

const NAMED = 5; // others that are named

/** @param {import("./page.js").Context} ctx */
export function difference(ctx) {
  const replay = new Resource(() => ctx.part("replay-difference"), ctx.update);
  void replay.load();

  /** Other runs that are blocked in the same way. @param {any} found */
  function others({ same_block: same, same_block_count: number, complete, workflow_type: type }) {
    if (!number) return h("p", null, "No other open run of this type has the same difference.");
    const all = `/waterline/runs?attention=blocked&workflow_type=${encodeURIComponent(type)}&bucket=running`;
    return h(
      "p",
      { class: "others" },
      h(
        "b",
        null,
        `${complete ? "" : "At least "}${plural(number, "other run")} ${number === 1 ? "has" : "have"} the same difference: `,
      ),
      ...same
        .slice(0, NAMED)
        .map((/** @type {any} */ each) => [
          link(runAddress(each.workflow_id, each.run_id), { key: each.run_id }, mono(each.workflow_id)),
          " ",
        ]),
      number > NAMED ? link(all, null, `all blocked runs of ${type}`) : null,
    );
  }

  /** The steps of history and of the code side by side. @param {any} found */
  function shown(found) {
    const { block } = found;
    const rows = /** @type {any[]} */ (block.difference);
    const first = rows.findIndex((each) => each.recorded.replace(/^\d+: /, "") !== each.replayed);
    const command = `dw verdict ${word(ctx.id)} --app FILE ${reach(ctx.app)}`;
    return h(
      "section",
      { class: "unfit", "aria-label": "history and code", key: "unfit" },
      rows.length
        ? table(
            "recorded,code asked for",
            rows.map((each, at) => [
              String(at),
              [
                [at === first ? h("span", { class: "unseen" }, "the first difference: ") : null, mono(each.recorded)],
                each.replayed ? mono(each.replayed) : h("span", { class: "third" }, "not reached"),
              ],
              null,
              at === first ? "first" : null,
            ]),
            "difference",
          )
        : null,
      others(found),
      // The same code, tried again, would be blocked again: so this comes before any repair.
      h(
        "p",
        null,
        "Whether code of yours fits all of them: ",
        h("code", null, command),
        " ",
        copy(command, "the command"),
      ),
      h(
        "details",
        null,
        h("summary", null, "What blocked it"),
        facts({
          reason: words(block.reason),
          "recorded as": mono(block.recorded_event_types?.join(", ")),
          "code needs": mono(block.expected_history_shape),
          exception: mono(block.exception_type),
          because: block.resolution_error,
          "blocked by": mono(block.worker_id),
          host: mono(block.host),
          build: mono(block.build_id),
          definition: mono(block.workflow_definition_fingerprint),
          "definitions tried": block.tried_definitions?.length > 1 && count(block.tried_definitions.length),
        }),
        block.stack_trace ? pre("stack", block.stack_trace) : null,
      ),
    );
  }

  return {
    view: () => (replay.problem ? held(replay, () => null) : replay.data?.blocked ? shown(replay.data) : null),
    moved: () => void replay.load(),
  };
}
