// Times and sizes in words, in the format of `dw`. The clock is the server's.

const UNITS = [
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["min", 60_000],
  ["s", 1000],
];

/** A length of time: `62 ms`, `1.8 s`, `12 min`, `3 d 4 h`. @param {number | null | undefined} ms */
export function span(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  const size = Math.abs(ms);
  if (size < 1) return size === 0 ? "0 ms" : "< 1 ms";
  if (size < 1000) return `${Math.round(size)} ms`;
  if (size < 10_000) return `${(Math.floor(size / 100) / 10).toFixed(1)} s`;
  for (let at = 0; at < UNITS.length; at++) {
    const [name, unit] = /** @type {[string, number]} */ (UNITS[at]);
    if (size < unit) continue;
    const whole = Math.floor(size / unit);
    const next = /** @type {[string, number] | undefined} */ (UNITS[at + 1]);
    const rest = next && whole < 10 ? Math.floor((size - whole * unit) / next[1]) : 0;
    return rest > 0 && next ? `${whole} ${name} ${rest} ${next[0]}` : `${whole} ${name}`;
  }
  return "0 ms";
}

let offset = 0;
let known = false;
/** The server's clock in milliseconds. */
export const now = () => (known ? performance.now() + offset : Date.now());
/**
 * Set the clock by an answer. Replies take time, so the latest clock of all replies is the most accurate.
 * @param {string | undefined} generated
 */
export function setClock(generated) {
  const at = generated ? Date.parse(generated) : NaN;
  if (Number.isNaN(at)) return;
  const seen = at - performance.now();
  if (!known || seen > offset || offset - seen > 5000) offset = seen;
  known = true;
}

let absolute = false;
try {
  absolute = localStorage.getItem("dw-absolute") === "1";
} catch {
  /* storage is off */
}
export const isAbsolute = () => absolute;
/** Show exact times instead of relative ones. @param {boolean} on */
export function setAbsolute(on) {
  absolute = on;
  try {
    localStorage.setItem("dw-absolute", on ? "1" : "0");
  } catch {
    /* storage is off */
  }
}

const pad = (/** @type {number} */ n, width = 2) => String(n).padStart(width, "0");
/** A time with its offset: `2026-11-17 07:12:04.120 +01:00`. @param {string | number | null | undefined} time */
export function exact(time) {
  const at = new Date(time ?? NaN);
  if (Number.isNaN(at.getTime())) return "–";
  const zone = -at.getTimezoneOffset();
  const sign = zone < 0 ? "-" : "+";
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
  return `${day} ${clock} ${sign}${pad(Math.floor(Math.abs(zone) / 60))}:${pad(Math.abs(zone) % 60)}`;
}

/** How long ago, or in how long. @param {string | number | null | undefined} time */
export function relative(time) {
  const at = typeof time === "number" ? time : Date.parse(time ?? "");
  if (Number.isNaN(at)) return "–";
  const ms = now() - at;
  if (Math.abs(ms) < 1000) return "now";
  return ms < 0 ? `in ${span(ms)}` : `${span(ms)} ago`;
}

const numbers = new Intl.NumberFormat("en-US"); // made once: it is slow to make
/** @param {number | null | undefined} n */
export const count = (n) => (n === null || n === undefined ? "–" : numbers.format(n));
/** @param {number} n @param {string} one @param {string} [many] */
export const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : (many ?? `${one}s`)}`;
/** @param {number | null | undefined} n */
export function bytes(n) {
  if (n === null || n === undefined) return "–";
  if (n < 1024) return `${n} B`;
  if (n < 1 << 20) return `${(n / 1024).toFixed(1)} KB`;
  return `${(n / (1 << 20)).toFixed(1)} MB`;
}
