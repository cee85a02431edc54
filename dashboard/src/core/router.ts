// The address after `#` names the page and its filters, so that a view can be sent to a colleague. The paths of the
// server stay those of its API: a wrong one is a 404, not a page.
import { computed, signal } from "@preact/signals";

export interface Place {
  /** The parts of the path: `#/tasks/task-7` is ["tasks", "task-7"]. */
  parts: string[];
  query: URLSearchParams;
}

function read(hash: string): Place {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts, query: new URLSearchParams(query) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const place = signal<Place>(read(location.hash));
export const page = computed(() => place.value.parts[0] ?? "overview");

addEventListener("hashchange", () => {
  place.value = read(location.hash);
});

export type Query = Record<string, string | number | null | undefined>;

/** The address of a page; empty values are left out. */
export function to(parts: string | string[], query: Query = {}): string {
  const path = (typeof parts === "string" ? [parts] : parts).map(encodeURIComponent).join("/");
  const kept = Object.entries(query).filter(([, value]) => value != null && value !== "");
  const text = new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

export function go(address: string): void {
  location.hash = address;
}

/** Change filters of the current page without a new entry in the history of the browser. */
export function refine(changes: Query): void {
  const { parts, query } = place.value;
  const all: Query = { ...Object.fromEntries(query), ...changes };
  history.replaceState(null, "", to(parts.length ? parts : ["overview"], all));
  place.value = read(location.hash);
}
