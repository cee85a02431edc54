// Two catalogs of the same type: a missing or a surplus entry does not compile.
import { computed } from "@preact/signals";
import { lang } from "../core/settings";
import { en } from "./en";
import { zh } from "./zh";

export type Catalog = typeof en;
export const t = computed<Catalog>(() => (lang.value === "zh" ? zh : en));

/** A sentence of the server about a reason or an error, by its code in Chinese; the server speaks English. */
export function said(code: string | null | undefined, sentence: string | null | undefined): string {
  const known = code ? t.value.codes[code] : undefined;
  return (typeof known === "function" ? known(sentence ?? "") : known) ?? sentence ?? "";
}

/** What lets a task start that no node or quota of the cluster can hold, empty if its reason says it; null if one can. */
export function adviceOf(code: string | null | undefined): string | null {
  return code ? (t.value.advice[code] ?? null) : null;
}

/** A priority as a number, or one of the words that the scheduler knows. */
export function priorityWord(priority: string | number): string {
  return typeof priority === "string" ? (t.value.priorities[priority] ?? priority) : String(priority);
}

export interface Told {
  event: string;
  text: string;
  task_id?: string | null;
  node_id?: string | null;
  attempt?: number | null;
}

/** What happened: the sentence of the server in English, the one of the catalog in Chinese. */
export function eventSaid(one: Told): string {
  const known = t.value.events[one.event];
  return known ? known(one.node_id ?? "", one.attempt ?? null, one.text) : one.text || one.event;
}
