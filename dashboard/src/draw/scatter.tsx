// Some dozen points in a plane, as SVG: each can be read and pointed at.
import { number } from "../core/format";

interface Point {
  x: number;
  y: number;
  chosen: boolean;
}

/** The titles of the axes have lines of their own, above and below the figures. */
const [WIDTH, HEIGHT, LEFT, TOP, BOTTOM] = [640, 290, 64, 26, 42];

export function Scatter({ label, xLabel, yLabel, points }: { label: string; xLabel: string; yLabel: string; points: Point[] }) {
  if (points.length === 0) return <p class="muted">–</p>;
  const [xs, ys] = [points.map((one) => one.x), points.map((one) => one.y)];
  const x = scale(Math.min(...xs), Math.max(...xs), LEFT + 14, WIDTH - 16);
  const y = scale(Math.min(...ys), Math.max(...ys), HEIGHT - BOTTOM - 14, TOP + 14);
  return (
    <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={label} style={{ width: "100%", maxWidth: "640px" }}>
      <path d={`M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - 6}`} fill="none" stroke="var(--line-strong)" />
      {[0, 0.5, 1].map((part) => (
        <g key={part} fill="var(--text-3)" font-size="11">
          <text x={x.at(part)} y={HEIGHT - BOTTOM + 15} text-anchor="middle">{number(x.value(part), 1)}</text>
          <text x={LEFT - 7} y={y.at(part) + 4} text-anchor="end">{number(y.value(part), 1)}</text>
        </g>
      ))}
      <text x={WIDTH - 6} y={HEIGHT - 4} text-anchor="end" font-size="12" fill="var(--text-2)">{xLabel}</text>
      <text x={4} y={12} font-size="12" fill="var(--text-2)">{yLabel}</text>
      {points.map((one, i) => (
        <circle key={i} cx={x.of(one.x)} cy={y.of(one.y)} r={one.chosen ? 7 : 5} fill="var(--accent)" fill-opacity={one.chosen ? 1 : 0.55} stroke={one.chosen ? "var(--text)" : "none"} stroke-width={2}>
          <title>{`${xLabel} ${number(one.x, 1)}, ${yLabel} ${number(one.y, 1)}`}</title>
        </circle>
      ))}
    </svg>
  );
}

function scale(low: number, high: number, from: number, to: number) {
  const wide = high - low || Math.abs(high) || 1;
  const base = high === low ? low - wide / 2 : low;
  const of = (value: number): number => from + ((value - base) / wide) * (to - from);
  return { of, at: (part: number) => from + part * (to - from), value: (part: number) => base + part * wide };
}
