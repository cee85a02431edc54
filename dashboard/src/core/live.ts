// The state of the cluster, a second old at most: counters, and per card its state, utilization, memory, temperature,
// power and holder. All tabs share one stream through a SharedWorker; without one, a tab streams while it is visible.
import { batch, signal } from "@preact/signals";
import workerUrl from "./live.worker.ts?sharedworker&url";
import { askSession, loginNeeded } from "./api";
import { follow, type Told } from "./stream";
import type { Card, Counts, Snapshot } from "./types";

/** Bytes a card: state, utilization, memory, temperature, power (two). */
export const CARD_BYTES = 6;
export const UNKNOWN = 255;
export const UNKNOWN_POWER = 65_535;

export interface Cards {
  generation: number;
  cards: Card[];
  samples: Uint8Array;
  holders: (string | null)[];
}

export const counts = signal<Counts | null>(null);
export const cards = signal<Cards | null>(null);
/** More tasks changed than the stream lists. */
export const EVERY_TASK = "*";
/** Tasks that changed in the last second; a new array each time. */
export const changedTasks = signal<string[]>([]);
/** Null: not connected yet. */
export const connected = signal<boolean | null>(null);
/** The server was upgraded: this tab runs old code. */
export const outdated = signal(false);

let build: string | null = null;
let index = new Map<string, number>();

function bytesOf(text: string): Uint8Array {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

function hear(told: Told): void {
  if (told.kind === "up") {
    connected.value = true;
  } else if (told.kind === "down") {
    connected.value = false;
    askSession().catch(() => {});
  } else if ("data" in told) {
    const data = JSON.parse(told.data) as Partial<Snapshot> & Counts;
    batch(() => {
      connected.value = true;
      counts.value = { gpus: data.gpus, tasks: data.tasks, nodes: data.nodes, alerts: data.alerts };
      if (data.build) {
        build ??= data.build;
        if (build !== data.build) outdated.value = true;
      }
      const last = cards.value;
      if (told.kind === "snapshot" && data.cards) {
        index = new Map(data.cards.map((card, at) => [card.gpu_id, at]));
        cards.value = {
          generation: data.generation ?? 0,
          cards: data.cards,
          samples: bytesOf(data.samples ?? ""),
          holders: data.holders ?? [],
        };
      } else if (last && data.samples !== undefined) {
        cards.value = { ...last, samples: bytesOf(data.samples), holders: data.holders ?? last.holders };
      }
      if (data.changed_more) changedTasks.value = [EVERY_TASK];
      else if (data.changed_tasks?.length) changedTasks.value = data.changed_tasks;
    });
  }
}

export interface Sample {
  state: number;
  utilization: number | null;
  memory: number | null;
  temperature: number | null;
  power: number | null;
  holder: string | null;
}

export function sampleAt(all: Cards, at: number): Sample {
  const from = at * CARD_BYTES;
  const byte = (offset: number): number | null => {
    const value = all.samples[from + offset];
    return value === undefined || value === UNKNOWN ? null : value;
  };
  const power = (all.samples[from + 4] ?? UNKNOWN) | ((all.samples[from + 5] ?? UNKNOWN) << 8);
  return {
    state: all.samples[from] ?? 3,
    utilization: byte(1),
    memory: byte(2),
    temperature: byte(3),
    power: power === UNKNOWN_POWER ? null : power,
    holder: all.holders[at] ?? null,
  };
}

export function cardIndex(gpu: string): number {
  return index.get(gpu) ?? -1;
}

let again: () => void = () => {};

/** Begin to follow; called once. */
export function startLive(): void {
  if (typeof SharedWorker === "function") {
    // Workers are a sink of Trusted Types: the one policy of the page lets exactly this script pass.
    const policy = window.trustedTypes?.createPolicy("gpuyard-worker", {
      createScriptURL: (url) => {
        if (url !== workerUrl) throw new TypeError("not the worker of this page");
        return url;
      },
    });
    const url = (policy ? policy.createScriptURL(workerUrl) : workerUrl) as string;
    const worker = new SharedWorker(url, { type: "module", name: `gpuyard ${workerUrl}` });
    worker.port.onmessage = (event: MessageEvent<Told>) => hear(event.data);
    addEventListener("pagehide", () => worker.port.postMessage("bye"));
    addEventListener("pageshow", (event) => {
      if (event.persisted) location.reload();
    });
    again = () => worker.port.postMessage("again");
  } else {
    const stream = follow(hear);
    again = stream.again;
    document.addEventListener("visibilitychange", () => (document.hidden ? stream.pause() : stream.again()));
    stream.again();
  }
}

/** After a login: open the stream at once. */
export function followAgain(): void {
  if (!loginNeeded.value) again();
}
