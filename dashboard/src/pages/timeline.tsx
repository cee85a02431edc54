import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { duration, exact, nameOf, number } from "../core/format";
import { useResource } from "../core/resource";
import { go, place, refine, to as toPage } from "../core/router";
import type { Lane, LaneBar, Timeline } from "../core/types";
import { Gantt, type GanttLane } from "../draw/gantt";
import { categoryColor, palette } from "../draw/palette";
import { t } from "../i18n";
import { Empty, PageHead, Panel, Segment, Shown, TaskLink } from "../ui/kit";

const RANGES = { minutes: 900, hour: 3600, hours: 21_600, day: 86_400, week: 604_800, month: 2_592_000 } as const;
type Range = keyof typeof RANGES;
const MOST_ROWS = 300;

export function TimelinePage() {
  const words = t.value.timeline;
  const { query } = place.value;
  const span = Number(query.get("span")) || RANGES.hour;
  const end = Number(query.get("end")) || null;
  const node = query.get("node") ?? "";
  const tenant = query.get("tenant") ?? "";
  const now = useSignal(Date.now() / 1000);
  const table = useSignal(false);
  // what is shown while fingers and mouse move; the address and the server follow a moment later
  const moved = useSignal<{ from: number; to: number } | null>(null);
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && (now.value = Date.now() / 1000), 5000);
    return () => clearInterval(timer);
  }, []);
  useEffect(() => {
    if (!moved.value) return;
    const timer = setTimeout(() => {
      const shown = moved.value!;
      const wide = Math.max(60, Math.min(RANGES.month * 3, Math.round(shown.to - shown.from)));
      refine({ span: wide, end: shown.to >= now.value - wide / 200 ? "" : Math.round(shown.to) });
      moved.value = null;
    }, 250);
    return () => clearTimeout(timer);
  }, [moved.value]);

  const until = Math.round(end ?? now.value + span * 0.02);
  const from = until - span;
  const asked = new URLSearchParams({ from: String(from), to: String(until), width: "1200", ...(node ? { node } : {}), ...(tenant ? { tenant } : {}) });
  const timeline = useResource<Timeline>(`timeline?${asked}`);
  const shown = moved.value ?? { from, to: until };
  const chosen = (Object.keys(RANGES) as Range[]).find((one) => RANGES[one] === span) ?? ("" as Range);
  const shift = (part: number): void => {
    const next = until + span * part;
    refine({ end: next >= now.value ? "" : Math.round(next) });
  };
  const zoomTo = (factor: number): void => refine({ span: Math.max(60, Math.round(span * factor)), end: end ?? "" });
  return (
    <>
      <PageHead title={words.title} note={words.subtitle}>
        <button type="button" class="button" aria-pressed={table.value} onClick={() => (table.value = !table.value)}>{table.value ? t.value.common.asChart : t.value.common.asTable}</button>
      </PageHead>
      <div class="filters">
        <Segment<Range> label={words.range} value={chosen} options={(Object.keys(RANGES) as Range[]).map((value) => ({ value, label: words[value] }))} onChange={(value) => refine({ span: RANGES[value] })} />
        <div class="row">
          <button type="button" class="button" onClick={() => shift(-0.5)}>{words.earlier}</button>
          <button type="button" class="button" onClick={() => shift(0.5)} disabled={end === null}>{words.later}</button>
          <button type="button" class="button" onClick={() => refine({ end: "" })} disabled={end === null}>{words.now}</button>
          <button type="button" class="button square" aria-label={words.zoomIn} onClick={() => zoomTo(0.5)}>+</button>
          <button type="button" class="button square" aria-label={words.zoomOut} onClick={() => zoomTo(2)}>−</button>
        </div>
        <input aria-label={words.node} placeholder={words.node} value={node} style={{ width: "120px" }} onChange={(event) => refine({ node: event.currentTarget.value.trim() })} />
        <input aria-label={t.value.tasks.tenant} placeholder={t.value.tasks.tenant} value={tenant} style={{ width: "120px" }} onChange={(event) => refine({ tenant: event.currentTarget.value.trim() })} />
      </div>
      <Panel flush={table.value}>
        <Shown of={timeline} lines={10}>
          {(told) => {
            const bars = told.lanes.reduce((sum, lane) => sum + lane.bars.length, 0);
            if (told.lanes.length === 0) return <Empty icon="timeline" title={words.empty} />;
            if (table.value) return <BarTable lanes={told.lanes} now={now.value} />;
            return (
              <div class="stack">
                <Gantt label={`${words.title}. ${words.summary(told.lanes.length, bars)} ${words.help}`} lanes={told.lanes.map((lane) => laneOf(lane, now.value))} from={shown.from} to={shown.to} now={now.value} axis={axisText}
                  onRange={(low, high) => (moved.value = { from: low, to: high })} onOpen={go} />
                <Legend lanes={told.lanes} />
                <p class="small muted">{bars === 0 ? words.empty : words.help} {told.merged > 0 && words.mergedNote(told.merged)}</p>
              </div>
            );
          }}
        </Shown>
      </Panel>
    </>
  );
}

