import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { ago, duration, number, secondsSince } from "../core/format";
import { visible } from "../core/ansi";
import { may, post, seesOneTenant, session } from "../core/api";
import { counts } from "../core/live";
import { useResource } from "../core/resource";
import { to } from "../core/router";
import type { Alert, Counts, History, Overview } from "../core/types";
import { Chart } from "../draw/chart";
import { palette } from "../draw/palette";
import { eventSaid, t } from "../i18n";
import { alertText } from "./alerts";
import { Empty, Meter, notify, notifyError, PageHead, Panel, Problem, Segment, Shown, Skeletons, Stat, TaskLink, Time } from "../ui/kit";
// Six tasks that show queueing, classes, priorities, a failure and a dependency within a minute; `gpuyard demo` submits the same.
import sample from "../../../src/gpuyard/cli/sample_workload.json";

export type Range = "hour" | "day" | "week";
export const RANGE_SECONDS: Record<Range, number> = { hour: 3600, day: 86_400, week: 604_800 };

/** A path of history whose range moves with time in steps, so that it is asked again and not for every second. */
export function historyPath(base: string, seconds: number, series = ""): string {
  const step = Math.max(5, Math.floor(seconds / 500));
  const now = Math.ceil(Date.now() / 1000 / step) * step;
  return `${base}?from=${now - seconds}&to=${now}${series ? `&series=${series}` : ""}`;
}

/** The part of a history that has values: a young cluster fills its charts instead of a corner of them. */
export function known(told: History): History {
  const columns = Object.values(told.series);
  const first = told.times.findIndex((_, i) => columns.some((values) => values[i] != null));
  if (first < told.times.length / 5) return told;
  const from = Math.max(0, first - 1);
  return { ...told, times: told.times.slice(from), series: Object.fromEntries(Object.entries(told.series).map(([name, values]) => [name, values.slice(from)])) };
}

export async function submitSample(): Promise<void> {
  try {
    await post("tasks:batch", sample);
    notify(t.value.overview.sampleDone);
  } catch (problem) {
    notifyError(problem);
  }
}

export function SampleButton() {
  const busy = useSignal(false);
  const start = async (): Promise<void> => {
    busy.value = true;
    await submitSample();
    busy.value = false;
  };
  return (
    <button type="button" class="button" disabled={busy.value} onClick={() => void start()}>
      {t.value.overview.sample}
    </button>
  );
}

export function OverviewPage() {
  const words = t.value.overview;
  const overview = useResource<Overview>("overview", 5000);
  const told = overview.data.value;
  const now = counts.value ?? told;
  const error = overview.error.value;
  const gpus = now?.gpus;
  const tasks = now?.tasks;
  const nodes = now?.nodes;
  const waiting = tasks?.pending ?? 0;
  // a member sees the GPUs of the whole cluster, and the tasks of one tenant
  const ofCluster = seesOneTenant() && <span>{words.ofCluster}</span>;
  const ofTenant = seesOneTenant() && <span>{words.ofTenant(session.value?.tenant_id ?? "")}</span>;
  return (
    <>
      <PageHead title={words.title} note={told ? `gpuyard ${told.version} · ${words.up(duration(secondsSince(told.started_at)))}` : " "} />
      {error && !error.away && !told && <Problem error={error} retry={overview.refresh} />}
      {nodes && nodes.total === 0 && (
        <Panel>
          <Empty icon="nodes" title={words.noNodesTitle} text={words.noNodesText}>
            <pre class="block">gpuyard agent --config agent.yaml</pre>
          </Empty>
          <p class="muted small" style={{ textAlign: "center" }}>
            {words.noNodesHint}
          </p>
        </Panel>
      )}
      {told && nodes && nodes.total > 0 && tasks && tasks.running + tasks.pending + tasks.suspended === 0 && told.changes.every((one) => !one.task_id) && may("submit") && (
        <Panel>
          <Empty icon="tasks" title={words.emptyTitle} text={words.emptyText}>
            <a class="button primary" href={to("submit")}>
              {words.firstTask}
            </a>
            <SampleButton />
          </Empty>
        </Panel>
      )}
      <div class="stats">
        <Stat label={words.gpusInUse} value={gpus ? number(gpus.busy) : null} unit={gpus ? words.ofGpus(number(gpus.total)) : ""} href={to("gpus")}>
          {gpus && (
            <>
              {ofCluster}
              <span>{words.idle(number(gpus.idle))}</span>
              {gpus.external > 0 && <span>{words.external(number(gpus.external))}</span>}
              {gpus.offline > 0 && <span>{words.offline(number(gpus.offline))}</span>}
            </>
          )}
        </Stat>
        <Stat label={words.running} value={tasks ? number(tasks.running) : null} href={to("tasks", { status: "running" })}>
          {ofTenant}
          {tasks && tasks.suspended > 0 && <span>{words.suspended(number(tasks.suspended))}</span>}
        </Stat>
        <Stat label={words.queue} value={tasks ? number(tasks.pending) : null} unit={words.waiting} href={to("tasks", { status: "pending" })}>
          {ofTenant}
          {told && told.longest_wait_seconds !== null && waiting > 0 && <span>{words.longest(duration(told.longest_wait_seconds))}</span>}
        </Stat>
        <Stat label={words.expectedWait} value={told ? (waiting === 0 ? "–" : told.expected_wait_seconds === null ? "–" : duration(told.expected_wait_seconds)) : null}>
          {ofTenant}
          <span>{waiting === 0 ? words.noWait : told?.expected_wait_seconds == null ? words.unknownWait : words.medianWait}</span>
        </Stat>
        <Stat label={words.nodes} value={nodes ? number(nodes.online) : null} unit={nodes ? words.ofGpus(number(nodes.total)) : ""} href={to("nodes")}>
          <span>{words.online}</span>
          {nodes && nodes.offline > 0 && <span class="badge bad">{words.offline(number(nodes.offline))}</span>}
        </Stat>
      </div>
      <div class="grid">
        <div class="span-8 column">
          <Trends />
          <div class="halves">
            <Panel title={words.byTenant} flush>
              {told ? <TenantTable rows={told.tenants} total={told.gpus.total} /> : <div class="note-line"><Skeletons /></div>}
            </Panel>
            <Panel title={words.quota}>
              {told ? <QuotaBars overview={told} /> : <Skeletons />}
            </Panel>
          </div>
        </div>
        <div class="span-4 column">
          <AlertsBox />
          <Panel class="grows" title={words.changes} flush>
            {told ? <Changes rows={told.changes} /> : <div class="note-line"><Skeletons /></div>}
          </Panel>
        </div>
      </div>
    </>
  );
}

