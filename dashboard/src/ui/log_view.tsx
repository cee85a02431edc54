// The output of a task as it is written. Lines are appended to the document directly: a task may write thousands a
// second. The last 5,000 are shown, and 8 kB of each; all of it can be searched on its node and downloaded.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { ApiError, get } from "../core/api";
import { AnsiReader, LineSplitter, overwritten } from "../core/ansi";
import { number } from "../core/format";
import { ENDED, type Task } from "../core/types";
import { said, t } from "../i18n";
import { Icon } from "./icons";
import { Select } from "./kit";

const MOST_LINES = 5000;
const TAIL_BYTES = 256 * 1024;

interface Found {
  matches: { offset: number; line: number | null; text: string }[];
  next_offset: number | null;
  truncated: boolean;
}

export function LogView({ task }: { task: Task }) {
  const words = t.value.task;
  const box = useRef<HTMLDivElement>(null);
  const follow = useSignal(true);
  const wrap = useSignal(true);
  const attempt = useSignal("");
  const node = useSignal("");
  const from = useSignal<number | null>(null);
  const note = useSignal<string | null>(null);
  const lines = useSignal(0);
  const text = useSignal("");
  const found = useSignal<Found | null>(null);
  const searching = useSignal(false);
  const searchProblem = useSignal<string | null>(null);
  const ended = ENDED.includes(task.status);
  const base = `tasks/${task.id}/logs`;
  const chosen = new URLSearchParams({ ...(attempt.value ? { attempt: attempt.value } : {}), ...(node.value ? { node: node.value } : {}) });

  useEffect(() => {
    const view = box.current;
    if (!view || task.attempts === 0) return;
    let stop = new AbortController();
    let timer = 0;
    const read = async (): Promise<void> => {
      const mine = (stop = new AbortController());
      view.replaceChildren();
      lines.value = 0;
      const asked = new URLSearchParams(chosen);
      if (from.value === null) asked.set("tail", String(TAIL_BYTES));
      else {
        asked.set("offset", String(from.value));
        asked.set("limit", String(TAIL_BYTES));
      }
      if (from.value === null && !ended) asked.set("follow", "true");
      try {
        const answer = await fetch(`/api/v1/${base}?${asked}`, { signal: mine.signal, credentials: "same-origin" });
        if (!answer.ok) throw await problemOf(answer);
        note.value = null;
        await append(view, answer.body!.getReader(), follow, (count) => (lines.value = count));
      } catch (problem) {
        if (mine.signal.aborted) return;
        const error = problem instanceof ApiError ? problem : new ApiError(0, "Unreachable", "");
        note.value = error.code === "NodeUnreachable" || error.away ? words.logAway : error.code === "NoOutput" ? words.logGone : said(error.code, error.message);
        if (error.away) timer = window.setTimeout(() => void read(), 3000);
      }
    };
    const seen = (): void => {
      clearTimeout(timer);
      if (document.hidden) stop.abort();
      else void read();
    };
    void read();
    document.addEventListener("visibilitychange", seen);
    return () => {
      clearTimeout(timer);
      stop.abort();
      document.removeEventListener("visibilitychange", seen);
    };
  }, [task.id, task.attempts === 0, attempt.value, node.value, from.value]);

  const search = async (offset: number): Promise<void> => {
    if (!text.value.trim()) return void (found.value = null);
    searching.value = true;
    searchProblem.value = null;
    const asked = new URLSearchParams(chosen);
    asked.set("search", text.value);
    if (offset) asked.set("offset", String(offset));
    try {
      const told = await get<Found>(`${base}?${asked}`);
      found.value = offset && found.value ? { ...told, matches: [...found.value.matches, ...told.matches] } : told;
    } catch (problem) {
      const error = problem as ApiError;
      searchProblem.value = error.code === "UnknownParameter" ? t.value.common.missing : said(error.code, error.message);
      found.value = null;
    } finally {
      searching.value = false;
    }
  };

  if (task.command === null) return <p class="note-line">{words.lease}</p>;
  if (task.attempts === 0) return <p class="note-line">{words.notStarted}</p>;
  return (
    <div class="stack">
      <div class="filters">
        <form class="row" role="search" onSubmit={(event) => { event.preventDefault(); void search(0); }} style={{ flex: "1 1 260px", flexWrap: "nowrap" }}>
          <input class="search" type="search" style={{ maxWidth: "none" }} aria-label={words.logSearch} placeholder={words.logSearch} value={text.value} onInput={(event) => { text.value = event.currentTarget.value; if (!text.value) found.value = null; }} />
          <button type="submit" class="button" disabled={searching.value}>
            {t.value.common.search}
          </button>
        </form>
        {task.attempts > 1 && (
          <Select label={words.attempts} value={attempt.value} onChange={(value) => (attempt.value = value)}
            options={[{ value: "", label: words.attempt(task.attempts) }, ...Array.from({ length: Math.min(task.attempts - 1, 50) }, (_, i) => ({ value: String(task.attempts - 1 - i), label: words.attempt(task.attempts - 1 - i) }))]} />
        )}
        {task.node_ids.length > 1 && <Select label={words.member} value={node.value} onChange={(value) => (node.value = value)} options={task.node_ids.map((one, i) => ({ value: i ? one : "", label: one }))} />}
        <label class="check">
          <input type="checkbox" checked={follow.value} onChange={(event) => { follow.value = event.currentTarget.checked; if (follow.value) from.value = null; }} />
          {words.logFollow}
        </label>
        <label class="check">
          <input type="checkbox" checked={wrap.value} onChange={(event) => (wrap.value = event.currentTarget.checked)} />
          {words.logWrap}
        </label>
        <a class="button" href={`/api/v1/${base}?${chosen}`} download={`${task.id}.log`}>
          <Icon name="download" />
          {t.value.common.download}
        </a>
      </div>
      {searchProblem.value && <p class="muted">{searchProblem.value}</p>}
      {found.value && (
        <div class="stack">
          <div class="row">
            <strong>{found.value.matches.length ? words.logMatches(found.value.matches.length) : words.logNone}</strong>
            {found.value.next_offset !== null && (
              <button type="button" class="button small" disabled={searching.value} onClick={() => void search(found.value!.next_offset!)}>
                {words.logMore}
              </button>
            )}
          </div>
          {found.value.matches.length > 0 && (
            <ul class="matches">
              {found.value.matches.slice(0, 1000).map((one) => (
                <li key={one.offset}>
                  <button type="button" class="link" style={{ border: 0, background: "none", padding: 0, textAlign: "left", cursor: "pointer" }} onClick={() => { follow.value = false; from.value = Math.max(0, one.offset - 2048); }}>
                    {one.line === null ? one.offset : one.line}
                  </button>
                  <span>{new AnsiReader().read(one.text.slice(0, 500)).map((piece) => piece.text).join("")}</span>
                </li>
              ))}
            </ul>
          )}
        </div>
      )}
      {note.value && <p class="muted" role="status">{note.value}</p>}
      <div class={wrap.value ? "log wrap" : "log"} ref={box} tabIndex={0} role="log" aria-live="off" aria-label={words.log} />
      <p class="small muted">{lines.value === 0 ? words.noLog : words.logLines(number(lines.value))}</p>
    </div>
  );
}