const MOST_TENANTS = 12;

/** The colors of the bars: a tenant each, and those that are not of a tenant. */
function Legend({ lanes }: { lanes: Lane[] }) {
  const words = t.value;
  const bars = lanes.flatMap((lane) => lane.bars);
  const failed = bars.some((one) => one.status === "failed" || one.status === "timeout");
  const merged = bars.some((one) => one.task_id === null);
  const tenants = [...new Set(bars.filter((one) => one.task_id !== null).map((one) => one.tenant_id ?? ""))].sort();
  if (bars.length === 0) return null;
  return (
    <div class="legend">
      {tenants.slice(0, MOST_TENANTS).map((one) => <span key={one}><i class="swatch" style={{ background: categoryColor(one) }} />{words.tasks.tenant} {one}</span>)}
      {tenants.length > MOST_TENANTS && <span>{words.common.of(number(MOST_TENANTS), number(tenants.length))}</span>}
      {failed && <span><i class="swatch" style={{ background: palette.value.red }} />{words.status.failed}, {words.status.timeout}</span>}
      {merged && <span><i class="swatch" style={{ background: palette.value.faint }} />{words.timeline.mergedLegend}</span>}
      <span><i class="swatch" style={{ background: palette.value.red, width: "2px" }} />{words.timeline.now}</span>
    </div>
  );
}

function laneOf(lane: Lane, now: number): GanttLane {
  return { label: lane.gpu_id, bars: lane.bars.map((one) => barOf(one, now)) };
}

function barOf(one: LaneBar, now: number) {
  const words = t.value;
  const end = one.end ?? now;
  const merged = one.task_id === null;
  return {
    start: one.start,
    end,
    label: merged ? words.timeline.merged(one.count ?? 1) : nameOf({ id: one.task_id!, name: one.name }),
    color: merged ? palette.value.faint : one.status === "failed" || one.status === "timeout" ? palette.value.red : categoryColor(one.tenant_id ?? ""),
    lines: merged
      ? [`${exact(one.start)} – ${exact(end)}`]
      : [`${one.task_id} · ${one.tenant_id ?? ""}`, `${words.status[one.status ?? "running"]} · ${duration(end - one.start)}`, `${exact(one.start)} – ${one.end === null ? words.timeline.running : exact(one.end)}`],
    ...(merged ? {} : { href: toPage(["tasks", one.task_id!]) }),
  };
}

function axisText(at: number, span: number): string {
  const date = new Date(at * 1000);
  const two = (value: number): string => String(value).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}`;
  if (span < 900) return `${time}:${two(date.getSeconds())}`;
  const midnight = date.getHours() === 0 && date.getMinutes() === 0;
  if (span < 86_400 * 3 && !midnight) return time;
  return `${date.getMonth() + 1}-${two(date.getDate())}`;
}

function BarTable({ lanes, now }: { lanes: Lane[]; now: number }) {
  const words = t.value.timeline;
  const rows = lanes.flatMap((lane) => lane.bars.map((one) => ({ lane, one })));
  return (
    <div class="scroll">
      <table>
        <thead><tr><th>{words.gpu}</th><th>{words.task}</th><th>{words.from}</th><th>{words.until}</th><th class="num">{t.value.tasks.ran}</th></tr></thead>
        <tbody>
          {rows.slice(0, MOST_ROWS).map(({ lane, one }, i) => (
            <tr key={i}>
              <td>{lane.gpu_id}</td>
              <td>{one.task_id ? <TaskLink id={one.task_id}>{nameOf({ id: one.task_id, name: one.name })}</TaskLink> : words.merged(one.count ?? 1)}</td>
              <td class="nowrap">{exact(one.start)}</td>
              <td class="nowrap">{one.end === null ? words.running : exact(one.end)}</td>
              <td class="num">{duration((one.end ?? now) - one.start)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > MOST_ROWS && <p class="note-line">{t.value.common.of(number(MOST_ROWS), number(rows.length))}</p>}
    </div>
  );
}
