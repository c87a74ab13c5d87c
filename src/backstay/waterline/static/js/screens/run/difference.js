// Of a run that its code does not fit: the steps of history and those that the code asked for, side by side.

import { Resource } from "../../api.js";
import { h } from "../../dom.js";
import { empty, facts, held, link, mono, panel, pre, reach, runAddress, sign, word, words } from "../../parts.js";
import { plural } from "../../words.js";
import { table } from "./rows.js";

/** @param {import("./page.js").Context} ctx */
export function difference(ctx) {
  const replay = new Resource(() => ctx.part("replay-difference"), ctx.update);
  void replay.load();

  /** The steps of history and of the code side by side. @param {any} found */
  function shown({ block, same_block, same_block_count: others, complete }) {
    const rows = /** @type {any[]} */ (block.difference);
    const first = rows.findIndex((each) => each.recorded.replace(/^\d+: /, "") !== each.replayed);
    return panel(
      "Its code does not fit its history",
      sign("▲", words(block.reason), "tone-red"),
      h("p", null, h("bdi", null, block.message)),
      rows.length
        ? table(
            "recorded,code asked for",
            rows.map((each, at) => [
              String(at),
              [
                [at === first ? h("span", { class: "unseen" }, "the first difference: ") : null, mono(each.recorded)],
                mono(each.replayed || "not reached"),
              ],
              null,
              at === first ? "first" : null,
            ]),
            "difference",
          )
        : null,
      facts({
        "recorded as": mono(block.recorded_event_types?.join(", ")),
        "code needs": mono(block.expected_history_shape),
        exception: mono(block.exception_type),
        because: block.resolution_error,
        "blocked by": mono(block.worker_id),
        host: mono(block.host),
        build: mono(block.build_id),
        definition: mono(block.workflow_definition_fingerprint),
      }),
      block.stack_trace ? pre("stack", block.stack_trace) : null,
      h(
        "p",
        null,
        others
          ? `${plural(others, "other open run")}${complete ? "" : " or more"} of this type ${others === 1 ? "has" : "have"} the same difference:`
          : "No other open run of this type has the same difference.",
      ),
      h(
        "ul",
        { class: "chips" },
        same_block.map((/** @type {any} */ each) =>
          h(
            "li",
            { key: each.run_id },
            link(`${runAddress(each.workflow_id, each.run_id)}?tab=failures`, null, mono(each.workflow_id)),
          ),
        ),
      ),
      empty(
        "Deploy code that takes the recorded steps, and the run goes on by itself. Try it first:",
        `dw verdict ${word(ctx.id)} --app FILE ${reach(ctx.app)}`,
      ),
    );
  }

  return {
    blocked: () => !!replay.data?.blocked,
    view: () => [replay.problem ? held(replay, () => null) : null, replay.data?.blocked ? shown(replay.data) : null],
    moved: () => void replay.load(),
  };
}