const LIVE: Record<string, (now: Counts) => number> = {
  gpus_total: (now) => now.gpus.total,
  gpus_busy: (now) => now.gpus.busy,
  tasks_pending: (now) => now.tasks.pending,
  tasks_running: (now) => now.tasks.running,
};
const MOST_LIVE = 600;

/** A history continued by what the stream has told since its last point. */
function continued(told: History, live: [number, Counts][]): History {
  const last = told.times.findLast((_, i) => told.series.gpus_total?.[i] != null) ?? 0;
  const newer = live.filter(([at]) => at > last + 1);
  if (newer.length === 0) return told;
  const kept = told.times.filter((at) => at <= last).length;
  const series = Object.fromEntries(Object.entries(told.series).map(([name, values]) => [name, [...values.slice(0, kept), ...newer.map(([, now]) => LIVE[name]?.(now) ?? null)]]));
  return { ...told, times: [...told.times.slice(0, kept), ...newer.map(([at]) => at)], series };
}

function Trends() {
  const words = t.value.overview;
  const live = useSignal<[number, Counts][]>([]);
  useEffect(() => {
    if (counts.value) live.value = [...live.value.slice(1 - MOST_LIVE), [Date.now() / 1000, counts.value]];
  }, [counts.value]);
  const range = useSignal<Range>("hour");
  const seconds = RANGE_SECONDS[range.value];
  const history = useResource<History>(historyPath("history", seconds, "gpus_total,gpus_busy,gpus_external,tasks_pending,tasks_running"), range.value === "hour" ? 10_000 : 60_000);
  const colors = palette.value;
  return (
    <Panel
      title={<>{words.overTime}{seesOneTenant() && <span class="muted small"> · {words.ofCluster}</span>}</>}
      tools={
        <Segment<Range> label={words.range} value={range.value} onChange={(value) => (range.value = value)}
          options={[{ value: "hour", label: words.hour }, { value: "day", label: words.day }, { value: "week", label: words.week }]} />
      }
    >
      <Shown of={history} lines={6}>
        {(all) => {
          // the counters of a member are those of a tenant, the history is that of the cluster
          const told = known(seesOneTenant() ? all : continued(all, live.value));
          return told.times.length === 0 || !told.series.gpus_busy?.some((one) => one !== null) ? (
            <p class="note-line">{words.noHistory}</p>
          ) : (
            <div class="stack">
              <Chart
                label={words.overTime}
                x={told.times}
                height={190}
                atLeast={1}
                whole
                lines={[
                  { label: words.inUse, values: told.series.gpus_busy ?? [], color: colors.accent, fill: true },
                  { label: words.total, values: told.series.gpus_total ?? [], color: colors.faint, dash: true },
                ]}
              />
              <Chart
                label={words.queueOverTime}
                x={told.times}
                height={130}
                atLeast={1}
                whole
                lines={[
                  { label: words.runs, values: told.series.tasks_running ?? [], color: colors.blue },
                  { label: words.waits, values: told.series.tasks_pending ?? [], color: colors.amber },
                ]}
              />
            </div>
          );
        }}
      </Shown>
    </Panel>
  );
}

