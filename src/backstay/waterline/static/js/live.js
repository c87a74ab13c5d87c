// News from the server. One stream serves all tabs of a browser: it has six connections for a server, and a
// stream takes one of them for good. The tab that holds a lock reads the stream and tells the others; when it goes, the
// next one takes over. (A shared worker would do, but its address is a string, which Trusted Types forbid.) Tabs that
// are hidden want nothing.

/**
 * @typedef {{kind: "moved" | "reload" | "open" | "lost" | "denied", namespace: string, topic?: string, data?: any}}
 * News
 */

const RETRY = [500, 1000, 2000, 4000, 8000];
const tab = crypto.getRandomValues(new Uint32Array(2)).join("-");

/** @type {(news: News) => void} */
let tell = () => {};
let namespace = "";
/** @type {string[]} */
let topics = [];
/** @type {BroadcastChannel | null} */
const others = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("dw-live");
let leading = false;
/** @type {Map<string, {namespace: string, topics: string[]}>} what each tab wants */
const wants = new Map();
/** @type {Map<string, Stream>} by namespace */
const streams = new Map();

/** Begin to listen. @param {(news: News) => void} listener */
export function listen(listener) {
  tell = listener;
  if (others) others.onmessage = (event) => heard(event.data);
  document.addEventListener("visibilitychange", want);
  addEventListener("pagehide", () => send({ kind: "want", tab, namespace, topics: [] }));
  // Without locks (no secure context) each visible tab has a stream of its own.
  if (navigator.locks && others) void navigator.locks.request("dw-live", () => new Promise(() => lead()));
  else lead();
}

/** Set the topics that this tab shows. @param {string} inNamespace @param {string[]} of */
export function follow(inNamespace, of) {
  if (inNamespace === namespace && of.join("\n") === topics.join("\n")) return;
  [namespace, topics] = [inNamespace, of];
  want();
}

function want() {
  const wanted = { namespace, topics: document.visibilityState === "visible" ? topics : [] };
  wants.set(tab, wanted);
  send({ kind: "want", tab, ...wanted });
  if (leading) settle();
}

function lead() {
  leading = true;
  send({ kind: "who" });
  want();
}

/** @param {any} message */
function send(message) {
  others?.postMessage(message);
}

/** @param {any} message */
function heard(message) {
  if (message.kind === "news") tell(message.news);
  else if (message.kind === "who") want();
  else if (message.kind === "want" && leading) {
    if (message.topics.length) wants.set(message.tab, { namespace: message.namespace, topics: message.topics });
    else wants.delete(message.tab);
    settle();
  }
}

/** Make the streams fit what all tabs want. */
function settle() {
  /** @type {Map<string, Set<string>>} */
  const wanted = new Map();
  for (const one of wants.values())
    for (const topic of one.topics) wanted.set(one.namespace, (wanted.get(one.namespace) ?? new Set()).add(topic));
  for (const [name, stream] of streams)
    if (!wanted.has(name)) {
      stream.end();
      streams.delete(name);
    }
  for (const [name, of] of wanted) {
    const stream = streams.get(name) ?? new Stream(name);
    streams.set(name, stream);
    stream.follow([...of].sort());
  }
}

/** @param {News} news */
function publish(news) {
  tell(news);
  send({ kind: "news", news });
}

/**
 * The stream of one namespace. It is opened again when its topics change, when it ends, and when it says nothing for
 * too long.
 */
class Stream {
  /** @param {string} of */
  constructor(of) {
    this.namespace = of;
    /** @type {string[]} */ this.topics = [];
    // Topics of runs and operations that do not exist, until no tab wants them.
    /** @type {Set<string>} */ this.gone = new Set();
    this.last = "";
    this.failures = 0;
    /** @type {AbortController | null} */ this.reading = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */ this.timer = undefined;
  }

  /** @param {string[]} of */
  follow(of) {
    if (of.join("\n") === this.topics.join("\n")) return;
    this.topics = of;
    this.gone = new Set([...this.gone].filter((topic) => of.includes(topic)));
    this.last = ""; // other topics: what was missed in between is not known, so readers load
    this.again(30);
  }

  end() {
    clearTimeout(this.timer);
    this.reading?.abort();
    this.reading = null;
    this.topics = [];
  }

  /** @param {number} after */
  again(after) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.read(), after);
  }

  async read() {
    this.reading?.abort();
    const topics = this.topics.filter((topic) => !this.gone.has(topic));
    if (topics.length === 0) return;
    const reading = (this.reading = new AbortController());
    const query = new URLSearchParams(topics.map((topic) => ["topic", topic]));
    query.set("namespace", this.namespace);
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let silence;
    try {
      const answer = await fetch(`/api/live?${query}`, {
        headers: { "X-Namespace": this.namespace, ...(this.last ? { "Last-Event-ID": this.last } : {}) },
        signal: reading.signal,
        cache: "no-store",
      });
      if (!answer.ok || !answer.body) {
        if (answer.status === 401) publish({ kind: "denied", namespace: this.namespace });
        if (answer.status === 404) {
          // A topic that no longer exists is not requested again, and its screen says so. The other topics continue.
          const { reason, workflow_id: id } = await answer.json();
          const gone = topics.filter((topic) =>
            reason === "bulk_not_found" ? topic.startsWith("bulk:") : topic === `run:${id}`,
          );
          for (const topic of gone) this.gone.add(topic);
          if (gone.length) return void this.again(0);
        }
        throw new Error(`status ${answer.status}`);
      }
      this.failures = 0;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        clearTimeout(silence);
        silence = setTimeout(() => reading.abort("silent"), 40_000);
        const { value, done } = await reader.read();
        if (done) break;
        rest += value;
        const frames = rest.split("\n\n");
        rest = frames.pop() ?? "";
        for (const frame of frames) this.frame(frame);
      }
    } catch {
      if (this.reading !== reading) return;
    } finally {
      clearTimeout(silence);
    }
    if (this.reading !== reading || this.topics.length === 0) return;
    this.failures += 1;
    publish({ kind: "lost", namespace: this.namespace });
    this.again(RETRY[Math.min(this.failures, RETRY.length) - 1] ?? 8000);
  }

  /** @param {string} frame */
  frame(frame) {
    let kind = "";
    let data = "";
    for (const line of frame.split("\n"))
      if (line.startsWith("id: ")) this.last = line.slice(4);
      else if (line.startsWith("event: ")) kind = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    if (kind !== "moved" && kind !== "reload" && kind !== "open") return;
    const found = data ? JSON.parse(data) : {};
    publish({ kind, namespace: this.namespace, topic: found.topic, data: found });
  }
}
