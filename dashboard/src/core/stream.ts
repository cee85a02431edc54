// Follow the live stream of the server. EventSource repeats by itself after a network fault, but gives up for good
// after an error status and does not tell it, so that case is repeated here.

export type Told = { kind: "snapshot" | "sample"; data: string } | { kind: "up" | "down" };

const PAUSES_MS = [500, 1000, 2000, 4000, 8000, 15_000];
const SILENCE_MS = 20_000;

export function follow(tell: (told: Told) => void): { again: () => void; pause: () => void } {
  let source: EventSource | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let silence: ReturnType<typeof setTimeout> | undefined;
  let failures = 0;

  function close(): void {
    clearTimeout(timer);
    clearTimeout(silence);
    source?.close();
    source = null;
  }

  function lost(): void {
    close();
    tell({ kind: "down" });
    timer = setTimeout(open, PAUSES_MS[Math.min(failures++, PAUSES_MS.length - 1)]);
  }

  function heard(): void {
    failures = 0;
    clearTimeout(silence);
    silence = setTimeout(lost, SILENCE_MS);
  }

  function open(): void {
    close();
    const opened = (source = new EventSource("/api/v1/live"));
    opened.onopen = () => {
      heard();
      tell({ kind: "up" });
    };
    for (const kind of ["snapshot", "sample"] as const)
      opened.addEventListener(kind, (event) => {
        heard();
        tell({ kind, data: (event as MessageEvent<string>).data });
      });
    opened.onerror = lost;
  }

  return {
    again() {
      if (source === null || source.readyState === EventSource.CLOSED) {
        failures = 0;
        open();
      }
    },
    pause: close,
  };
}
