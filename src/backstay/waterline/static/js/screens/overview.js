// The first screen: whether anything needs attention, why, and the action that helps; then results and upcoming work.
/** @import { App } from "../main.js" */

import { Resource } from "../api.js";
import { h } from "../dom.js";
import { held, time, trouble } from "../parts.js";
import { causes } from "./overview/causes.js";
import { flow, tide } from "./overview/charts.js";
import { isYoung, WINDOWS } from "./overview/figures.js";
import { first } from "./overview/first.js";
import { queues, spending, types } from "./overview/tables.js";
import { headline, verdict } from "./overview/verdict.js";
import { operation } from "./operation.js";

const RARELY = 60_000; // histories are read for it
const IDLE = 4000; // workers, databases and clocks change without a commit, and a fault is said within five seconds

/** @param {App} app @returns {import("../main.js").Screen} */
export function open(app) {
  let [took, ended, due, again, closed, said] = [0, 0, Infinity, false, false, ""];
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let fitting = "24h"; // the window that shows everything there is, if that is little
  const chosen = () => WINDOWS.find(([name]) => name === app.route.query.get("window"))?.[0];
  const period = () => chosen() ?? fitting;
  const done = operation(app);
  const pause = () => Math.max(1000, 10 * took);

  /** @type {string[]} */
  let names = [];
  const spent = new Resource(() => app.api.get("/api/time-spent", { workflow_type: names }), app.update);
  /**
   * What is wrong while there is no overview: without a database there are causes, but no figures.
   * @type {Api.CausesAnswer | null}
   */
  let ill = null;
  const overview = new Resource(async () => {
    const began = performance.now();
    try {
      const answer = await inWindow();
      ill = null;
      if (!answer.certificate && answer.engine === "here")
        answer.certificate = await app.api.get("/api/system/liveness");
      answer.first =
        !answer.stock.open &&
        !answer.types.count &&
        !(await app.api.get("/api/flows/all", { page_size: 1, definition: 0 })).flow_count;
      names = answer.types.busiest.slice(0, 20).map((one) => one.workflow_type);
      if (names.length && (!spent.loadedAt || performance.now() - spent.loadedAt > RARELY)) void spent.load();
      return answer;
    } catch (error) {
      ill = await app.api.get("/api/causes").catch(() => null);
      throw error;
    } finally {
      ended = performance.now();
      took = ended - began;
      plan(again ? pause() : Math.max(IDLE, pause()));
      again = false;
    }
  }, app.update);

  /** The overview in the window that is asked for, else in one that fits the age of what it shows. */
  async function inWindow() {
    const read = async (/** @type {string} */ window) =>
      /** @type {Api.Get<"/api/overview"> & {first?: boolean}} */ (await app.api.get("/api/overview", { window }));
    const day = await read(period());
    if (chosen()) return day;
    if (fitting === "1h") {
      if (!isYoung(day)) fitting = "24h";
      return fitting === "1h" ? day : read(fitting);
    }
    const hour = isYoung(day) ? await read("1h") : null;
    if (hour?.totals.started !== day.totals.started) return day;
    fitting = "1h";
    return hour;
  }

  /** Ask again after so long, if that is not planned for earlier. @param {number} after */
  function plan(after) {
    if (closed || performance.now() + after >= due) return;
    clearTimeout(timer);
    due = performance.now() + after;
    timer = setTimeout(() => {
      due = Infinity;
      if (document.visibilityState === "visible") void overview.load();
      else plan(IDLE);
    }, after);
  }

  /** Something was pressed. @param {string} label @param {string} [bulk] the operation that it began */
  function pressed(label, bulk) {
    said = bulk ? "" : `Done: ${label}.`;
    if (bulk) done.begun(bulk, label);
    else app.announce(said);
    again = true;
    void overview.load();
  }

  void overview.load();
  return {
    title: () => "Overview",
    topics: () => ["overview", ...done.topics()],
    moved(news) {
      done.moved(news);
      if (news.kind === "moved" && news.topic !== "overview") return;
      // Stored views follow a commit a little later, so it is asked twice; never for more than a tenth of the time.
      again = true;
      plan(Math.max(0, ended + pause() - performance.now()));
    },
    route: () => void (overview.data?.window === period() || overview.load()),
    close() {
      closed = true;
      done.close();
      clearTimeout(timer);
    },
    view: () => h("div", { class: "overview" }, ill ? unwell(ill) : held(overview, well)),
  };

  /** @param {Api.CausesAnswer} found @returns {any[]} */
  function unwell(found) {
    const { data, problem } = overview;
    return [
      headline(
        found.verdict,
        data ? h("p", { class: "proof" }, "The figures below are from ", time(data.generated_at), ".") : null,
      ),
      causes(app, found.causes, did(), pressed),
      // A cause says why the database cannot be used.
      problem && problem.status !== 503 ? trouble(problem, () => void overview.load()) : null,
      data && !data.first ? figures(data) : null,
    ];
  }

  /** @param {Api.Get<"/api/overview"> & {first?: boolean}} data @returns {any[]} */
  function well(data) {
    return data.first && data.verdict.status === "ok"
      ? first(app, data)
      : [verdict(data), causes(app, data.causes, did(), pressed), figures(data)].flat();
  }

  /** What was done last. @returns {import("../dom.js").Node_ | null} */
  function did() {
    return said ? h("p", { class: "done", key: "said" }, said) : done.view();
  }

  /** @param {Api.Get<"/api/overview">} data */
  function figures(data) {
    return [
      flow(app, data, period()),
      h("div", { class: "pair", key: "pair" }, queues(data), types(data), tide(app, data)),
      data.types.count ? spending(spent) : null,
    ];
  }
}
