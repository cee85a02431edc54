// Rows of the task list, fetched by pages as the table comes near them. At most 60 pages are kept.
import { signal } from "@preact/signals";
import { ApiError, get } from "./api";
import { EVERY_TASK } from "./live";
import type { TaskPage, TaskRow } from "./types";

const PAGE = 200;
const MOST_PAGES = 60;
const FARTHEST = 1_000_000;

export class TaskRows {
  /** Null: not known yet. */
  readonly total = signal<number | null>(null);
  readonly error = signal<ApiError | null>(null);
  /** Increases whenever rows arrive, so that the table is drawn again. */
  readonly version = signal(0);
  private pages = new Map<number, TaskRow[]>();
  private asked = new Set<number>();
  private places = new Map<string, [number, number]>();
  private stop = new AbortController();
  private stale = new Set<number>();
  private wanted: [number, number] = [0, 0];
  private timer = 0;

  constructor(private readonly filters: string) {}

  row(index: number): TaskRow | undefined {
    return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  need(first: number, last: number): void {
    this.wanted = [first, last];
    const from = Math.floor(first / PAGE);
    const until = Math.floor(Math.max(first, last - 1) / PAGE);
    for (let page = from; page <= until; page++) void this.fetch(page);
    const ahead = Math.floor((last + PAGE / 2) / PAGE);
    if (ahead > until && ahead * PAGE < (this.total.value ?? 0)) void this.fetch(ahead);
  }

  /** Tasks changed: fetch the pages that show them again, and the first one for new tasks. */
  changed(ids: string[]): void {
    let any = false;
    for (const id of ids) {
      const at = this.places.get(id);
      if (id === EVERY_TASK) {
        for (const page of this.pages.keys()) this.stale.add(page);
        any = true;
      } else if (at) {
        this.stale.add(at[0]);
        any = true;
      } else if (this.wanted[0] < PAGE) {
        this.stale.add(0);
        any = true;
      }
    }
    if (any && !this.timer)
      this.timer = window.setTimeout(() => {
        this.timer = 0;
        for (const page of this.stale) this.asked.delete(page);
        const seen = [...this.stale].filter((page) => (page + 1) * PAGE > this.wanted[0] && page * PAGE < this.wanted[1]);
        this.stale.clear();
        for (const page of seen.length ? seen : [0]) {
          this.asked.delete(page);
          void this.fetch(page);
        }
      }, 700);
  }

  refresh(): void {
    this.asked.clear();
    this.need(...this.wanted);
  }

  close(): void {
    clearTimeout(this.timer);
    this.stop.abort();
  }

  private async fetch(page: number): Promise<void> {
    if (this.asked.has(page) || page * PAGE > FARTHEST) return;
    this.asked.add(page);
    try {
      const query = `limit=${PAGE}&fields=summary${page ? `&offset=${page * PAGE}` : ""}${this.filters ? `&${this.filters}` : ""}`;
      const told = await get<TaskPage>(`tasks?${query}`, this.stop.signal);
      this.pages.delete(page);
      this.pages.set(page, told.tasks);
      told.tasks.forEach((task, i) => this.places.set(task.id, [page, i]));
      if (this.pages.size > MOST_PAGES) {
        const oldest = this.pages.keys().next().value!;
        this.pages.delete(oldest);
        this.asked.delete(oldest);
      }
      this.error.value = null;
      this.total.value = told.total;
      this.version.value++;
    } catch (problem) {
      if (this.stop.signal.aborted) return;
      this.asked.delete(page);
      const error = problem instanceof ApiError ? problem : new ApiError(0, "Unreadable", String(problem));
      this.error.value = error;
      if (error.away) window.setTimeout(() => !this.stop.signal.aborted && void this.fetch(page), 2000);
    }
  }
}
