// The outline of a run, as the server tells it in columns of numbers, and what is drawn of it. Times are milliseconds
// since its start.

/**
 * A durable call. `note` is what its author says about it, `began` (of its latest attempt), `ended` and `until` are
 * null where there is no such time.
 * @typedef
 * {{first: number, last: number, step: number, kind: string, name: string | null, note: string | null, state: string,
 * group: string | null,
 *   started: number, began: number | null, ended: number | null, until: number | null, attempts: number, tries: Try[]}}
 * Step
 * @typedef {{sequence: number, attempt: number, state: string, began: number | null, ended: number, next: number}} Try
 * @typedef
 * {{first: number, last: number, events: number, leased: number, recorded: number, owner: string | null, attempt:
 * number}}
 * Task
 * @typedef {{sequence: number, type: string, kind: string, name: string | null, at: number}} Mark
 * @typedef {{from: number, to: number, kind: "bar" | "wait" | "ahead" | "point", tone: string}} Piece
 */

export class Outline {
  constructor() {
    this.version = 0; // changes whenever something is added
    /** @type {string | null} */ this.run = null;
    this.origin = 0;
    this.through = 0;
    this.last = 0; // when the last thing was recorded
    this.closed = false;
    /** @type {string[]} */ this.texts = [];
    /** @type {Step[]} */ this.steps = [];
    /** @type {Map<number, Step>} */ this.known = new Map();
    /** @type {Map<number, Try[]>} */ this.tries = new Map(); // a step that goes on comes after its attempts
    /** @type {Task[]} */ this.tasks = [];
    /** @type {Mark[]} */ this.marks = [];
  }

  /** Ask for what is new. @param {(after: number) => Promise<any>} ask */
  async extend(ask) {
    for (;;) {
      const answer = await ask(this.through);
      if (this.run !== null && answer.run_id !== this.run) {
        Object.assign(this, new Outline(), { version: this.version }); // another run has taken its place
        continue;
      }
      this.add(answer);
      if (answer.complete) return this;
    }
  }

  /** @param {number} first */
  triesOf(first) {
    const found = this.tries.get(first) ?? [];
    this.tries.set(first, found);
    return found;
  }

  /** @param {any} answer */
  add(answer) {
    this.version += 1;
    this.run = answer.run_id;
    this.origin = Date.parse(answer.origin_at);
    this.through = answer.through;
    this.closed = answer.is_terminal;
    answer.texts.forEach((/** @type {string} */ text, /** @type {number} */ at) => {
      this.texts[answer.texts_from + at] = text;
    });
    const text = (/** @type {number} */ n) => (n < 0 ? null : /** @type {string} */ (this.texts[n]));
    const ms = (/** @type {number} */ n) => (n < 0 ? null : n / 1000);
    const { steps, attempts, tasks, marks } = answer;
    const seen = (/** @type {number} */ at) => {
      if (at > this.last) this.last = at;
    };
    for (let row = 0; row < attempts.sequence.length; row++) {
      const of = this.triesOf(attempts.first[row]);
      const one = {
        sequence: attempts.sequence[row],
        attempt: attempts.attempt[row],
        state: text(attempts.state[row]) ?? "",
        began: ms(attempts.began[row]),
        ended: attempts.ended[row] / 1000,
        next: attempts.next[row] / 1000,
      };
      if ((of.at(-1)?.sequence ?? 0) < one.sequence) of.push(one);
    }
    let sorted = true;
    for (let row = 0; row < steps.first.length; row++) {
      const first = steps.first[row];
      let step = this.known.get(first);
      if (!step) {
        step = /** @type {Step} */ ({ first, tries: this.triesOf(first) });
        this.known.set(first, step);
        sorted &&= (this.steps.at(-1)?.first ?? 0) < first;
        this.steps.push(step);
      }
      Object.assign(step, {
        last: steps.last[row],
        step: steps.step[row],
        kind: text(steps.kind[row]),
        name: text(steps.name[row]),
        note: text(steps.note[row]),
        state: text(steps.state[row]),
        group: text(steps.group[row]),
        started: steps.started[row] / 1000,
        began: ms(steps.began[row]),
        ended: ms(steps.ended[row]),
        until: ms(steps.until[row]),
        attempts: steps.attempts[row],
      });
      seen(step.started + (step.ended ?? step.began ?? step.tries.at(-1)?.ended ?? 0));
    }
    if (!sorted) this.steps.sort((a, b) => a.first - b.first);
    for (let row = 0; row < tasks.first.length; row++) {
      const recorded = tasks.recorded[row] / 1000;
      const one = {
        first: tasks.first[row],
        last: tasks.last[row],
        events: tasks.events[row],
        leased: ms(tasks.leased[row]) ?? recorded,
        recorded,
        owner: text(tasks.owner[row]),
        attempt: tasks.attempt[row],
      };
      if (this.tasks.at(-1)?.first === one.first) this.tasks.pop();
      this.tasks.push(one);
      seen(recorded);
    }
    for (let row = 0; row < marks.sequence.length; row++) {
      const one = {
        sequence: marks.sequence[row],
        type: text(marks.type[row]) ?? "",
        kind: text(marks.kind[row]) ?? "",
        name: text(marks.name[row]),
        at: marks.at[row] / 1000,
      };
      if ((this.marks.at(-1)?.sequence ?? 0) >= one.sequence) continue;
      this.marks.push(one);
      seen(one.at);
    }
  }

