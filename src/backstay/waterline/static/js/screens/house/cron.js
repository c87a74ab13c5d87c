// Cron expressions in words, for the shapes that people write most. Any other shape is shown as it is.

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  "January",
  "February",
  "March",
  "April",
  "May",
  "June",
  "July",
  "August",
  "September",
  "October",
  "November",
  "December",
];
const NAMED = /** @type {Record<string, string>} */ ({
  "@hourly": "0 * * * *",
  "@daily": "0 0 * * *",
  "@midnight": "0 0 * * *",
  "@weekly": "0 0 * * 0",
  "@monthly": "0 0 1 * *",
  "@yearly": "0 0 1 1 *",
  "@annually": "0 0 1 1 *",
});

/** @param {string} text */
const pad = (text) => text.padStart(2, "0");
/** `a`, `a and b`, `a, b and c` @param {string[]} all */
const listed = (all) => (all.length > 1 ? `${all.slice(0, -1).join(", ")} and ${all.at(-1)}` : (all[0] ?? ""));
/** Whether a field is plain numbers: `9` or `9,17`. @param {string} field */
const plain = (field) => /^\d+(,\d+)*$/.test(field);

/**
 * A field of numbers or names as names, or null.
 * @param {string} field
 * @param {string[]} names
 * @param {number} first the number of the first name
 */
function namesOf(field, names, first) {
  const found = field
    .split(",")
    .map(
      (one) =>
        names[
          /^\d+$/.test(one)
            ? (Number(one) - first) % (first ? 99 : 7)
            : names.findIndex((name) => name.slice(0, 3).toLowerCase() === one.toLowerCase())
        ],
    );
  return found.every((name) => name !== undefined) ? listed(/** @type {string[]} */ (found)) : null;
}

/** On which days, or null if that is not sure. @param {string} day @param {string} month @param {string} weekday */
function days(day, month, weekday) {
  if (weekday !== "*" && (day !== "*" || month !== "*")) return null; // two rules at once: either of them counts
  if (/^(1-5|mon-fri)$/i.test(weekday)) return "every weekday";
  if (weekday !== "*") {
    const named = namesOf(weekday, DAYS, 0);
    return named && `every ${named}`;
  }
  const months = month === "*" ? "every month" : namesOf(month, MONTHS, 1);
  if (day === "*") return month === "*" ? "every day" : months && `every day of ${months}`;
  return months && plain(day) ? `on day ${listed(day.split(","))} of ${months}` : null;
}

/**
 * A cron expression in words, like "every weekday at 09:00"; null if it has another shape.
 * @param {string} expression
 * @returns {string | null}
 */
export function cronWords(expression) {
  const [minute = "", hour = "", day = "", month = "", weekday = "", more] = (
    NAMED[expression.trim()] ?? expression.trim()
  ).split(/\s+/);
  if (!weekday || more !== undefined) return null;
  const on = days(day, month, weekday);
  if (!on) return null;
  const when = on === "every day" ? "" : `, ${on}`;
  const step = /^\*\/(\d+)$/.exec(minute)?.[1];
  if (hour === "*" && minute === "*") return `every minute${when}`;
  if (hour === "*" && Number(step) > 1 && 60 % Number(step) === 0) return `every ${step} minutes${when}`;
  if (!plain(minute)) return null;
  const steps = /^\*\/(\d+)$/.exec(hour)?.[1];
  const past = minute === "0" ? "on the hour" : `at ${listed(minute.split(",").map((one) => `:${pad(one)}`))}`;
  if (hour === "*") return `every hour ${past}${when}`;
  if (Number(steps) > 1 && 24 % Number(steps) === 0) return `every ${steps} hours ${past}${when}`;
  if (!plain(hour) || minute.includes(",")) return null;
  return `${on} at ${listed(hour.split(",").map((one) => `${pad(one)}:${pad(minute)}`))}`;
}
