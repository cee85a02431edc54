import { useSignal } from "@preact/signals";
import { ApiError, may, post, remove } from "../core/api";
import { useEffect } from "preact/hooks";
import { ago, duration, instant, number } from "../core/format";
import { useResource } from "../core/resource";
import { go, place, to } from "../core/router";
import { recall, remember } from "../core/settings";
import type { Overview } from "../core/types";
import { Gantt, type GanttLane } from "../draw/gantt";
import { categoryColor } from "../draw/palette";
import { Scatter } from "../draw/scatter";
import { said, t } from "../i18n";
import { Empty, Field, notify, notifyError, PageHead, Panel, Segment, Shown } from "../ui/kit";

const STRATEGIES = ["auto", "batch", "dynamic", "heft_affinity", "search", "exact", "pareto"] as const;

/** Two models on four GPUs: small enough to read, large enough that the order matters. */
const EXAMPLE = `models:
  chat:  {memory_gb: 16, load_time_seconds: 3}
  judge: {memory_gb: 40, gpus_required: 2, load_time_seconds: 6}
workflows:
  answer:
    nodes:
      - {node_id: draft, model_name: chat, estimated_time: 4}
      - {node_id: rate, model_name: judge, estimated_time: 7}
      - {node_id: final, model_name: chat, estimated_time: 2}
    edges: [[draft, rate], [rate, final]]
requests:
  - {request_id: r, workflow_id: answer, count: 24}
gpus: 4
`;

interface Assignment {
  gpu: number;
  start: number;
  end: number;
  kind: "call" | "load";
  model: string;
  call: string | null;
  request: string | null;
  calls: number;
}

interface Result {
  strategy: string;
  makespan: number;
  lower_bound: number;
  gap: number;
  switches: number;
  switch_seconds: number;
  utilization: number;
  assignments: Assignment[];
}

interface Plan {
  id: string;
  status: JobStatus;
  error: string | null;
  created_at: string;
  results?: Result[];
  notes?: string[];
  pareto?: { makespan: number; energy: number | null; switches: number; balance: number; chosen: boolean }[] | null;
}

export type JobStatus = "queued" | "running" | "done" | "failed" | "cancelled";

export const isOver = (status: JobStatus): boolean => status !== "queued" && status !== "running";

export function JobBadge({ status }: { status: JobStatus }) {
  return <span class={`badge ${status === "failed" ? "bad" : status === "running" ? "running" : status === "done" ? "good" : ""}`}>{t.value.plans[status]}</span>;
}

/** The name of a computation: what it compares, as far as this browser knows, and when it was started. */
export function jobName(base: "plans" | "policies", job: { id: string; created_at?: string }, of?: string[]): string {
  const kind = base === "plans" ? t.value.plans.aPlan : t.value.policies.aComparison;
  const parts = of?.length ? of.join(", ") : recall(`job.${job.id}`);
  return [kind, parts, job.created_at ? instant(job.created_at) : job.id].filter(Boolean).join(" · ");
}