  /** When something ran or was recorded: what is not folded. @returns {[number, number][]} */
  busy() {
    /** @type {[number, number][]} */
    const found = [];
    for (const task of this.tasks) found.push([task.leased, task.recorded]);
    for (const mark of this.marks) found.push([mark.at, mark.at]);
    for (const step of this.steps) {
      found.push([step.started, step.started]);
      for (const one of step.tries) found.push([step.started + (one.began ?? one.ended), step.started + one.ended]);
      if (step.ended !== null)
        found.push([
          step.started + (step.kind === "activity" && step.began !== null ? step.began : step.ended),
          step.started + step.ended,
        ]);
      else if (step.began !== null) found.push([step.started + step.began, step.started + step.began]);
    }
    return found;
  }
}

const ENDS = /** @type {Record<string, string>} */ ({
  completed: "done",
  failed: "red",
  timed_out: "red",
  cancelled: "wait",
  terminated: "wait",
  running: "run",
});

/** What is drawn of a step. @param {Step} step @param {number} now @returns {Piece[]} */
export function pieces(step, now) {
  /** @type {Piece[]} */
  const found = [];
  const add = (
    /** @type {number} */ from,
    /** @type {number} */ to,
    /** @type {Piece["kind"]} */ kind,
    /** @type {string} */ tone,
  ) => {
    if (to > from || kind === "bar" || kind === "point")
      found.push({ from: step.started + from, to: step.started + Math.max(from, to), kind, tone });
  };
  const present = Math.max(now - step.started, 0);
  const open = step.ended === null;
  if (step.state === "recorded") add(0, 0, "point", "wait");
  else if (step.kind === "activity") {
    let idle = 0;
    let tone = "wait"; // it waits for a worker; after a failure it waits for its next attempt
    for (const one of step.tries) {
      add(idle, one.began ?? one.ended, "wait", tone);
      if (one.began !== null) add(one.began, one.ended, "bar", "amber");
      [idle, tone] = [one.ended, "amber"];
    }
    if (step.began !== null) {
      add(idle, step.began, "wait", tone);
      add(step.began, step.ended ?? present, "bar", ENDS[step.state] ?? "wait");
    } else {
      add(idle, step.ended ?? present, "wait", tone);
      if (open && step.until !== null) add(present, step.until, "ahead", tone);
    }
  } else {
    const ended = ENDS[step.state];
    add(
      0,
      step.ended ?? present,
      step.kind === "child" ? "bar" : "wait",
      step.kind === "child" && !open && ended ? ended : "wait",
    );
    if (open) add(present, step.until ?? Infinity, "ahead", "wait");
  }
  return found;
}

/**
 * Bars that are drawn over each other are one; there are never more than pixels.
 * @template {{x0: number, x1: number}} T
 * @param {T[]} bars by time
 * @param {number} gap
 * @param {(into: T, from: T) => void} [join]
 * @returns {T[]}
 */
export function merged(bars, gap, join) {
  /** @type {T[]} */
  const found = [];
  for (const bar of bars) {
    const before = found.at(-1);
    if (before && bar.x0 < before.x1 + gap) {
      before.x1 = Math.max(before.x1, bar.x1);
      join?.(before, bar);
    } else found.push(bar);
  }
  return found;
}
