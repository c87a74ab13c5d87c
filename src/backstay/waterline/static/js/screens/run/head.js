// The head of a run's page: its names, its state, and the server's sentence on why it is (not) moving, with the action
// that helps.

import { Resource, runPath } from "../../api.js";
import { h } from "../../dom.js";
import {
  announce,
  badge,
  button,
  capital,
  copy,
  empty,
  link,
  mono,
  runAddress,
  time,
  trouble,
  words,
} from "../../parts.js";
import { bytes, count, exact, now, span } from "../../words.js";
import { actions } from "./actions.js";
import { difference } from "./difference.js";

/**
 * What it needs attention for. Only the sentence knows the workers there are.
 * @param {import("./page.js").Context} ctx
 */
export const attention = (ctx) => ctx.why.data?.attention ?? ctx.summary.data?.attention ?? null;

/** @param {import("./page.js").Context} ctx @param {() => void} reload */
export function head(ctx, reload) {
  const { app, id } = ctx;
  const runs = new Resource(
    () => app.api.get(runPath(id, null, "runs"), { fields: "run_id,run_number,is_current_run,status,closed_reason" }),
    ctx.update,
  );
  const act = actions(ctx, reload);
  /**
   * Of a run that is blocked: what its code asked for, beside its history.
   * @type {ReturnType<typeof difference> | null}
   */
  let unfit = null;
  let chain = false;
  let state = "";
  /** The run that was shown first: one that is continued meanwhile is said to be. @type {any} */
  let first = null;

  const alone = (/** @type {Api.SummaryAnswer} */ data) => data.run_number === 1 && data.is_current_run;

  /** @param {Api.SummaryAnswer} data */
  function selector(data) {
    if (alone(data)) return null;
    const all = runs.data?.runs ?? [data];
    return h(
      "select",
      { "aria-label": "run", on: { change: (/** @type {any} */ event) => app.go(runAddress(id, event.target.value)) } },
      ...all
        .toReversed()
        .map((/** @type {any} */ one) =>
          h(
            "option",
            { key: one.run_id, value: one.run_id, prop: { selected: one.run_id === data.run_id } },
            `run ${one.run_number}${one.is_current_run ? ", current" : ""}: ${words(one.closed_reason ?? one.status)}`,
          ),
        ),
    );
  }

  /** @param {Api.SummaryAnswer} data */
  function facts(data) {
    const ended = data.closed_at ? Date.parse(data.closed_at) : now();
    const labels = Object.entries(data.visibility_labels ?? {});
    const shown = /** @type {[string, any][]} */ ([
      [
        "business key",
        data.business_key ? [mono(data.business_key), copy(data.business_key, "the business key")] : null,
      ],
      [
        "labels",
        labels.length
          ? labels.map(([name, value]) => h("bdi", { class: "chip mono", key: name }, `${name}=${value}`))
          : null,
      ],
      ["started", time(data.started_at)],
      [
        data.closed_at ? "took" : "open for",
        h(
          "span",
          { class: "number", title: data.closed_at ? `closed ${exact(data.closed_at)}` : null },
          span(ended - Date.parse(data.started_at)),
        ),
      ],
      ["queue", link(`/waterline/queues/${encodeURIComponent(data.queue)}`, { class: "mono" }, data.queue)],
      ["build", data.build ? h("span", { class: "mono" }, data.build) : null],
      ["history", h("span", { class: "number" }, `${count(data.events)} events, ${bytes(data.bytes)}`)],
      ["run", [h("span", { class: "mono" }, data.run_id), copy(data.run_id, "the run id")]],
    ]);
    return h(
      "dl",
      { class: "line" },
      ...shown
        .filter(([, value]) => value !== null)
        .map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", null, value))),
    );
  }

  function sentence() {
    const { data, problem } = ctx.why;
    if (!data)
      return h(
        "section",
        { class: "why", "aria-label": "why" },
        problem ? trouble(problem, () => void ctx.why.load()) : null,
      );
    // Colour is for what needs eyes: who ended a run on purpose needs none, and a run without a worker needs attention.
    return h(
      "section",
      { class: `why why-${data.tone}`, "aria-label": "why" },
      h(
        "div",
        { class: "said" },
        h("p", { class: "sentence" }, h("bdi", null, data.sentence)),
        h(
          "p",
          { class: "second" },
          data.chain?.length
            ? button(
                chain ? "Hide what led here" : "Show what led here",
                () => {
                  chain = !chain;
                  ctx.update();
                },
                { class: "text", "aria-expanded": String(chain) },
              )
            : null,
          " ",
          data.by_itself
            ? h("bdi", null, `${capital(data.by_itself)}.`)
            : data.action && data.verb !== "continued"
              ? "The run does not continue by itself."
              : null,
        ),
      ),
      act.primary(data.action),
      chain
        ? h(
            "ol",
            { class: "chain" },
            ...data.chain.map((/** @type {any} */ event) =>
              h(
                "li",
                { key: event.sequence },
                button(`${event.sequence}`, () => ctx.openEvent(event.sequence), { class: "text mono" }),
                h("bdi", null, event.about),
                h(
                  "span",
                  { class: "third" },
                  event.because ? `because of ${event.because}` : event.outside ? `from ${event.outside}` : "",
                ),
                time(event.recorded_at),
              ),
            ),
          )
        : null,
    );
  }

  return {
    settled() {
      const { data } = ctx.summary;
      if (!data) return;
      first ??= ctx.run ? null : data;
      if (state && state !== data.state) announce(`${id} is ${words(data.state)}`);
      state = data.state;
      const known = runs.data?.runs.find((/** @type {any} */ one) => one.run_id === data.run_id);
      if (!alone(data) && known?.status !== data.status) void runs.load();
    },
    moved: () => {
      act.moved();
      unfit?.moved();
    },
    view() {
      const { data } = ctx.summary;
      return h(
        "header",
        { class: "run" },
        h(
          "div",
          { class: "names" },
          h("h1", { class: id.length > 48 ? "id long" : "id" }, h("bdi", null, id), copy(id, "the workflow id")),
          data ? h("span", { class: "badge" }, badge(data.state, attention(ctx))) : null,
        ),
        h(
          "div",
          { class: "under" },
          data
            ? [
                mono(data.workflow_type),
                selector(data),
                data.archived_at ? h("span", { class: "second" }, "archived") : null,
              ]
            : " ",
          h("span", { class: "grow" }),
          data ? act.menu() : null,
        ),
        data && first && first.run_id !== data.run_id
          ? h(
              "p",
              { class: "notice" },
              `The run continued as run ${data.run_number}, which is shown now. `,
              link(runAddress(id, first.run_id), null, `Go back to run ${first.run_number}`),
            )
          : null,
        sentence(),
        data?.state === "blocked" ? (unfit ??= difference(ctx)).view() : null,
        data ? facts(data) : h("dl", { class: "line" }),
      );
    },
  };
}

