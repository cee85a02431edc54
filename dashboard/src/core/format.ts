// Numbers, durations and instants in the language of the page.
import { computed } from "@preact/signals";
import { visible } from "./ansi";
import { lang } from "./settings";

const locale = computed(() => (lang.value === "zh" ? "zh-CN" : "en-US"));
const whole = computed(() => new Intl.NumberFormat(locale.value, { maximumFractionDigits: 0 }));
const tenths = computed(() => new Intl.NumberFormat(locale.value, { maximumFractionDigits: 1 }));
const clock = computed(() => new Intl.DateTimeFormat(locale.value, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false }));
const day = computed(() => new Intl.DateTimeFormat(locale.value, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false }));
const full = computed(() => new Intl.DateTimeFormat(locale.value, { dateStyle: "medium", timeStyle: "medium", hour12: false }));

/** What is unknown is a dash, never a zero. */
export const NONE = "–";

export function number(value: number | null | undefined, digits = 0): string {
  if (value == null || Number.isNaN(value)) return NONE;
  return (digits || !Number.isInteger(value) ? tenths : whole).value.format(value);
}

/** A measured value: three significant digits, at most one after the point from 1 on. */
export function rounded(value: number): string {
  return Math.abs(value) >= 1 || value === 0 ? tenths.value.format(value) : String(Number(value.toPrecision(2)));
}

export function percent(value: number | null | undefined): string {
  return value == null ? NONE : `${whole.value.format(value)}%`;
}

export function mebibytes(value: number | null | undefined): string {
  if (value == null) return NONE;
  return value >= 1024 ? `${tenths.value.format(value / 1024)} GiB` : `${whole.value.format(value)} MiB`;
}

export function watts(value: number | null | undefined): string {
  if (value == null) return NONE;
  return value >= 10_000 ? `${tenths.value.format(value / 1000)} kW` : `${whole.value.format(value)} W`;
}

/** 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return NONE;
  const zh = lang.value === "zh";
  const units: [number, string][] = zh
    ? [[86_400, " 天"], [3600, " 小时"], [60, " 分钟"], [1, " 秒"]]
    : [[86_400, " d"], [3600, " h"], [60, " min"], [1, " s"]];
  let rest = Math.max(0, Math.round(seconds));
  if (rest === 0) return seconds > 0 ? (zh ? "不到 1 秒" : "< 1 s") : zh ? "0 秒" : "0 s";
  const parts: string[] = [];
  for (const [size, word] of units) {
    const count = Math.floor(rest / size);
    if (count > 0 || (parts.length > 0 && size === 1 && rest > 0)) {
      if (count > 0) parts.push(`${count}${word}`);
      rest -= count * size;
    } else if (parts.length === 1) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

export function millis(at: string | number | null | undefined): number | null {
  if (at == null) return null;
  const value = typeof at === "number" ? at * 1000 : Date.parse(at);
  return Number.isNaN(value) ? null : value;
}

/** The time of today, or with the day if it is another one. */
export function instant(at: string | number | null | undefined): string {
  const value = millis(at);
  if (value === null) return NONE;
  const date = new Date(value);
  return (date.toDateString() === new Date().toDateString() ? clock : day).value.format(date);
}

export function exact(at: string | number | null | undefined): string {
  const value = millis(at);
  return value === null ? NONE : full.value.format(new Date(value));
}

export function secondsSince(at: string | number | null | undefined, until: string | null = null): number | null {
  const from = millis(at);
  if (from === null) return null;
  return Math.max(0, ((millis(until) ?? Date.now()) - from) / 1000);
}

/** An instant with the range it lies in; the range only if it is one. */
export function band(likely: string, low: string | null, high: string | null, words: (low: string, high: string) => string): string {
  const [at, from, until] = [instant(likely), instant(low), instant(high)];
  return low && high && from !== until ? `${at} (${words(from, until)})` : at;
}

const UNIT_SECONDS: Record<string, number> = { ms: 0.001, s: 1, m: 60, h: 3600, d: 86_400 };

/** A duration as the command line reads it: 90, 90s, 30m, 1h30m. Null: it is none. */
export function secondsOf(text: string): number | null {
  const trimmed = text.trim();
  if (/^\d+(\.\d+)?$/.test(trimmed)) return Number(trimmed);
  if (!/^(\d+(\.\d+)?(ms|[smhd]))+$/.test(trimmed)) return null;
  let sum = 0;
  for (const [, count, unit] of trimmed.matchAll(/(\d+(?:\.\d+)?)(ms|[smhd])/g)) sum += Number(count) * UNIT_SECONDS[unit!]!;
  return Math.round(sum * 1000) / 1000;
}

/** A word as a POSIX shell reads it. */
export const quoted = (word: string): string => (/^[\w./:=@%+,-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

export function ago(at: string | number | null | undefined): string {
  const seconds = secondsSince(at);
  if (seconds === null) return NONE;
  return lang.value === "zh" ? `${duration(seconds)}前` : `${duration(seconds)} ago`;
}

/** GPUs of a request: a share or a number. */
export function gpusAsked(task: { gpu_count: number; gpu_fraction?: number | null; nodes?: number }): string {
  if (task.gpu_fraction) return number(task.gpu_fraction, 1);
  return (task.nodes ?? 1) > 1 ? `${task.gpu_count} × ${task.nodes}` : String(task.gpu_count);
}

/** The name of a task, or its id. Names are text of users: at most 200 characters of it, and no mark that reorders it. */
export function nameOf(task: { id: string; name?: string | null }): string {
  return visible((task.name ?? "").slice(0, 200)) || task.id;
}

/** The name of a task, or the beginning of its command, or its id. */
export function titleOf(task: { id: string; name?: string | null; command?: string | string[] | null }): string {
  const command = Array.isArray(task.command) ? task.command.map(quoted).join(" ") : (task.command ?? "");
  return task.name ? nameOf(task) : visible(command.length > 80 ? `${command.slice(0, 80)}…` : command) || task.id;
}
