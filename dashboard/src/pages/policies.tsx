import { useSignal } from "@preact/signals";
import { ApiError, may, post, seesOneTenant } from "../core/api";
import { duration, number } from "../core/format";
import { useResource } from "../core/resource";
import { go, place, to } from "../core/router";
import { remember } from "../core/settings";
import { Chart } from "../draw/chart";
import { SERIES } from "../draw/palette";
import { said, t } from "../i18n";
import { Empty, Field, PageHead, Panel, Segment, Shown } from "../ui/kit";
import { isOver, JobBadge, JobList, jobName, type JobStatus, useSameStatus } from "./plans";

const POLICIES = ["default", "priority", "fifo", "fair_share", "sjf", "qssf", "srtf", "tiresias", "small_first"];

/** The row of what really happened. */
const RECORDED = "recorded";

/** The policy of the journal with its settings; generated tasks have none. */
const SAME = "same";

interface PolicyResult {
  policy: string;
  tasks: number;
  mean_wait: number;
  p50_wait: number;
  p95_wait: number;
  p99_wait: number;
  /** Pairs of seconds and the part of the tasks that waited at most that long. */
  waits: [number, number][];
  fairness: number;
  gpu_hours: number;
  makespan: number;
  preemptions: number;
}

interface Simulation {
  id: string;
  status: JobStatus;
  error: string | null;
  created_at: string;
  policies?: PolicyResult[];
  notes?: string[];
}

export function PoliciesPage() {
  const words = t.value.policies;
  const chosen = place.value.query.get("id");
  const jobs = useResource<{ simulations: Simulation[] }>("simulations", 3000);
  const source = useSignal<"journal" | "generate">("generate");
  const policies = useSignal<string[]>(["default", "fifo", "fair_share"]);
  const tasks = useSignal("500");
  const nodes = useSignal("4x8:H200");
  const refused = useSignal<string | null>(null);
  const busy = useSignal(false);
  const compared = source.value === "journal" ? policies.value : policies.value.filter((one) => one !== SAME);
  const start = async (): Promise<void> => {
    busy.value = true;
    refused.value = null;
    try {
      const made = await post<{ id: string }>("simulations", source.value === "journal" ? { source: "journal", policies: compared } : { source: { generate: Number(tasks.value) }, nodes: nodes.value.trim(), policies: compared });
      remember(`job.${made.id}`, [source.value === "journal" ? words.journal : words.generated(tasks.value), compared.join(", ")].join(": "));
      jobs.refresh();
      go(to("policies", { id: made.id }));
    } catch (error) {
      refused.value = said((error as ApiError).code, (error as ApiError).message);
    } finally {
      busy.value = false;
    }
  };
  const missing = jobs.error.value?.missing;
  return (
    <>
      <PageHead title={words.title} note={words.subtitle} />
      {missing && <Panel><p class="muted">{t.value.common.missing}</p></Panel>}
      {!missing && (
        <div class="grid">
          <Panel class="span-7">
            <form class="stack" onSubmit={(event) => { event.preventDefault(); void start(); }}>
              {!seesOneTenant() && <div class="row">
                <Segment label={words.source} value={source.value} options={[{ value: "journal", label: words.journal }, { value: "generate", label: words.generate }]} onChange={(value) => (source.value = value)} />
              </div>}
              {source.value === "journal" && <p class="small muted">{words.journalNote}</p>}
              {source.value === "generate" && (
                <div class="fields">
                  <Field label={words.tasks}>{(ids) => <input {...ids} inputMode="numeric" value={tasks.value} onInput={(event) => (tasks.value = event.currentTarget.value)} />}</Field>
                  <Field label={words.cluster}>{(ids) => <input {...ids} value={nodes.value} onInput={(event) => (nodes.value = event.currentTarget.value)} />}</Field>
                </div>
              )}
              <fieldset class="row" style={{ border: 0, padding: 0, margin: 0 }}>
                <legend class="small muted">{words.policies}</legend>
                {[...(source.value === "journal" ? [SAME] : []), ...POLICIES].map((one) => (
                  <label class="check" key={one}>
                    <input type="checkbox" checked={policies.value.includes(one)} onChange={(event) => (policies.value = event.currentTarget.checked ? [...policies.value, one] : policies.value.filter((each) => each !== one))} />
                    <span class="mono">{one}</span>
                  </label>
                ))}
              </fieldset>
              {refused.value && <div class="callout bad break" role="alert">{refused.value}</div>}
              {may("submit") && <div><button type="submit" class="button primary" disabled={busy.value || compared.length === 0}>{words.start}</button></div>}
            </form>
          </Panel>
          <Panel class="span-5" title={t.value.plans.jobs} flush>
            <Shown of={jobs}>
              {(told) => (told.simulations.length === 0 ? <Empty icon="policies" title={words.none} text={words.noneText} /> : <JobList base="policies" jobs={told.simulations} again={jobs.refresh} chosen={chosen} />)}
            </Shown>
          </Panel>
        </div>
      )}
      {chosen && <SimulationResult key={chosen} id={chosen} again={jobs.refresh} status={jobs.data.value?.simulations.find((one) => one.id === chosen)?.status} />}
    </>
  );
}

