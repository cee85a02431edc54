// The map: one cell a GPU, grouped by node. From 4 large cells with names and figures to 1,600 small ones. Only what is
// needed is drawn: all cells after a change of layout, else the cells whose bytes changed.
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { number, percent, watts } from "../core/format";
import { CARD_BYTES, type Cards, sampleAt } from "../core/live";
import { go, to } from "../core/router";
import { GPU_STATES } from "../core/types";
import { t } from "../i18n";
import { ON_RAMP, palette, RAMP } from "./palette";

export type ColorBy = "state" | "utilization" | "memory" | "temperature" | "power";

interface Box {
  card: number;
  x: number;
  y: number;
}

interface Layout {
  cell: number;
  cellHeight: number;
  boxes: Box[];
  labels: { text: string; x: number; y: number; width: number }[];
  height: number;
}

const GAP = 3;
const HEAD = 19;
/** Between nodes. */
const SPACE = 14;

/** Nodes with more cards than this use the whole width instead of rows of eight. */
const MANY = 32;

/** Cards of a node stay together, in rows of up to eight; cells are as large as the number of cards allows. */
export function layOut(cards: { node_id: string }[], shown: number[], width: number): Layout {
  const groups = new Map<string, number[]>();
  for (const at of shown) {
    const node = cards[at]!.node_id;
    const group = groups.get(node);
    if (group) group.push(at);
    else groups.set(node, [at]);
  }
  const phone = width < 520;
  const few = shown.length <= 16;
  const gap = few ? 10 : GAP;
  const wanted = few ? 168 : shown.length <= 64 ? 64 : shown.length <= 400 ? 30 : 16;
  // as many nodes side by side as fit, and then as large as they can be
  const beside = Math.max(1, Math.floor((width + SPACE) / (8 * (wanted + gap) + SPACE)));
  const widest = Math.floor((width - (beside - 1) * SPACE) / beside / 8) - gap;
  const cell = few ? Math.max(90, Math.min(wanted, Math.floor((width - 12) / (phone ? 2 : 4)) - gap)) : Math.max(12, Math.min(widest, 84));
  const cellHeight = cell >= 100 ? 112 : cell;
  const named = groups.size <= 260;
  const head = named ? HEAD : 4;
  const boxes: Box[] = [];
  const labels: Layout["labels"] = [];
  let [x, y, rowHeight] = [0, 0, 0];
  for (const [node, group] of groups) {
    const perRow = Math.min(group.length, cell >= 100 ? Math.max(1, Math.floor((width + gap) / (cell + gap))) : group.length > MANY ? Math.max(8, Math.floor((width + gap) / (cell + gap))) : 8);
    const groupWidth = perRow * (cell + gap) - gap;
    const rows = Math.ceil(group.length / perRow);
    const groupHeight = head + rows * (cellHeight + gap);
    if (x > 0 && x + groupWidth > width) [x, y, rowHeight] = [0, y + rowHeight, 0];
    if (named) labels.push({ text: node, x, y: y + 13, width: groupWidth });
    group.forEach((card, i) => {
      boxes.push({ card, x: x + (i % perRow) * (cell + gap), y: y + head + Math.floor(i / perRow) * (cellHeight + gap) });
    });
    x += groupWidth + SPACE;
    rowHeight = Math.max(rowHeight, groupHeight + (cell >= 36 ? 12 : 5));
  }
  return { cell, cellHeight, boxes, labels, height: Math.max(40, y + rowHeight) };
}

interface Props {
  all: Cards;
  shown: number[];
  colorBy: ColorBy;
  summary: string;
  virtual: ReadonlySet<string>;
}

