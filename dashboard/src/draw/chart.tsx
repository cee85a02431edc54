// Lines over time or over a number, drawn by uPlot; the same figures are in a table one key away.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { instant, number } from "../core/format";
import { lang } from "../core/settings";
import { t } from "../i18n";
import { palette } from "./palette";

export interface Line {
  label: string;
  values: (number | null)[];
  color: string;
  fill?: boolean;
  dash?: boolean;
  step?: boolean;
}

interface Props {
  label: string;
  x: number[];
  lines: Line[];
  height?: number;
  /** The highest value of the axis, at least. */
  atLeast?: number;
  unit?: (value: number | null) => string;
  /** The x axis is not time. */
  xUnit?: (value: number) => string;
  logX?: boolean;
  /** Values are counts: the axis has whole numbers only. */
  whole?: boolean;
  /** Values are MiB: the axis has powers of two. */
  steps?: "binary";
}

export function Chart({ label, x, lines, height = 200, atLeast = 0, unit = (v) => number(v), xUnit, logX, whole, steps }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const table = useSignal(false);
  const tip = useSignal<{ left: number; top: number; at: number } | null>(null);
  const colors = palette.value;
  const language = lang.value;
  const shape = lines.map((one) => `${one.label}|${one.color}|${one.fill}`).join() + (xUnit ? "x" : "t");
  const showing = !table.value;
  const xText = xUnit ?? ((value: number) => instant(value));
  const peak = useRef(atLeast);
  peak.current = atLeast;

  useEffect(() => {
    const element = box.current;
    if (!element || !showing) return;
    const axis = { stroke: colors.faint, grid: { stroke: colors.line, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const options: uPlot.Options = {
      width: element.clientWidth || 300,
      height,
      legend: { show: false },
      padding: [10, 34, 0, 0],  // room for the last label of the axis
      cursor: { points: { size: 7 }, drag: { x: false, y: false } },
      scales: {
        x: { time: !xUnit, distr: logX ? 3 : 1 },
        y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(peak.current, (high ?? 1) * 1.08, 1e-6)] },
      },
      axes: [
        {
          ...axis,
          grid: { show: false },
          ...(xUnit
            ? { values: (_: uPlot, splits: number[]) => splits.map((one) => (one == null ? "" : xUnit(one))) }
            : { values: (_: uPlot, splits: number[]) => splits.map((one) => axisTime(one, splits)) }),
          space: 80,
          size: 30,
        },
        { ...axis, size: 58, space: 34, ...(steps === "binary" ? { incrs: BINARY } : whole ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000, 100_000] } : {}), values: (_, splits) => splits.map((one) => unit(one)) },
      ],
      series: [
        {},
        ...lines.map((one) => ({
          label: one.label,
          stroke: one.color,
          width: 1.6,
          spanGaps: false,
          points: { show: false },
          ...(one.step ? { paths: uPlot.paths.stepped!({ align: 1 }) } : {}),
          ...(one.fill ? { fill: `${one.color}2e` } : {}),
          ...(one.dash ? { dash: [5, 4] } : {}),
        })),
      ],
      hooks: {
        setCursor: [
          (u) => {
            const at = u.cursor.idx;
            tip.value = at == null || (u.cursor.left ?? -1) < 0 ? null : { left: u.cursor.left! + 58, top: u.cursor.top!, at };
          },
        ],
      },
    };
    const made = (plot.current = new uPlot(options, [x, ...lines.map((one) => one.values)] as uPlot.AlignedData, element));
    const watch = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
      tip.value = null;
    };
  }, [shape, height, colors, language, showing, logX]);

  useEffect(() => {
    plot.current?.setData([x, ...lines.map((one) => one.values)] as uPlot.AlignedData);
  }, [x, lines]);

  const at = tip.value && tip.value.at < x.length ? tip.value : null;
  return (
    <div class="stack">
      <div class="spread">
        <div class="legend">
          {lines.map((one) => (
            <span key={one.label}>
              <i class="swatch" style={{ background: one.color }} />
              {one.label}
            </span>
          ))}
        </div>
        <button type="button" class="button quiet small" aria-pressed={table.value} onClick={() => (table.value = !table.value)}>
          {table.value ? t.value.common.asChart : t.value.common.asTable}
        </button>
      </div>
      {table.value ? (
        <div class="scroll" style={{ maxHeight: `${height}px`, overflowY: "auto" }} tabIndex={0} role="region" aria-label={label}>
          <table>
            <thead>
              <tr>
                <th>{xUnit ? "" : t.value.common.time}</th>
                {lines.map((one) => (
                  <th key={one.label} class="num">
                    {one.label}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {thinned(x.length, 60).map((i) => (
                <tr key={i}>
                  <td>{xText(x[i]!)}</td>
                  {lines.map((one) => (
                    <td key={one.label} class="num">
                      {unit(one.values[i] ?? null)}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <div class="chart" ref={box} role="img" aria-label={`${label}. ${lines.map((one) => `${one.label}: ${unit(lastOf(one.values))}`).join(", ")}`} style={{ minHeight: `${height}px` }}>
          {at && (
            <div class="tip" style={{ left: `${at.left > (box.current?.clientWidth ?? 0) - 190 ? at.left - 180 : at.left + 14}px`, top: `${Math.max(0, at.top - 20)}px` }}>
              <span class="muted">{xText(x[at.at]!)}</span>
              {lines.map((one) => (
                <span class="k" key={one.label}>
                  <i class="swatch" style={{ background: one.color }} />
                  {one.label} <b>{unit(one.values[at.at] ?? null)}</b>
                </span>
              ))}
            </div>
          )}
        </div>
      )}
    </div>
  );
}

/** 1 MiB to 4 TiB. */
const BINARY = Array.from({ length: 23 }, (_, i) => 2 ** i);

function lastOf(values: (number | null)[]): number | null {
  for (let i = values.length - 1; i >= 0; i--) if (values[i] != null) return values[i]!;
  return null;
}

/** At most `most` indices, the newest first. */
function thinned(length: number, most: number): number[] {
  const step = Math.max(1, Math.ceil(length / most));
  const kept: number[] = [];
  for (let i = length - 1; i >= 0; i -= step) kept.push(i);
  return kept;
}

function axisTime(at: number, splits: number[]): string {
  const date = new Date(at * 1000);
  const span = (splits.at(-1) ?? at) - (splits[0] ?? at);
  const two = (value: number): string => String(value).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}`;
  if (span < 240) return `${time}:${two(date.getSeconds())}`;
  if (span < 86_400 * 1.5) return time;
  return `${date.getMonth() + 1}-${two(date.getDate())}${span < 86_400 * 4 ? ` ${time}` : ""}`;
}