function SimulationResult({ id, status, again }: { id: string; status: JobStatus | undefined; again: () => void }) {
  const words = t.value.policies;
  const result = useResource<Simulation>(`simulations/${encodeURIComponent(id)}`, status !== undefined && isOver(status) ? 0 : 1500);
  useSameStatus(result.data.value?.status, status, again);
  return (
    <Shown of={result}>
      {(told) => {
        if (told.error) return <Panel><div class="callout bad break">{told.error}</div></Panel>;
        const rows = told.policies ?? [];
        if (rows.length === 0) return <Panel><p class="row"><JobBadge status={told.status} /></p></Panel>;
        const recorded = rows.some((one) => one.policy === RECORDED);
        const best = Math.min(...rows.filter((one) => one.policy !== RECORDED).map((one) => one.mean_wait));
        const { x, lines } = curves(rows);
        return (
          <>
            <Panel flush title={jobName("policies", told)} tools={<JobBadge status={told.status} />}>
              <div class="scroll">
                <table>
                  <thead><tr><th>{words.policy}</th><th class="num">{words.meanWait}</th><th class="num">{words.median}</th><th class="num">{words.p95}</th><th class="num">{words.p99}</th><th class="num">{words.fairness}</th><th class="num">{words.gpuHours}</th><th class="num">{words.makespan}</th><th class="num">{words.preemptions}</th></tr></thead>
                  <tbody>
                    {rows.map((one) => (
                      <tr key={one.policy}>
                        <td class="mono">{one.policy} {one.policy !== RECORDED && one.mean_wait === best && <span class="badge good">{words.best}</span>}</td>
                        <td class="num">{duration(one.mean_wait)}</td><td class="num">{duration(one.p50_wait)}</td><td class="num">{duration(one.p95_wait)}</td><td class="num">{duration(one.p99_wait)}</td>
                        <td class="num">{one.fairness.toFixed(2)}</td><td class="num">{number(one.gpu_hours, 1)}</td><td class="num">{duration(one.makespan)}</td><td class="num">{number(one.preemptions)}</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
              {recorded && <p class="note-line">{words.recordedNote}</p>}
            </Panel>
            {x.length > 1 && (
              <Panel title={words.cdf}>
                <Chart label={words.cdf} x={x} lines={lines} height={260} atLeast={100} unit={(value) => (value === null ? "–" : `${number(value)}%`)} xUnit={(value) => duration(value)} />
                {told.notes?.map((note) => <p class="small muted" key={note}>{note}</p>)}
              </Panel>
            )}
          </>
        );
      }}
    </Shown>
  );
}

/** All curves over the union of their waits: each is a step function. */
function curves(rows: PolicyResult[]) {
  const all = rows.map((one) => one.waits);
  const x = [...new Set(all.flat().map(([at]) => at))].sort((a, b) => a - b);
  const lines = rows.map((one, i) => {
    let next = 0;
    let share = 0;
    const values = x.map((at) => {
      while (next < all[i]!.length && all[i]![next]![0] <= at) share = all[i]![next++]![1];
      return share * 100;
    });
    return { label: one.policy, values, color: SERIES[i % SERIES.length]!, step: true };
  });
  return { x, lines };
}