export function GpuMap({ all, shown, colorBy, summary, virtual }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useSignal(0);
  const focus = useSignal(-1);
  const hover = useSignal(-1);
  const drawn = useRef<{ samples: Uint8Array; key: unknown } | null>(null);
  const colors = palette.value;
  const words = t.value;
  const layout = useMemo(() => layOut(all.cards, shown, width.value || 300), [all.cards, shown, width.value]);

  useEffect(() => {
    const watch = new ResizeObserver(() => (width.value = box.current!.clientWidth));
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);

  useEffect(() => {
    const element = canvas.current!;
    if (!width.value) return;
    const scale = devicePixelRatio || 1;
    const pen = element.getContext("2d", { alpha: false })!;
    const key = `${scale}|${width.value}|${colorBy}|${focus.value}|${virtual.size}`;
    const before = drawn.current;
    const whole = !before || before.key !== layout || element.dataset.key !== key + colors.surface || before.samples.length !== all.samples.length;
    if (whole) {
      element.width = Math.round(width.value * scale);
      element.height = Math.round(layout.height * scale);
      element.style.height = `${layout.height}px`;
      element.dataset.key = key + colors.surface;
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.fillStyle = colors.surface;
      pen.fillRect(0, 0, width.value, layout.height);
      pen.fillStyle = colors.faint;
      pen.font = `${layout.cell >= 20 ? 12 : 11}px system-ui, sans-serif`;
      for (const label of layout.labels) pen.fillText(fitted(pen, label.text, label.width), label.x, label.y);
    }
    for (let i = 0; i < layout.boxes.length; i++) {
      const from = layout.boxes[i]!.card * CARD_BYTES;
      if (!whole && layout.cell < 56) {
        let same = true;
        for (let b = 0; b < CARD_BYTES; b++) if (before!.samples[from + b] !== all.samples[from + b]) same = false;
        if (same) continue;
      }
      drawCell(pen, layout, i, all, colorBy, focus.value === i);
    }
    drawn.current = { samples: all.samples, key: layout };
  });

  function drawCell(pen: CanvasRenderingContext2D, { cell, cellHeight, boxes }: Layout, at: number, cards: Cards, by: ColorBy, focused: boolean): void {
    const { card, x, y } = boxes[at]!;
    const sample = sampleAt(cards, card);
    const state = GPU_STATES[sample.state] ?? "offline";
    const [value, most] = valueOf(sample, by);
    const rank = value === null ? -1 : Math.max(0, Math.min(100, Math.round((100 * value) / most)));
    const byState = by === "state";
    const back = byState ? colors.state[state] : rank < 0 ? colors.unknown : RAMP[rank]!;
    const front = byState ? colors.onState[state] : rank < 0 ? colors.faint : ON_RAMP[rank]!;
    pen.fillStyle = colors.surface;
    pen.fillRect(x - 2, y - 2, cell + 4, cellHeight + 4);
    pen.fillStyle = back;
    pen.beginPath();
    pen.roundRect(x, y, cell, cellHeight, cell >= 60 ? 7 : 3);
    pen.fill();
    pen.fillStyle = front;
    if (cell >= 100) {
      pen.font = "600 13px system-ui, sans-serif";
      pen.fillText(fitted(pen, `GPU ${cards.cards[card]!.device_index}`, cell - 40), x + 10, y + 20);
      pen.font = "12px system-ui, sans-serif";
      pen.textAlign = "right";
      pen.fillText(words.gpuLetter[state], x + cell - 10, y + 20);
      pen.textAlign = "left";
      pen.fillText(fitted(pen, sample.holder ?? words.gpuState[state], cell - 18), x + 10, y + 39);
      gauge(pen, x + 10, y + 53, cell - 20, words.gpus.utilization, sample.utilization);
      gauge(pen, x + 10, y + 74, cell - 20, words.gpus.memory, sample.memory);
      pen.fillText(fitted(pen, `${sample.temperature === null ? "–" : `${sample.temperature} °C`} · ${watts(sample.power)}`, cell - 18), x + 10, y + 103);
    } else if (cell >= 14) {
      const text = byState || rank < 0 ? words.gpuLetter[state] : number(value);
      const roomy = cell >= 56;
      pen.font = `${roomy ? 14 : cell >= 34 ? 12 : cell >= 20 ? 10 : 9}px system-ui, sans-serif`;
      pen.textAlign = "center";
      pen.fillText(text, x + cell / 2, roomy ? y + 20 : y + cellHeight / 2 + (cell >= 34 ? 4 : 3));
      if (roomy) {
        pen.font = "11px system-ui, sans-serif";
        if (sample.holder) pen.fillText(fitted(pen, sample.holder, cell - 6), x + cell / 2, y + cellHeight / 2 + 7);
        if (byState && sample.utilization !== null) pen.fillText(percent(sample.utilization), x + cell / 2, y + cellHeight - 8);
      }
      pen.textAlign = "left";
    }
    if (virtual.has(cards.cards[card]!.gpu_id) && cell >= 14) {
      pen.strokeStyle = front;
      pen.lineWidth = 1;
      pen.setLineDash([3, 3]);
      pen.beginPath();
      pen.roundRect(x + 1.5, y + 1.5, cell - 3, cellHeight - 3, cell >= 60 ? 6 : 2);
      pen.stroke();
      pen.setLineDash([]);
    }
    if (focused) {
      pen.strokeStyle = colors.focus;
      pen.lineWidth = 2;
      pen.strokeRect(x - 1, y - 1, cell + 2, cellHeight + 2);
    }
  }

  const at = (event: MouseEvent): number => {
    const { cell, cellHeight, boxes } = layout;
    return boxes.findIndex((one) => event.offsetX >= one.x && event.offsetX <= one.x + cell && event.offsetY >= one.y && event.offsetY <= one.y + cellHeight);
  };
  const open = (index: number): void => {
    const found = layout.boxes[index];
    if (found) go(to(["gpus", all.cards[found.card]!.gpu_id]));
  };
  const key = (event: KeyboardEvent): void => {
    const here = Math.max(0, focus.value);
    const move = { ArrowRight: here + 1, ArrowLeft: here - 1, ArrowDown: below(layout, here, 1), ArrowUp: below(layout, here, -1), Home: 0, End: layout.boxes.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      open(focus.value);
    } else if (move !== undefined) {
      event.preventDefault();
      focus.value = Math.max(0, Math.min(layout.boxes.length - 1, move));
    }
  };
  const active = focus.value >= 0 ? focus.value : hover.value;
  const tipped = layout.boxes[active];
  const spoken = tipped ? describe(all, tipped.card, virtual) : null;
  return (
    <div class="drawing" ref={box}>
      <canvas
        ref={canvas}
        role="img"
        tabIndex={0}
        aria-label={spoken && focus.value >= 0 ? `${spoken.title}: ${spoken.lines.join(", ")}` : `${summary} ${words.gpus.keys}`}
        onKeyDown={key}
        onFocus={() => focus.value < 0 && canvas.current?.matches(":focus-visible") && (focus.value = 0)}
        onBlur={() => (focus.value = -1)}
        onMouseMove={(event) => (hover.value = at(event))}
        onMouseLeave={() => (hover.value = -1)}
        onClick={(event) => open(at(event))}
        style={{ cursor: hover.value >= 0 ? "pointer" : "default" }}
      />
      {tipped && spoken && (
        <div class="tip" style={{ left: `${Math.max(0, Math.min(tipped.x, width.value - 230))}px`, top: `${tipped.y + layout.cellHeight + 6}px` }}>
          <b>{spoken.title}</b>
          {spoken.lines.map((line) => (
            <span key={line}>{line}</span>
          ))}
        </div>
      )}
    </div>
  );
}

/** A name, a percentage and its bar. */
function gauge(pen: CanvasRenderingContext2D, x: number, y: number, width: number, name: string, value: number | null): void {
  pen.font = "11px system-ui, sans-serif";
  pen.fillText(fitted(pen, name, width - 36), x, y);
  pen.textAlign = "right";
  pen.fillText(percent(value), x + width, y);
  pen.textAlign = "left";
  pen.globalAlpha = 0.25;
  pen.fillRect(x, y + 5, width, 4);
  pen.globalAlpha = 1;
  if (value !== null) pen.fillRect(x, y + 5, (width * Math.min(100, value)) / 100, 4);
  pen.font = "12px system-ui, sans-serif";
}

/** A value and the value at the end of the ramp. */
function valueOf(sample: ReturnType<typeof sampleAt>, by: ColorBy): [number | null, number] {
  if (by === "utilization") return [sample.utilization, 100];
  if (by === "memory") return [sample.memory, 100];
  if (by === "temperature") return [sample.temperature, 95];
  return [sample.power, 700];
}

export function describe(all: Cards, card: number, virtual: ReadonlySet<string>): { title: string; lines: string[] } {
  const words = t.value;
  const sample = sampleAt(all, card);
  const one = all.cards[card]!;
  const state = GPU_STATES[sample.state] ?? "offline";
  return {
    title: one.gpu_id,
    lines: [
      [one.model, ...(virtual.has(one.gpu_id) && one.model !== "virtual" ? [words.gpus.virtual] : []), words.gpuState[state]].join(" · "),
      ...(state === "offline" ? [words.gpus.old] : []),
      ...(sample.holder ? [`${words.gpus.held} ${sample.holder}`] : []),
      `${words.gpus.utilization} ${percent(sample.utilization)} · ${words.gpus.memory} ${percent(sample.memory)}`,
      `${words.gpus.temperature} ${sample.temperature === null ? "–" : `${sample.temperature} °C`} · ${words.gpus.power} ${watts(sample.power)}`,
    ],
  };
}

/** The nearest cell in the next or the last row. */
function below(layout: Layout, at: number, direction: 1 | -1): number {
  const from = layout.boxes[at];
  if (!from) return at;
  let best = at;
  let least = Infinity;
  layout.boxes.forEach((one, i) => {
    const down = (one.y - from.y) * direction;
    if (down <= 0) return;
    const distance = down * 4 + Math.abs(one.x - from.x);
    if (distance < least) [least, best] = [distance, i];
  });
  return best;
}

export function fitted(pen: CanvasRenderingContext2D, text: string, width: number): string {
  if (pen.measureText(text).width <= width) return text;
  let cut = text.slice(0, 60);
  while (cut.length > 1 && pen.measureText(`${cut}…`).width > width) cut = cut.slice(0, -1);
  return cut.length > 1 ? `${cut}…` : "";
}
