import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { ApiError, may, post } from "../core/api";
import { band as bandText, duration, mebibytes, number, quoted, secondsOf } from "../core/format";
import { cards } from "../core/live";
import { useResource } from "../core/resource";
import { go, place, to } from "../core/router";
import type { StartBand, Task } from "../core/types";
import { adviceOf, said, t } from "../i18n";
import { Icon } from "../ui/icons";
import { copyText, Facts, Field, notify, PageHead, Panel, Select, Skeletons } from "../ui/kit";

interface Form {
  command: string; name: string; gpus: string; model: string; gpuMemory: string; fraction: string; cpus: string; memory: string; nodes: string; class: string;
  priority: string; timeout: string; estimate: string; retries: string; preemption: string; depends: string; project: string; tenant: string; env: string; workDir: string; array: string;
}

const BLANK: Form = {
  command: "", name: "", gpus: "1", model: "", gpuMemory: "", fraction: "", cpus: "", memory: "", nodes: "", class: "", priority: "", timeout: "", estimate: "", retries: "",
  preemption: "", depends: "", project: "", tenant: "", env: "", workDir: "", array: "",
};

interface QuotaFigures {
  class_limit: number | null;
  class_used: number;
  tenant_limit: number | null;
  tenant_used: number;
}

interface Preview {
  would_start: "now" | "later" | "never";
  node_id: string | null;
  gpus: string[];
  expected_start: StartBand | null;
  reason: string | null;
  reason_code: string | null;
  ahead: number;
  preempts: string[];
  predicted: { seconds: { low: number; likely: number; high: number } | null; memory_mb: number | null; predicted_from: number | null } | null;
  quota: { before: QuotaFigures; after: QuotaFigures } | null;
}

type Wrong = Partial<Record<keyof Form, string>>;

/** Fields under "More options". */
const MORE: (keyof Form)[] = ["retries", "fraction", "array", "tenant", "workDir", "depends", "env"];

const NUMBER_FIELDS: [keyof Form, string, number, number, boolean][] = [
  // field, name in the API, least, most, whole
  ["gpus", "gpu_count", 0, 1024, true], ["gpuMemory", "gpu_memory_mb", 1, 10_000_000, true], ["fraction", "gpu_fraction", 0, 1, false], ["cpus", "cpu_count", 1, 4096, true],
  ["memory", "memory_mb", 1, 100_000_000, true], ["nodes", "nodes", 1, 1024, true], ["priority", "priority", 0, 100, true], ["retries", "retries", 0, 100, true],
];
const TIME_FIELDS: [keyof Form, string][] = [["timeout", "timeout"], ["estimate", "estimated_seconds"]];
const MOST_SECONDS = 31_536_000;

/** The request of a form, and what is wrong with it before the server is asked. */
export function requestOf(form: Form): { request: Record<string, unknown>; wrong: Wrong } {
  const words = t.value.submit;
  const request: Record<string, unknown> = {};
  const wrong: Wrong = {};
  if (!form.command.trim()) wrong.command = words.required;
  else request.command = form.command;
  for (const [field, name, least, most, whole] of NUMBER_FIELDS) {
    const text = form[field].trim();
    if (!text) continue;
    const value = Number(text);
    if (Number.isNaN(value) || value < least || value > most) wrong[field] = words.between(least, most);
    else if (whole && !Number.isInteger(value)) wrong[field] = words.wholeNumber;
    else request[name] = value;
  }
  for (const [field, name] of TIME_FIELDS) {
    const text = form[field].trim();
    if (!text) continue;
    const seconds = secondsOf(text);
    if (seconds === null || seconds <= 0 || seconds > MOST_SECONDS) wrong[field] = words.badTime;
    else request[name] = seconds;
  }
  if (form.fraction.trim()) delete request.gpu_count;
  const texts: [keyof Form, string][] = [["name", "name"], ["class", "class"], ["preemption", "preemption"], ["project", "project"], ["tenant", "tenant_id"], ["workDir", "work_dir"]];
  for (const [field, name] of texts) if (form[field].trim()) request[name] = form[field].trim();
  const models = form.model.split(",").map((one) => one.trim()).filter(Boolean);
  if (models.length) request.gpu_model = models.length === 1 ? models[0] : models;
  const depends = form.depends.split(/[\s,]+/).filter(Boolean);
  if (depends.length) request.depends_on = depends;
  const env: Record<string, string> = {};
  for (const line of form.env.split("\n").filter((one) => one.trim())) {
    const at = line.indexOf("=");
    if (at < 1) wrong.env = words.badEnv(line.slice(0, 60));
    else env[line.slice(0, at).trim()] = line.slice(at + 1);
  }
  if (Object.keys(env).length) request.env = env;
  if (form.array.trim()) {
    const count = Number(form.array);
    if (!Number.isInteger(count) || count < 1 || count > 10_000) wrong.array = words.between(1, 10_000);
    else request.array = { count };
  }
  return { request, wrong };
}