function AlertsBox() {
  const words = t.value;
  const alerts = useResource<{ alerts: Alert[] }>("alerts", 5000);
  const firing = counts.value?.alerts?.firing ?? 0;
  useEffect(() => {
    if (alerts.data.value) alerts.refresh();
  }, [firing]);
  return (
    <Panel title={words.overview.alerts} flush tools={<a class="link small" href={to("alerts")}>{words.common.all}</a>}>
      {alerts.data.value === null && !alerts.error.value ? (
        <div class="note-line"><Skeletons /></div>
      ) : (
        <Shown of={alerts}>
          {(told) => {
            const active = told.alerts.filter((one) => one.state === "firing");
            const pending = told.alerts.filter((one) => one.state === "pending").length;
            if (active.length === 0) return <Empty icon="check" title={words.overview.noAlerts} text={pending > 0 ? words.overview.pendingAlerts(pending) : undefined} />;
            return (
              <ul class="changes" tabIndex={0} aria-label={words.overview.alerts}>
                {active.slice(0, 12).map((one) => (
                  <li key={one.id}>
                    <span class={`badge ${one.state === "firing" ? (one.severity === "critical" ? "bad" : "warn") : ""}`}>{words.alerts[one.state]}</span>
                    <span class="break">
                      {alertText(one)} <span class="muted nowrap">{ago(one.fired_at ?? one.since)}</span>
                    </span>
                  </li>
                ))}
              </ul>
            );
          }}
        </Shown>
      )}
    </Panel>
  );
}

function TenantTable({ rows, total }: { rows: Overview["tenants"]; total: number }) {
  const words = t.value.overview;
  const sorted = [...rows].sort((a, b) => b.gpus - a.gpus || b.running - a.running).slice(0, 12);
  if (sorted.length === 0) return <p class="note-line">{t.value.tenants.none}</p>;
  return (
    <div class="scroll">
      <table>
        <thead>
          <tr>
            <th>{words.tenant}</th>
            <th class="num">{words.gpus}</th>
            <th class="num">{words.runs}</th>
            <th class="num">{words.waits}</th>
          </tr>
        </thead>
        <tbody>
          {sorted.map((one) => (
            <tr key={one.tenant_id}>
              <td class="cut" style={{ maxWidth: "140px" }}>
                <a class="link" href={to("tasks", { tenant: one.tenant_id })}>
                  {one.tenant_id}
                </a>
                <Meter label={`${one.tenant_id}: ${one.gpus}`} parts={[{ value: one.gpus }]} most={total} />
              </td>
              <td class="num">{number(one.gpus)}</td>
              <td class="num">{number(one.running)}</td>
              <td class="num">{number(one.pending)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function QuotaBars({ overview }: { overview: Overview }) {
  const words = t.value;
  const { quota, classes } = overview;
  const most = Math.max(overview.gpus.total, 1);
  return (
    <div class="stack">
      {(["online", "batch"] as const).map((one) => {
        const found = classes.find((each) => each.class === one);
        const used = quota ? quota[one].used : (found?.gpus ?? 0);
        const limit = quota ? quota[one].quota : most;
        const borrowed = quota ? Math.max(0, used - limit) : 0;
        return (
          <div class="stack" key={one} style={{ gap: "5px" }}>
            <div class="spread">
              <strong>{words.taskClass[one]}</strong>
              <span class="muted">{quota ? words.overview.quotaUse(number(used), number(limit), borrowed ? number(borrowed) : "") : `${number(used)} GPU`}</span>
            </div>
            <Meter label={`${words.taskClass[one]}: ${used} / ${limit}`} parts={[{ value: used - borrowed, class: one === "online" ? "blue" : "" }, { value: borrowed, class: "amber" }]} most={limit} />
            <span class="small muted">
              {words.overview.runs} {number(found?.running ?? 0)} · {words.overview.waits} {number(found?.pending ?? 0)}
            </span>
          </div>
        );
      })}
      {!quota && <p class="small muted">{words.overview.noQuota}</p>}
      {may("run_cluster") && (
        <a class="link small" href={to("tenants")}>
          {quota ? words.tenants.change : words.overview.setQuota}
        </a>
      )}
    </div>
  );
}

function Changes({ rows }: { rows: Overview["changes"] }) {
  if (rows.length === 0) return <p class="note-line">{t.value.overview.noChanges}</p>;
  return (
    <ul class="changes" tabIndex={0} aria-label={t.value.overview.changes}>
      {rows.map((one, i) => (
        <li key={`${one.at}-${i}`}>
          <Time at={one.at} />
          <span class="break">
            {one.task_id && <TaskLink id={one.task_id} />} {eventText(one)}
          </span>
        </li>
      ))}
    </ul>
  );
}

/** The sentence without the id in front, which is a link already. */
function eventText(one: Overview["changes"][number]): string {
  const text = visible(eventSaid(one)).replace(` (${one.task_id})`, "");
  return one.task_id && text.startsWith(one.task_id) ? text.slice(one.task_id.length).replace(/^[:\s]+/, "") : text;
}
