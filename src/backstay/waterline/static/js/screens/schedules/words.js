// Schedules, words: how a schedule is named, where it stands, and when it fires.

import { badge } from "../../parts.js";
import { now } from "../../words.js";
import { cronWords } from "../house/cron.js";

const LATE = 60_000; // an engine that runs fires within milliseconds

/** @param {string} id */
export const address = (id) => `/waterline/schedules/${encodeURIComponent(id)}`;
/** @param {Api.ScheduleAnswer} schedule */
export const state = (schedule) =>
  schedule.paused
    ? badge("paused")
    : Date.parse(schedule.next_fire_at ?? "") < now() - LATE
      ? badge("overdue")
      : schedule.status;
/** When it fires, as it is written. @param {Api.ScheduleAnswer} schedule */
export const when = ({ spec }) =>
  [
    ...spec.cron_expressions,
    ...spec.intervals.map((/** @type {any} */ one) => `every ${one.every}${one.offset ? ` + ${one.offset}` : ""}`),
  ].join("; ");

/** The same in words, if they are sure, and in which time zone. @param {{spec: any}} schedule */
export const inWords = ({ spec }) =>
  [...spec.cron_expressions.map(cronWords), spec.timezone].filter(Boolean).join(", ");