async function problemOf(answer: Response): Promise<ApiError> {
  try {
    const { error } = (await answer.json()) as { error: { code: string; message: string } };
    return new ApiError(answer.status, error.code, error.message);
  } catch {
    return new ApiError(answer.status, `Http${answer.status}`, answer.statusText);
  }
}

/** Append lines until the stream ends; the last line may be incomplete and is replaced when it grows. */
async function append(view: HTMLElement, reader: ReadableStreamDefaultReader<Uint8Array>, follow: { value: boolean }, tell: (count: number) => void): Promise<void> {
  const decoder = new TextDecoder();
  const splitter = new LineSplitter();
  const ansi = new AnsiReader();
  let open: HTMLElement | null = null;
  let count = 0;
  const lineOf = (line: string, cut: number): HTMLElement => {
    const element = document.createElement("span");
    element.className = "ln";
    for (const piece of ansi.read(overwritten(line))) {
      const part = document.createElement("span");
      if (piece.class) part.className = piece.class;
      part.textContent = piece.text;
      element.append(part);
    }
    if (cut) {
      const rest = document.createElement("span");
      rest.className = "cut-note";
      rest.textContent = ` ${t.value.task.logCut(number(cut))}`;
      element.append(rest);
    }
    return element;
  };
  for (;;) {
    const { done, value } = await reader.read();
    const text = done ? decoder.decode() : decoder.decode(value, { stream: true });
    let ready = splitter.push(text);
    const atEnd = view.scrollHeight - view.scrollTop - view.clientHeight < 40;
    if (ready.length || splitter.rest) {
      open?.remove();
      open = null;
      if (ready.length > MOST_LINES) ready = ready.slice(-MOST_LINES);
      const block = document.createDocumentFragment();
      for (const one of ready) block.append(lineOf(one.line, one.cut));
      const rest = splitter.rest;
      if (rest) {
        open = lineOf(rest.line, rest.cut);
        block.append(open);
      }
      view.append(block);
      while (view.childElementCount > MOST_LINES) view.firstElementChild!.remove();
      count = view.childElementCount;
      tell(count);
      if (follow.value && (atEnd || count < 100)) view.scrollTop = view.scrollHeight;
    }
    if (done) return;
    await new Promise((resolve) => requestAnimationFrame(resolve));
  }
}
