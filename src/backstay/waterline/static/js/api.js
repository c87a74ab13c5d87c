// The public API of the server. Every reply sets the clock. A repeated GET sends the ETag of the last reply.

import { setClock } from "./words.js";

/** A refusal or a failure: `reason` is stable, `message` is for people. */
export class Problem extends Error {
  /** @param {number} status @param {string} reason @param {string} message @param {any} [body] */
  constructor(status, reason, message, body) {
    super(message);
    this.status = status;
    this.reason = reason;
    this.body = body ?? {};
    this.field = body?.field;
  }
}

/**
 * Turn an error into a problem. Any other error is a defect of this page and is logged to the console.
 * @param {unknown} error
 */
export function asProblem(error) {
  if (error instanceof Problem) return error;
  console.error(error);
  return new Problem(0, "defect", String(error));
}

/**
 * What a user wants to be done once: `{}` for each dialog or form. A command whose reply was lost is sent again under
 * the same request id, so that it counts once; one that was answered, or that asks for something else, is another
 * command.
 * @typedef {{id?: string, sent?: string}} Intent
 */

/** @type {Map<string, {tag: string, body: any}>} */
const known = new Map();
const KNOWN = 50;

/** Requests and replies have the types of the server: the type check generates `Api` from them. */
export const api = {
  namespace: "default",
  /** The namespace of addresses without a namespace. */
  home: "default",
  /** Called when a reply says that the session has ended. @type {() => void} */
  onSignedOut: () => {},
  /** Called after each request: whether the server replied. @type {(reached: boolean) => void} */
  onReached: () => {},

  /**
   * @template {string} Path
   * @param {Path} path
   * @param {Record<string, any>} [params]
   * @param {AbortSignal} [signal]
   * @returns {Promise<Api.Get<Path>>}
   */
  get: (path, params, signal) => call("GET", address(path, params), undefined, signal),
  /**
   * @template {string} Path
   * @param {Path} path
   * @param {Api.PostBody<Path> | string} [body]
   * @param {Record<string, any>} [params]
   * @param {Intent} [intent]
   * @returns {Promise<Api.Post<Path>>}
   */
  post: (path, body, params, intent) => call("POST", address(path, params), body ?? {}, undefined, intent),
  /**
   * @template {string} Path
   * @param {Path} path
   * @param {Api.PutBody<Path> | string} [body]
   * @param {Record<string, any>} [params]
   * @param {Intent} [intent]
   * @returns {Promise<Api.Put<Path>>}
   */
  put: (path, body, params, intent) => call("PUT", address(path, params), body ?? {}, undefined, intent),
  /** @param {string} path @param {Record<string, any>} [params] @param {Intent} [intent] @returns {Promise<any>} */
  delete: (path, params, intent) => call("DELETE", address(path, params), undefined, undefined, intent),
};

/**
 * An address with its parameters; lists are repeated, null and "" left out.
 * @param {string} path
 * @param {Record<string, any>} [params]
 */
export function address(path, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params ?? {}))
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== null && one !== undefined && one !== "") query.append(name, String(one));
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/**
 * The path of a run's part: `runPath("order-1", null, "history")`.
 * @template {string} [Part=""] @param {string} id @param {string | null | undefined} run @param {Part} [part]
 * @returns {Part extends "" ? `/api/workflows/${string}` : `/api/workflows/${string}/${Part}`}
 */
export function runPath(id, run, part) {
  const base = `/api/workflows/${encodeURIComponent(id)}${run ? `/runs/${encodeURIComponent(run)}` : ""}`;
  return /** @type {any} */ (part ? `${base}/${part}` : base);
}

/**
 * A body that is text is JSON already: forms write it themselves, since numbers above 2^53 do not survive JavaScript.
 * @param {string} method
 * @param {string} where
 * @param {any} [body]
 * @param {AbortSignal} [signal]
 * @param {Intent} [intent]
 */
async function call(method, where, body, signal, intent) {
  const name = `${api.namespace} ${where}`;
  const before = method === "GET" ? known.get(name) : undefined;
  /** @type {Record<string, string>} */
  const headers = {
    "X-Durable-Workflow-Control-Plane-Version": "2",
    "X-Namespace": api.namespace,
    "X-Workflow-Caller-Label": "waterline",
  };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (before) headers["If-None-Match"] = before.tag;
  let text = body === undefined ? null : typeof body === "string" ? body : JSON.stringify(body);
  if (intent) {
    const sent = `${where} ${text}`;
    if (intent.sent !== sent)
      Object.assign(intent, { sent, id: `waterline-${crypto.getRandomValues(new Uint32Array(4)).join("-")}` });
    headers["X-Request-Id"] = intent.id ?? "";
    // Commands to runs have it as a field.
    if (text && where.startsWith("/api/workflows/"))
      text = `{"request_id":"${intent.id}"${text === "{}" ? "" : ","}${text.slice(1)}`;
  }
  /** @type {RequestInit} */
  const request = { method, headers, signal, cache: "no-store", body: text };
  let answer;
  try {
    answer = await fetch(where, request);
    text = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    api.onReached(false);
    throw new Problem(0, "unreachable", "The server cannot be reached.");
  }
  api.onReached(true);
  if (intent && answer.status < 500) intent.sent = undefined;
  if (answer.status === 304 && before) return before.body;
  /** @type {any} */
  let found = {};
  try {
    found = text ? JSON.parse(text) : {};
  } catch {
    throw new Problem(
      answer.status,
      "unreadable",
      `The server answered ${answer.status} with something that is not JSON.`,
    );
  }
  setClock(found.generated_at);
  if (!answer.ok) {
    if (answer.status === 401) api.onSignedOut();
    throw new Problem(
      answer.status,
      found.reason ?? "error",
      found.message ?? found.error ?? `The server answered ${answer.status}.`,
      found,
    );
  }
  const tag = answer.headers.get("etag");
  if (method === "GET" && tag) {
    known.delete(name);
    known.set(name, { tag, body: found });
    for (const oldest of known.keys()) if (known.size > KNOWN) known.delete(oldest);
  }
  return found;
}

/**
 * Something that is loaded from the API and kept while it is asked for again: what a panel shows. It fails by itself,
 * and keeps what it had. `changed` is called when there is something new to show.
 * @template [T=any]
 */
export class Resource {
  /** @param {() => Promise<T>} ask @param {() => void} changed */
  constructor(ask, changed) {
    this.ask = ask;
    this.changed = changed;
    /** @type {T | null} */ this.data = null;
    /** @type {Problem | null} */ this.problem = null;
    this.loading = false;
    this.loadedAt = 0;
    this._again = false;
    this._turn = 0;
  }

  /** Load again. A call during a load causes one more load afterwards. */
  async load() {
    if (this.loading) {
      this._again = true;
      return;
    }
    this.loading = true;
    const turn = this._turn;
    try {
      const data = await this.ask();
      if (turn === this._turn) [this.data, this.problem, this.loadedAt] = [data, null, performance.now()];
    } catch (error) {
      if (turn === this._turn) this.problem = asProblem(error);
    }
    this.loading = false;
    this.changed();
    if (this._again) {
      this._again = false;
      await this.load();
    }
  }

  /** Load something else: the old data is dropped. */
  reset() {
    this._turn += 1;
    this.data = null;
    this.problem = null;
    this._again = this.loading;
    if (!this.loading) void this.load();
  }
}
