// Two catalogs of the same type: a missing or a surplus entry does not compile.
import { computed } from "@preact/signals";
import { lang } from "../core/settings";
import { en } from "./en";
import { zh } from "./zh";

export type Catalog = typeof en;
export const t = computed<Catalog>(() => (lang.value === "zh" ? zh : en));

/** A sentence of the server about a reason or an error, by its code in Chinese; the server speaks English. */
export function said(code: string | null | undefined, sentence: string | null | undefined): string {
  const known = code ? (t.value.codes as Record<string, string>)[code] : undefined;
  return known ?? sentence ?? "";
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
