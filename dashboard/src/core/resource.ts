// Data that a page shows and keeps current: asked once, again at an interval, and again when the server is back. While
// a new answer is awaited the last one stays on the page; before the first one there is a skeleton, never a zero.
import { type Signal, signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { ApiError, get, loginNeeded } from "./api";

export interface Resource<T> {
  data: Signal<T | null>;
  error: Signal<ApiError | null>;
  loading: Signal<boolean>;
  refresh: () => void;
}

const AGAIN_MS = [500, 1000, 2000, 4000, 8000];

/** `path` null: ask nothing. `everyMs` 0: ask once. Not while the tab is hidden. */
export function useResource<T>(path: string | null, everyMs = 0): Resource<T> {
  const resource = useMemo(() => {
    const data = signal<T | null>(null);
    const error = signal<ApiError | null>(null);
    const loading = signal(false);
    return { data, error, loading, refresh: () => {}, path: "" };
  }, []);

  useEffect(() => {
    if (path === null) return;
    if (pathBase(resource.path) !== pathBase(path)) resource.data.value = null;
    resource.path = path;
    let timer = 0;
    let failures = 0;
    let stop = new AbortController();
    const ask = async (): Promise<void> => {
      clearTimeout(timer);
      stop.abort();
      const mine = (stop = new AbortController());
      resource.loading.value = true;
      let next = everyMs;
      try {
        const told = await get<T>(path, mine.signal);
        if (mine.signal.aborted) return;
        resource.data.value = told;
        resource.error.value = null;
        failures = 0;
      } catch (problem) {
        if (mine.signal.aborted) return;
        const error = problem instanceof ApiError ? problem : new ApiError(0, "Unreadable", String(problem));
        resource.error.value = error;
        if (error.away || error.status === 429) next = Math.max(AGAIN_MS[Math.min(failures++, 4)]!, error.retryAfter * 1000);
        else if (error.status >= 400 && error.status !== 401) next = 0;
      }
      resource.loading.value = false;
      if (next) timer = window.setTimeout(due, next);
    };
    const due = (): void => {
      if (!document.hidden && !loginNeeded.value) void ask();
      else timer = window.setTimeout(due, Math.max(everyMs, 500));
    };
    const seen = (): void => {
      if (!document.hidden && everyMs) due();
    };
    resource.refresh = () => void ask();
    void ask();
    document.addEventListener("visibilitychange", seen);
    return () => {
      clearTimeout(timer);
      stop.abort();
      document.removeEventListener("visibilitychange", seen);
    };
  }, [path, everyMs]);
  return resource;
}

function pathBase(path: string): string {
  return path.split("?", 1)[0] ?? "";
}