/** What is shown instead of a run that is not there. @param {import("./page.js").Context} ctx */
export function missing(ctx) {
  const { app, id } = ctx;
  const near = new Resource(nearest, ctx.update);

  /** Ids that begin like this one; the more alike the better. */
  async function nearest() {
    const stem = id.replace(/[-_.:/~]?[^-_.:/~]*$/, "");
    for (const prefix of new Set([id, id.slice(0, -1), stem, id.slice(0, 3), id.slice(0, 1)])) {
      const found = prefix
        ? (await app.api.get("/api/suggest", { field: "instance_id", prefix: prefix.slice(0, 100) })).suggestions
        : [];
      if (found.length) return found.slice(0, 8);
    }
    return [];
  }

  return {
    settled: () => {
      if (!near.data) void near.load();
    },
    /** @param {import("../../api.js").Problem} problem */
    view(problem) {
      if (problem.status !== 404) {
        const damaged = problem.reason === "history_damaged";
        return [
          h("h1", { class: "id" }, h("bdi", null, id)),
          trouble(problem, () => {
            void ctx.summary.load();
            void ctx.why.load();
          }),
          damaged
            ? h(
                "p",
                { class: "gap" },
                "The stored history of this run is damaged, so the run is stopped. Restore it from a backup of the database. Other runs are not affected.",
              )
            : null,
        ];
      }
      const ofRun = problem.reason === "run_not_found";
      return [
        h("h1", { class: "id" }, ofRun ? "There is no such run" : "There is no such workflow"),
        h(
          "p",
          { class: "sentence gap" },
          h("bdi", null, capital(problem.message)),
          ". Retention may have removed it, or it is in another namespace.",
        ),
        ofRun ? h("p", { class: "gap" }, link(runAddress(id), null, "Go to the current run of this workflow")) : null,
        near.data?.length && !ofRun
          ? [
              h("h2", null, "Similar ids"),
              h(
                "ul",
                { class: "near" },
                ...near.data.map((/** @type {string} */ one) =>
                  h("li", { key: one }, link(runAddress(one), { class: "mono" }, h("bdi", null, one))),
                ),
              ),
            ]
          : null,
        h("p", { class: "gap" }, link("/waterline/runs", null, "Go to the list of runs")),
        empty("Find runs on the command line, too:", "dw list"),
      ].flat();
    },
  };
}
