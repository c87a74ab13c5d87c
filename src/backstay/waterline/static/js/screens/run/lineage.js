// Lineage: the family of a run as a tree, with the state that each of them has now.

import { Resource } from "../../api.js";
import { h } from "../../dom.js";
import { badge, empty, held, link, mono, runAddress, time, words } from "../../parts.js";
import { count, plural } from "../../words.js";

/** @type {Record<string, string>} */
const AT_PARENT_CLOSE = {
  abandon: "keeps running",
  request_cancel: "gets a cancel request",
  terminate: "is terminated",
};

/** @param {import("./page.js").Context} ctx @returns {import("./page.js").Tab} */
export function tab(ctx) {
  const tree = new Resource(() => ctx.part("lineage", { depth: 5, limit: 120 }), ctx.update);
  void tree.load();

  /** @param {any} node @param {any[]} children @param {any} [how] */
  function item(node, children, how) {
    const self = node.run_id === tree.data.run_id;
    const more = (node.children_count ?? 0) - children.length;
    const notes = [
      self
        ? "this run"
        : how?.link_type === "child_workflow"
          ? [
              `child; ${AT_PARENT_CLOSE[how.parent_close_policy] ?? how.parent_close_policy} if the parent closes`,
              ...Object.entries(how.options ?? {}).map(([name, value]) => `${words(name)}: ${value}`),
            ].join(", ")
          : how
            ? "continued"
            : "",
      node.run_number > 1 ? `run ${node.run_number}` : "",
      more > 0 ? `${more} more below` : "",
      node.exists ? "" : "no longer exists",
    ];
    return h(
      "li",
      { key: node.run_id ?? node.workflow_id },
      h(
        "div",
        { class: "kin", "aria-current": self ? "true" : null },
        badge(node.closed_reason === "continued" ? "continued" : (node.status ?? "unknown")),
        node.exists && !self
          ? link(`${runAddress(node.workflow_id, node.run_id)}?tab=lineage`, null, mono(node.workflow_id))
          : mono(node.workflow_id),
        mono(node.workflow_type, "second"),
        h("span", { class: "caption" }, notes.filter(Boolean).join(", ")),
        time(node.closed_at ?? node.started_at),
      ),
      children.length ? h("ul", null, children) : null,
    );
  }

  /** @param {any} node @returns {any} */
  const down = (node) => item(node, node.children.map(down), node.link);

  /**
   * Hang what is known below the parents of a run, up to the first of the family.
   * @param {any[]} parents
   * @param {any} run
   * @param {any} below
   * @returns {any}
   */
  function up(parents, run, below) {
    const [first, ...others] = parents.filter((parent) => parent.of_run_id === run.run_id);
    return first ? up(parents, first, item(first, [...others.map((other) => item(other, [])), below])) : below;
  }

  /** How its children are, in one line. @param {any} run */
  function children({ children: shown, children_count: all = 0 }) {
    const own = shown.filter((/** @type {any} */ node) => node.link?.link_type === "child_workflow");
    if (own.length < 2) return null;
    /** @type {Map<string, number>} */
    const states = new Map();
    for (const node of own) states.set(node.status ?? "unknown", (states.get(node.status ?? "unknown") ?? 0) + 1);
    return h(
      "p",
      { class: "chips", role: "group", "aria-label": "its children", key: "children" },
      h(
        "b",
        null,
        own.length < all
          ? `${count(own.length)} of ${plural(all, "child", "children")}`
          : plural(own.length, "child", "children"),
      ),
      ...[...states].map(([state, number]) =>
        h("span", null, badge(state), " ", h("span", { class: "number" }, count(number))),
      ),
    );
  }

  return {
    view: () =>
      held(tree, ({ parents, run, runs, complete }) => [
        children(run),
        h("ul", { class: "lineage", "aria-label": "family of the run" }, up(parents, run, down(run))),
        runs === 1 ? empty("This is the first run of its workflow. It has no parent and no children.") : null,
        complete
          ? null
          : h(
              "p",
              { class: "notice" },
              `Only ${plural(runs, "run")} of the family are shown: open one of them to see its own.`,
            ),
      ]),
    moved: () => void tree.load(),
    route: () => void tree.load(),
  };
}
