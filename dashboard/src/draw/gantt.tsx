// Bars in lanes over time: GPUs and their tasks, or a plan. Only the lanes in view are drawn, so 1,600 lanes cost as
// much as 40.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { fitted } from "./gpu_map";
import { palette } from "./palette";

export interface Bar {
  start: number;
  end: number;
  label: string;
  color: string;
  /** Not work, but the time to prepare it. */
  hatched?: boolean;
  lines: string[];
  href?: string;
}

export interface GanttLane {
  label: string;
  bars: Bar[];
}

interface Props {
  label: string;
  lanes: GanttLane[];
  from: number;
  to: number;
  axis: (at: number, span: number) => string;
  now?: number;
  /** Show another range; without it the range is fixed. */
  onRange?: (from: number, to: number) => void;
  onOpen?: (href: string) => void;
}

const LANE = 26;
const AXIS = 24;

export function Gantt({ label, lanes, from, to, axis, now, onRange, onOpen }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const size = useSignal({ width: 0, height: 0, top: 0 });
  const hover = useSignal<{ bar: Bar; x: number; y: number } | null>(null);
  const drag = useRef<{ x: number; from: number; to: number; moved: boolean } | null>(null);
  const colors = palette.value;
  const { width, height, top } = size.value;
  const names = width < 560 ? 84 : 150;
  const span = Math.max(to - from, 1e-6);
  const scale = Math.max(width - names - 8, 10) / span;
  const full = AXIS + lanes.length * LANE;

  useEffect(() => {
    const element = box.current!;
    const measure = (): void => {
      size.value = { width: element.clientWidth, height: element.clientHeight, top: element.scrollTop };
    };
    const watch = new ResizeObserver(measure);
    watch.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      watch.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);

  useEffect(() => {
    const element = canvas.current!;
    if (!width || !height) return;
    const ratio = devicePixelRatio || 1;
    element.width = Math.round(width * ratio);
    element.height = Math.round(height * ratio);
    element.style.height = `${height}px`;
    const pen = element.getContext("2d", { alpha: false })!;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = colors.surface;
    pen.fillRect(0, 0, width, height);
    const first = Math.max(0, Math.floor(top / LANE));
    const last = Math.min(lanes.length, Math.ceil((top + height) / LANE));
    pen.font = "12px system-ui, sans-serif";
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS, width, height - AXIS);
    pen.clip();
    for (let i = first; i < last; i++) {
      const lane = lanes[i]!;
      const y = AXIS + i * LANE - top;
      pen.fillStyle = colors.line;
      pen.fillRect(0, y + LANE - 1, width, 1);
      pen.fillStyle = colors.faint;
      pen.fillText(fitted(pen, lane.label, names - 12), 0, y + 17);
      pen.save();
      pen.beginPath();
      pen.rect(names, y, width - names, LANE);
      pen.clip();
      for (const bar of lane.bars) {
        const x = names + (bar.start - from) * scale;
        const wide = Math.max(1.5, (bar.end - bar.start) * scale - 0.5);
        if (x > width || x + wide < names) continue;
        pen.fillStyle = bar.color;
        pen.globalAlpha = bar.hatched ? 0.35 : 1;
        pen.beginPath();
        pen.roundRect(x, y + 4, wide, LANE - 9, wide > 8 ? 4 : 0);
        pen.fill();
        pen.globalAlpha = 1;
        if (bar.hatched && wide > 5) hatch(pen, x, y + 4, wide, LANE - 9, bar.color);
        else if (wide > 34) {
          pen.fillStyle = "#ffffff";
          pen.fillText(fitted(pen, bar.label, wide - 12), Math.max(x, names) + 6, y + 17);
        }
      }
      pen.restore();
    }
    pen.restore();
    pen.strokeStyle = colors.line;
    pen.fillStyle = colors.faint;
    for (const at of ticks(from, to, Math.max(2, Math.floor((width - names) / 110)))) {
      const x = names + (at - from) * scale;
      pen.fillRect(x, AXIS - 5, 1, 5);
      const text = axis(at, span);
      if (x + 4 + pen.measureText(text).width <= width) pen.fillText(text, x + 4, 14); // a label is shown whole or not at all
    }
    if (now !== undefined && now > from && now < to) {
      pen.fillStyle = colors.red;
      pen.fillRect(names + (now - from) * scale, AXIS, 1.5, height);
    }
  });

  const barAt = (event: MouseEvent): Bar | null => {
    const lane = lanes[Math.floor((event.offsetY - AXIS + top) / LANE)];
    if (!lane || event.offsetY < AXIS || event.offsetX < names) return null;
    const at = from + (event.offsetX - names) / scale;
    const slack = 3 / scale;
    return lane.bars.findLast((one) => at >= one.start - slack && at <= one.end + slack) ?? null;
  };
  const zoom = (factor: number, at: number): void => onRange?.(at - (at - from) * factor, at + (to - at) * factor);
  const wheel = (event: WheelEvent): void => {
    if (!onRange || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, from + (event.offsetX - names) / scale);
  };
  useEffect(() => {
    const element = canvas.current!;
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  });
  const down = (event: PointerEvent): void => {
    drag.current = { x: event.clientX, from, to, moved: false };
  };
  const move = (event: PointerEvent): void => {
    const held = drag.current;
    if (held && event.buttons) {
      const by = (held.x - event.clientX) / scale;
      if (Math.abs(held.x - event.clientX) > 4) held.moved = true;
      if (held.moved) onRange?.(held.from + by, held.to + by);
      return;
    }
    const bar = barAt(event);
    hover.value = bar ? { bar, x: event.offsetX, y: event.offsetY } : null;
  };
  const up = (event: PointerEvent): void => {
    const moved = drag.current?.moved;
    drag.current = null;
    const bar = moved ? null : barAt(event);
    if (bar?.href) onOpen?.(bar.href);
  };
  const key = (event: KeyboardEvent): void => {
    const step = span / 8;
    const middle = (from + to) / 2;
    if (event.key === "ArrowLeft") onRange?.(from - step, to - step);
    else if (event.key === "ArrowRight") onRange?.(from + step, to + step);
    else if (event.key === "+" || event.key === "=") zoom(0.7, middle);
    else if (event.key === "-") zoom(1.4, middle);
    else if (event.key === "ArrowDown") box.current!.scrollTop += LANE;
    else if (event.key === "ArrowUp") box.current!.scrollTop -= LANE;
    else return;
    event.preventDefault();
  };
  const shown = hover.value;
  return (
    <div class={onRange ? "drawing pan" : "drawing"}>
      <div ref={box} style={{ height: `min(${full + 2}px, 68vh)`, overflowY: "auto", overflowX: "hidden" }}>
        <div style={{ height: `${full}px` }}>
          <canvas ref={canvas} role="img" tabIndex={0} aria-label={label} style={{ position: "sticky", top: 0, ...(shown?.bar.href ? { cursor: "pointer" } : {}) }}
            onKeyDown={key} onPointerDown={down} onPointerMove={move} onPointerUp={up} onPointerLeave={() => { hover.value = null; drag.current = null; }} />
        </div>
      </div>
      {shown && (
        <div class="tip" style={{ left: `${Math.min(shown.x + 12, Math.max(0, width - 240))}px`, top: `${shown.y + 16}px` }}>
          <b>{shown.bar.label}</b>
          {shown.bar.lines.map((line) => <span key={line}>{line}</span>)}
        </div>
      )}
    </div>
  );
}

function hatch(pen: CanvasRenderingContext2D, x: number, y: number, width: number, height: number, color: string): void {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, width, height);
  pen.clip();
  pen.strokeStyle = color;
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (let at = x - height; at < x + width; at += 6) {
    pen.moveTo(at, y + height);
    pen.lineTo(at + height, y);
  }
  pen.stroke();
  pen.restore();
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600, 2_592_000];

/** Round instants; those of a day are at midnight of the viewer. */
export function ticks(from: number, to: number, most: number): number[] {
  const least = (to - from) / most;
  const step = STEPS.find((one) => one >= least) ?? Math.pow(10, Math.ceil(Math.log10(Math.max(least, 1e-9))));
  const fine = least < 1 ? Math.pow(10, Math.ceil(Math.log10(Math.max(least, 1e-9)))) : step;
  const shift = from > 1e8 && fine >= 3600 ? new Date(from * 1000).getTimezoneOffset() * 60 : 0;
  const found: number[] = [];
  for (let at = Math.ceil((from - shift) / fine) * fine + shift; at <= to; at += fine) found.push(at);
  return found;
}