const FIELD_OF: Record<string, keyof Form> = Object.fromEntries([
  ...NUMBER_FIELDS.map(([field, name]) => [name, field]), ...TIME_FIELDS.map(([field, name]) => [name, field]), ["command", "command"], ["name", "name"], ["class", "class"], ["gpu_model", "model"], ["depends_on", "depends"],
  ["project", "project"], ["tenant_id", "tenant"], ["env", "env"], ["work_dir", "workDir"], ["array", "array"], ["preemption", "preemption"],
]) as Record<string, keyof Form>;

function formOf(task: Task): Form {
  const text = (value: number | null | undefined): string => (value ? String(value) : "");
  return {
    ...BLANK,
    command: Array.isArray(task.command) ? task.command.map(quoted).join(" ") : (task.command ?? ""),
    name: task.name, gpus: task.gpu_fraction ? "" : String(task.gpu_count), fraction: text(task.gpu_fraction),
    model: Array.isArray(task.gpu_model) ? task.gpu_model.join(", ") : (task.gpu_model ?? ""),
    gpuMemory: text(task.gpu_memory_mb), cpus: text(task.cpu_count), memory: text(task.memory_mb), nodes: task.nodes > 1 ? String(task.nodes) : "",
    class: task.class, priority: typeof task.priority === "number" ? String(task.priority) : "", timeout: text(task.timeout), estimate: task.predicted_from ? "" : text(task.estimated_seconds), retries: text(task.retries),
    preemption: task.preemption === "never" ? "" : task.preemption, project: task.project, tenant: task.tenant_id, workDir: task.work_dir ?? "",
    env: Object.entries(task.env).map(([name, value]) => `${name}=${value}`).join("\n"),
  };
}

/** The option of `gpuyard submit` for each field of a request. */
const OPTIONS: Record<string, (value: never) => string[]> = {
  name: (value: string) => ["--name", value],
  project: (value: string) => ["--project", value],
  tenant_id: (value: string) => ["--tenant", value],
  gpu_count: (value: number) => ["--gpus", String(value)],
  gpu_fraction: (value: number) => ["--fraction", String(value)],
  gpu_model: (value: string | string[]) => [value].flat().flatMap((one) => ["--gpu-model", one]),
  gpu_memory_mb: (value: number) => ["--gpu-mem", String(value)],
  cpu_count: (value: number) => ["--cpus", String(value)],
  memory_mb: (value: number) => ["--mem", String(value)],
  nodes: (value: number) => ["--nodes", String(value)],
  class: (value: string) => ["--class", value],
  priority: (value: number) => ["--priority", String(value)],
  timeout: (value: number) => ["--timeout", String(value)],
  estimated_seconds: (value: number) => ["--estimate", String(value)],
  retries: (value: number) => ["--retries", String(value)],
  preemption: (value: string) => ["--preemption", value],
  depends_on: (value: string[]) => value.flatMap((one) => ["--after", one]),
  array: (value: { count: number }) => ["--array", String(value.count)],
  work_dir: (value: string) => ["--work-dir", value],
  env: (value: Record<string, string>) => Object.entries(value).flatMap(([name, text]) => ["--env", `${name}=${text}`]),
};