export function JobList({ base, jobs, again, chosen }: { base: "plans" | "policies"; jobs: { id: string; status: JobStatus; created_at?: string; error?: string | null }[]; again: () => void; chosen: string | null }) {
  const words = t.value.plans;
  const path = base === "plans" ? "plans" : "simulations";
  return (
    <div class="scroll">
      <table>
        <tbody>
          {jobs.map((one) => (
            <tr key={one.id} aria-current={one.id === chosen ? "true" : undefined}>
              <td class="break" style={{ minWidth: "200px" }}><a class="link" title={one.id} href={to(base, { id: one.id })}>{jobName(base, one)}</a></td>
              <td><JobBadge status={one.status} /></td>
              <td class="muted nowrap">{one.created_at ? ago(one.created_at) : ""}</td>
              <td class="num">
                <button type="button" class="button small quiet" onClick={() => void remove(`${path}/${encodeURIComponent(one.id)}`).then(() => { notify(words.removed); if (one.id === chosen) go(to(base)); again(); }).catch(notifyError)}>
                  {isOver(one.status) ? t.value.common.remove : t.value.common.cancel}
                </button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function PlansPage() {
  const words = t.value.plans;
  const chosen = place.value.query.get("id");
  const jobs = useResource<{ plans: Plan[] }>("plans", 3000);
  const overview = useResource<Overview>("overview", 0);
  const problem = useSignal("");
  const strategies = useSignal<string[]>(["batch", "dynamic", "heft_affinity", "auto"]);
  const seconds = useSignal("5");
  const refused = useSignal<string | null>(null);
  const busy = useSignal(false);
  const wrongSeconds = !(Number(seconds.value) > 0 && Number(seconds.value) <= 60);
  const start = async (): Promise<void> => {
    busy.value = true;
    refused.value = null;
    try {
      const made = await post<{ id: string }>("plans", { problem: problem.value, strategies: strategies.value, seconds: Number(seconds.value) });
      remember(`job.${made.id}`, strategies.value.join(", "));
      jobs.refresh();
      go(to("plans", { id: made.id }));
    } catch (error) {
      refused.value = said((error as ApiError).code, (error as ApiError).message);
    } finally {
      busy.value = false;
    }
  };
  const choose = (file: File | undefined): void => {
    if (file) void file.text().then((text) => (problem.value = text));
  };
  const missing = jobs.error.value?.missing;
  return (
    <>
      <PageHead title={words.title} note={words.subtitle} />
      {missing && <Panel><p class="muted">{t.value.common.missing}</p></Panel>}
      {!missing && (
        <div class="grid">
          <Panel class="span-7" title={words.compute} tools={<button type="button" class="button small" onClick={() => (problem.value = EXAMPLE)}>{words.example}</button>}>
            <form class="stack" onSubmit={(event) => { event.preventDefault(); void start(); }}>
              <Field label={words.problem}>
                {(ids) => <textarea {...ids} rows={9} spellcheck={false} value={problem.value} onInput={(event) => (problem.value = event.currentTarget.value)} />}
              </Field>
              <Field label={words.upload}>{(ids) => <input {...ids} type="file" accept=".yaml,.yml,.json" onChange={(event) => choose(event.currentTarget.files?.[0])} />}</Field>
              <fieldset class="row" style={{ border: 0, padding: 0, margin: 0 }}>
                <legend class="small muted">{words.strategies}</legend>
                {STRATEGIES.map((one) => (
                  <label class="check" key={one}>
                    <input type="checkbox" checked={strategies.value.includes(one)} onChange={(event) => (strategies.value = event.currentTarget.checked ? [...strategies.value, one] : strategies.value.filter((each) => each !== one))} />
                    <span class="mono">{one}</span>
                  </label>
                ))}
              </fieldset>
              <Field label={words.seconds} wrong={wrongSeconds ? t.value.submit.between(1, 60) : null}>{(ids) => <input {...ids} inputMode="decimal" style={{ maxWidth: "140px" }} value={seconds.value} onInput={(event) => (seconds.value = event.currentTarget.value)} />}</Field>
              {refused.value && <div class="callout bad break" role="alert">{refused.value}</div>}
              {may("submit") && <div><button type="submit" class="button primary" disabled={busy.value || !problem.value.trim() || strategies.value.length === 0 || wrongSeconds}>{words.start}</button></div>}
              {overview.data.value?.can_plan === false && <p class="callout">{words.needs} <code>{"pip install 'gpuyard[plan]'"}</code></p>}
            </form>
          </Panel>
          <Panel class="span-5" title={words.jobs} flush>
            <Shown of={jobs}>
              {(told) => (told.plans.length === 0 ? <Empty icon="plans" title={words.none} text={words.noneText} /> : <JobList base="plans" jobs={told.plans} again={jobs.refresh} chosen={chosen} />)}
            </Shown>
          </Panel>
        </div>
      )}
      {chosen && <PlanResult key={chosen} id={chosen} again={jobs.refresh} status={jobs.data.value?.plans.find((one) => one.id === chosen)?.status} />}
    </>
  );
}

/** When the result is there, the list shows it, too. */
export function useSameStatus(told: JobStatus | undefined, listed: JobStatus | undefined, again: () => void): void {
  useEffect(() => {
    if (told && listed && told !== listed && isOver(told)) again();
  }, [told, listed]);
}

function PlanResult({ id, status, again }: { id: string; status: JobStatus | undefined; again: () => void }) {
  const words = t.value.plans;
  const over = status !== undefined && isOver(status);
  const plan = useResource<Plan>(`plans/${encodeURIComponent(id)}`, over ? 0 : 1500);
  useSameStatus(plan.data.value?.status, status, again);
  const shown = useSignal("");
  const kind = useSignal<"energy" | "switches" | "balance">("switches");
  return (
    <Shown of={plan}>
      {(told) => {
        if (told.error) return <Panel><div class="callout bad break">{told.error}</div></Panel>;
        const results = told.results ?? [];
        if (results.length === 0) return <Panel><p class="row"><JobBadge status={told.status} /></p></Panel>;
        const best = results.reduce((a, b) => (b.makespan < a.makespan || (b.makespan === a.makespan && b.switch_seconds < a.switch_seconds) ? b : a));
        const drawn = results.find((one) => one.strategy === shown.value) ?? best;
        return (
          <>
            <Panel flush title={jobName("plans", told, results.map((one) => one.strategy))} tools={<JobBadge status={told.status} />}>
              <div class="scroll">
                <table>
                  <thead><tr><th>{words.strategy}</th><th class="num">{words.makespan}</th><th class="num">{words.bound}</th><th class="num">{words.gap}</th><th class="num">{words.switches}</th><th class="num">{words.switchTime}</th><th class="num">{words.utilization}</th></tr></thead>
                  <tbody>
                    {results.map((one) => (
                      <tr key={one.strategy}>
                        <td class="mono">{one.strategy} {one === best && <span class="badge good">{t.value.policies.best}</span>}</td>
                        <td class="num">{number(one.makespan, 1)} s</td><td class="num">{number(one.lower_bound, 1)} s</td><td class="num">{number(one.gap * 100, 1)}%</td>
                        <td class="num">{number(one.switches)}</td><td class="num">{number(one.switch_seconds, 1)} s</td><td class="num">{number(one.utilization * 100, 1)}%</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            </Panel>
            <Panel title={words.gantt} tools={<Segment label={words.strategy} value={drawn.strategy} options={results.map((one) => ({ value: one.strategy, label: one.strategy }))} onChange={(value) => (shown.value = value)} />}>
              <div class="stack">
                <Gantt label={`${words.gantt}: ${drawn.strategy}, ${words.makespan} ${duration(drawn.makespan)}`} lanes={lanesOf(drawn)} from={0} to={drawn.makespan} axis={(at) => `${number(at, at < 10 ? 1 : 0)} s`} />
                <div class="legend">{modelsOf(drawn).map((one) => <span key={one}><i class="swatch" style={{ background: categoryColor(one) }} />{one}</span>)}</div>
                <p class="small muted">{words.ganttHint} {told.notes?.join(" ")}</p>
              </div>
            </Panel>
            {told.pareto && told.pareto.length > 0 && (
              <Panel title={words.pareto} tools={<Segment label={words.pareto} value={kind.value} options={[{ value: "switches", label: words.switches }, { value: "balance", label: words.balance }, { value: "energy", label: words.energy }]} onChange={(value) => (kind.value = value)} />}>
                <Scatter label={`${words.pareto}: ${words.makespan}, ${words[kind.value]}`} xLabel={`${words.makespan} (s)`} yLabel={words[kind.value]} points={told.pareto.filter((one) => one[kind.value] !== null).map((one) => ({ x: one.makespan, y: one[kind.value]!, chosen: one.chosen }))} />
                <p class="small muted">{words.paretoHint}</p>
              </Panel>
            )}
          </>
        );
      }}
    </Shown>
  );
}

const MOST_MODELS = 16;

function modelsOf(result: Result): string[] {
  return [...new Set(result.assignments.map((one) => one.model))].sort().slice(0, MOST_MODELS);
}

function lanesOf(result: Result): GanttLane[] {
  const words = t.value.plans;
  const lanes = new Map<string, GanttLane>();
  for (const one of result.assignments) {
    const gpu = `GPU ${one.gpu}`;
    let lane = lanes.get(gpu);
    if (!lane) lanes.set(gpu, (lane = { label: gpu, bars: [] }));
    const load = one.kind === "load";
    const label = load ? `${words.load} ${one.model}` : one.calls > 1 ? `${one.model} × ${number(one.calls)}` : [one.request, one.call].filter(Boolean).join(" · ");
    lane.bars.push({ start: one.start, end: one.end, label, color: categoryColor(one.model), hatched: load, lines: [one.model, `${number(one.start, 1)} – ${number(one.end, 1)} s`] });
  }
  return [...lanes.values()].sort((a, b) => a.label.localeCompare(b.label, undefined, { numeric: true }));
}
