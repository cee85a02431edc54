// A table of any length: only the rows in view are in the document, and pages of rows are fetched as they come near.
// Scrolling is cheap because little changes: the table is rendered again only when another row comes into view, a row that
// stays is the same object for Preact, which then skips it, and the layout of a row does not depend on the others.
import { computed, signal } from "@preact/signals";
import type { ComponentChildren, VNode } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";

export interface Column<R> {
  key: string;
  title: string;
  /** A track of the grid: `120px`, `minmax(0, 2fr)`. */
  width: string;
  cell: (row: R) => ComponentChildren;
  sort?: string;
  class?: string;
  /** Not shown on a phone. */
  wideOnly?: boolean;
}

interface Props<R> {
  label: string;
  columns: Column<R>[];
  total: number;
  row: (index: number) => R | undefined;
  href: (row: R) => string;
  need: (first: number, last: number) => void;
  sort: string;
  onSort: (sort: string) => void;
  sortLabel: (title: string) => string;
  loading: string;
  phone: boolean;
  resetKey: string;
}

/** Chromium's tallest scroll area is 33.5 million pixels. */
const TALLEST = 32_000_000;
const OVERSCAN = 6;

export function VirtualTable<R>(props: Props<R>) {
  const { columns, total, row, href, need, sort, onSort, phone, resetKey } = props;
  const view = useRef<HTMLDivElement>(null);
  const rowHeight = phone ? 64 : 44;
  const state = useMemo(() => {
    const [top, height] = [signal(0), signal(480)];
    const first = computed(() => Math.floor(top.value / rowHeight));
    const end = computed(() => Math.ceil((top.value + height.value) / rowHeight));
    return { top, height, first, end };
  }, [rowHeight]);
  const drawn = useMemo(() => new Map<number, { of: R; line: VNode }>(), [columns, href]);
  const shown = columns.filter((one) => !phone || !one.wideOnly);
  const template = shown.map((one) => one.width).join(" ");
  const last = Math.min(total, Math.floor(TALLEST / rowHeight));
  const first = Math.max(0, state.first.value - OVERSCAN);
  const end = Math.min(last, state.end.value + OVERSCAN);

  useEffect(() => {
    const element = view.current!;
    const watch = new ResizeObserver(() => (state.height.value = element.clientHeight));
    watch.observe(element);
    let frame = 0;
    const scrolled = (): void => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => (state.top.value = element.scrollTop));
    };
    element.addEventListener("scroll", scrolled, { passive: true });
    return () => {
      watch.disconnect();
      cancelAnimationFrame(frame);
      element.removeEventListener("scroll", scrolled);
    };
  }, [state]);
  useEffect(() => {
    view.current?.scrollTo({ top: 0 });
  }, [resetKey]);
  useEffect(() => need(first, end), [first, end, total, resetKey]);

  const move = (event: KeyboardEvent): void => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    const at = (document.activeElement as HTMLElement | null)?.dataset.row;
    if (!step || at === undefined) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(last - 1, Number(at) + step));
    const element = view.current!;
    if (next * rowHeight < element.scrollTop) element.scrollTop = next * rowHeight;
    else if ((next + 1) * rowHeight > element.scrollTop + element.clientHeight) element.scrollTop = (next + 1) * rowHeight - element.clientHeight;
    state.top.value = element.scrollTop;
    requestAnimationFrame(() => element.querySelector<HTMLElement>(`[data-row="${next}"]`)?.focus());
  };

  const style = (i: number) => ({ transform: `translateY(${i * rowHeight}px)`, gridTemplateColumns: template });
  const lineOf = (i: number, one: R): VNode => (
    <div key={i} class="line" role="row" aria-rowindex={i + 2} style={style(i)}>
      {shown.map((column, at) => (
        <span key={column.key} role="cell" class={column.class}>
          {at === 0 ? (
            <a class="cover" data-row={i} href={href(one)}>
              {column.cell(one)}
            </a>
          ) : (
            column.cell(one)
          )}
        </span>
      ))}
    </div>
  );
  const lines: ComponentChildren[] = [];
  for (const i of drawn.keys()) if (i < first || i >= end) drawn.delete(i);
  for (let i = first; i < end; i++) {
    const one = row(i);
    if (one === undefined) {
      drawn.delete(i);
      lines.push(
        <div key={i} class="line muted" role="row" aria-rowindex={i + 2} style={style(i)}>
          <span role="cell">{props.loading}</span>
        </div>,
      );
      continue;
    }
    let known = drawn.get(i);
    if (known?.of !== one) drawn.set(i, (known = { of: one, line: lineOf(i, one) }));
    lines.push(known.line);
  }
  const height = Math.max(260, Math.min(last * rowHeight + 2, 2000));
  return (
    <div class="vtable" role="table" aria-label={props.label} aria-rowcount={total + 1}>
      <div role="rowgroup">
        <div class={phone ? "head hidden-visually" : "head"} role="row" aria-rowindex={1} style={{ gridTemplateColumns: template }}>
          {shown.map((column) => {
            const active = column.sort && sort.replace("-", "") === column.sort;
            const down = sort.startsWith("-");
            return (
              <span key={column.key} role="columnheader" class={column.class} aria-sort={active ? (down ? "descending" : "ascending") : undefined}>
                {column.sort && !phone ? (
                  <button type="button" aria-label={props.sortLabel(column.title)} onClick={() => onSort(active && down ? column.sort! : `-${column.sort}`)}>
                    {column.title}
                    <span aria-hidden="true">{active ? (down ? "↓" : "↑") : ""}</span>
                  </button>
                ) : (
                  column.title
                )}
              </span>
            );
          })}
        </div>
      </div>
      <div class="view" role="rowgroup" ref={view} onKeyDown={move} tabIndex={0} aria-label={props.label} style={{ height: `min(${height}px, calc(100vh - 250px))` }}>
        <div class="space" role="presentation" style={{ height: `${last * rowHeight}px` }}>
          {lines}
        </div>
      </div>
    </div>
  );
}