/** The same request on the command line, and the fields for which it has no option. The virtual environment of the shell is no part of a request. */
export function commandLine(request: Record<string, unknown>): { line: string; without: string[] } {
  const { command, ...rest } = request;
  const without = Object.keys(rest).filter((name) => !(name in OPTIONS));
  const words = Object.keys(OPTIONS).filter((name) => name in rest).flatMap((name) => OPTIONS[name]!(rest[name] as never));
  return { line: ["gpuyard", "submit", "--clean-env", ...words, "--shell", String(command)].map(quoted).join(" "), without };
}

export function SubmitPage() {
  const words = t.value.submit;
  const source = place.value.query.get("from");
  const original = useResource<Task>(source ? `tasks/${encodeURIComponent(source)}` : null);
  const form = useSignal<Form>(BLANK);
  const touched = useSignal(false);
  const told = useSignal<Wrong>({});
  const refused = useSignal<string | null>(null);
  const busy = useSignal(false);
  const preview = useSignal<Preview | "none" | "checking" | null>(null);
  const more = useSignal(false);
  const page = useRef<HTMLFormElement>(null);
  useEffect(() => {
    if (original.data.value) form.value = formOf(original.data.value);
  }, [original.data.value]);

  const { request, wrong } = requestOf(form.value);
  const body = JSON.stringify(request);
  const valid = Object.keys(wrong).length === 0;
  useEffect(() => {
    if (!valid) return void (preview.value = null);
    const stop = { done: false };
    const timer = setTimeout(async () => {
      if (preview.value === null) preview.value = "checking";
      try {
        const answer = await post<Preview>("tasks?dry_run=true", request);
        if (!stop.done) [preview.value, told.value, refused.value] = [answer, {}, null];
      } catch (problem) {
        if (!stop.done) show(problem as ApiError, true);
      }
    }, 350);
    return () => {
      stop.done = true;
      clearTimeout(timer);
    };
  }, [body]);

  function show(error: ApiError, quiet = false): void {
    if (error.code === "UnknownParameter" || error.missing) return void (preview.value = "none");
    preview.value = null;
    const field = error.field ? FIELD_OF[error.field.split(/[.[]/, 1)[0]!] : undefined;
    const sentence = said(error.code, error.message) || error.message;
    if (field) told.value = { [field]: sentence };
    else if (!quiet || !error.away) refused.value = sentence;
  }

  /** Show the first field that is wrong, also if it is under "More options". */
  const focusWrong = (): void => {
    if (MORE.some((name) => wrong[name] ?? told.value[name])) more.value = true;
    requestAnimationFrame(() => page.current?.querySelector<HTMLElement>('[aria-invalid="true"]')?.focus());
  };

  const send = async (): Promise<void> => {
    touched.value = true;
    if (!valid) return focusWrong();
    busy.value = true;
    refused.value = null;
    try {
      const task = await post<{ id: string; tasks?: { id: string }[] }>("tasks", request, { "idempotency-key": crypto.getRandomValues(new Uint32Array(4)).join("-") });
      notify(words.done(task.id));
      go(to(["tasks", task.id]));
    } catch (problem) {
      show(problem as ApiError);
      focusWrong();
    } finally {
      busy.value = false;
    }
  };
  const shown = (name: keyof Form): string | null => (touched.value || name !== "command" ? wrong[name] : undefined) ?? told.value[name] ?? null;
  const set = (name: keyof Form, value: string): void => void (form.value = { ...form.value, [name]: value });
  const text = (name: keyof Form, label: string, hint = "", mode: "text" | "decimal" = "text"): ComponentChildren => (
    <Field label={label} hint={hint} wrong={shown(name)}>
      {(ids) => <input {...ids} inputMode={mode} autocomplete="off" spellcheck={false} value={form.value[name]} onInput={(event) => set(name, event.currentTarget.value)} />}
    </Field>
  );
  const same = commandLine(request);
  const models = [...new Set(cards.value?.cards.map((one) => one.model) ?? [])];
  if (!may("submit")) return <p class="note-line">{t.value.common.forbidden}</p>;
  return (
    <>
      <PageHead title={source ? words.cloneOf(source) : words.title} back={{ href: to("tasks"), text: t.value.task.back }} />
      <form class="grid" ref={page} noValidate onSubmit={(event) => { event.preventDefault(); void send(); }}>
        <div class="span-8 stack" style={{ gap: "16px", alignContent: "start" }}>
          <Panel>
            <div class="stack">
              <Field label={words.command} hint={words.commandHint} wrong={shown("command")}>
                {(ids) => <textarea {...ids} spellcheck={false} rows={3} placeholder="python train.py --epochs 10" value={form.value.command} onInput={(event) => set("command", event.currentTarget.value)} />}
              </Field>
              <div class="fields">{text("name", words.name)}{text("project", words.project)}</div>
            </div>
          </Panel>
          <Panel title={words.resources}>
            <div class="fields">
              {text("gpus", words.gpus, "", "decimal")}
              <Field label={words.gpuModel} wrong={shown("model")}>
                {(ids) => (
                  <select {...ids} value={form.value.model} onChange={(event) => set("model", event.currentTarget.value)}>
                    <option value="">{words.anyModel}</option>
                    {[...new Set([...models, ...(form.value.model ? [form.value.model] : [])])].map((one) => <option key={one} value={one}>{one}</option>)}
                  </select>
                )}
              </Field>
              {text("gpuMemory", words.gpuMemory, "", "decimal")}
              {text("cpus", words.cpus, "", "decimal")}
              {text("memory", words.memory, "", "decimal")}
              {text("nodes", words.nodes, words.nodesHint, "decimal")}
            </div>
          </Panel>
          <Panel title={words.scheduling}>
            <div class="fields">
              <Field label={words.class} wrong={shown("class")}>
                {(ids) => (
                  <select {...ids} value={form.value.class} onChange={(event) => set("class", event.currentTarget.value)}>
                    <option value="">{words.classDefault}</option>
                    <option value="online">{t.value.taskClass.online}</option>
                    <option value="batch">{t.value.taskClass.batch}</option>
                  </select>
                )}
              </Field>
              {text("priority", words.priority, "", "decimal")}
              {text("timeout", words.timeout, words.timeHint)}
              {text("estimate", words.estimate, words.estimateHint)}
            </div>
          </Panel>
          <div>
            <button type="button" class="button quiet" aria-expanded={more.value} onClick={() => (more.value = !more.value)}>{more.value ? "−" : "+"} {words.more}</button>
          </div>
          {more.value && (
            <Panel>
              <div class="fields">
                {text("retries", words.retries, "", "decimal")}
                {text("fraction", words.fraction, "", "decimal")}
                {text("array", words.array, words.arrayHint, "decimal")}
                <div class="field"><span class="label">{words.preemption}</span>
                  <Select label={words.preemption} value={form.value.preemption} onChange={(value) => set("preemption", value)} options={(["", "never", "suspend", "checkpoint", "requeue"] as const).map((value) => ({ value: value as string, label: value ? t.value.preemptions[value] : words.classDefault }))} />
                </div>
                {text("tenant", words.tenant)}
                {text("workDir", words.workDir)}
                {text("depends", words.dependsOn, words.dependsHint)}
                <Field class="wide" label={words.env} hint={words.envHint} wrong={shown("env")}>
                  {(ids) => <textarea {...ids} spellcheck={false} value={form.value.env} onInput={(event) => set("env", event.currentTarget.value)} />}
                </Field>
              </div>
            </Panel>
          )}
        </div>
        <div class="span-4 stack" style={{ alignContent: "start" }}>
          <Panel title={words.preview}>
            <div class="stack">
              <PreviewBox preview={preview.value} valid={valid} empty={!form.value.command.trim()} copies={(request.array as { count: number } | undefined)?.count ?? 1} />
              {refused.value && <div class="callout bad break" role="alert">{refused.value}</div>}
              <button type="submit" class="button primary" disabled={busy.value}>{busy.value ? words.sending : words.send}</button>
            </div>
          </Panel>
          {valid && (
            <Panel title={words.equivalent}>
              <div class="stack" style={{ gap: "8px" }}>
                <pre class="block" tabIndex={0} aria-label={words.equivalent}>{same.line}</pre>
                {same.without.length > 0 && <p class="small">{words.noOption(same.without.join(", "))}</p>}
                {!request.work_dir && <p class="small muted">{words.thisFolder}</p>}
                <div><button type="button" class="button small" onClick={() => void copyText(same.line)}><Icon name="copy" />{t.value.common.copy}</button></div>
              </div>
            </Panel>
          )}
        </div>
      </form>
    </>
  );
}

function PreviewBox({ preview, valid, empty, copies }: { preview: Preview | "none" | "checking" | null; valid: boolean; empty: boolean; copies: number }) {
  const words = t.value.submit;
  if (preview === null) return <p class="muted">{empty ? words.previewHint : valid ? words.checking : words.correctFirst}</p>;
  if (preview === "none") return <p class="muted">{words.noPreview}</p>;
  if (preview === "checking") return <Skeletons lines={3} />;
  const { would_start: start, expected_start: band, predicted } = preview;
  const quota = preview.quota;
  return (
    <>
      <div class={`callout ${start === "now" ? "good" : start === "never" ? "bad" : ""}`} role="status">
        <strong>{start === "now" ? words.startsNow : start === "later" ? words.startsLater : words.startsNever}</strong>
        {copies > 1 && <span>{words.firstCopy(number(copies))}</span>}
        {start !== "now" && preview.reason && <span class="break">{said(preview.reason_code, preview.reason)}</span>}
        {start === "never" && <span>{adviceOf(preview.reason_code)}</span>}
      </div>
      <Facts
        narrow
        items={[
          [words.where, preview.gpus.slice(0, 8).join(", ") || preview.node_id],
          [t.value.overview.queue, start === "later" && (preview.ahead ? t.value.task.ahead(number(preview.ahead)) : t.value.task.aheadNone)],
          [words.preempts, preview.preempts.slice(0, 8).join(", ")],
          [words.when, start === "later" && (band?.likely ? bandText(band.likely, band.earliest, band.latest, t.value.task.band) : t.value.task.unknownStart)],
          [words.predicted, predicted?.seconds && `${duration(predicted.seconds.likely)} (${duration(predicted.seconds.low)} – ${duration(predicted.seconds.high)})`],
          [words.predictedMemory, predicted?.memory_mb != null && mebibytes(predicted.memory_mb)],
          [words.classQuota, quota && quotaText(quota.before.class_used, quota.before.class_used + copies * (quota.after.class_used - quota.before.class_used), quota.after.class_limit)],
          [words.tenantQuota, quota && quotaText(quota.before.tenant_used, quota.before.tenant_used + copies * (quota.after.tenant_used - quota.before.tenant_used), quota.after.tenant_limit)],
        ]}
      />
    </>
  );
}

function quotaText(before: number, after: number, limit: number | null): string {
  return `${number(before)} → ${number(after)}${limit === null ? "" : ` / ${number(limit)}`} GPU`;
}
