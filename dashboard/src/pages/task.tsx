import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { visible } from "../core/ansi";
import { may, patch, post, remove } from "../core/api";
import { band, duration, exact, gpusAsked, mebibytes, nameOf, number, percent, secondsSince, titleOf, watts } from "../core/format";
import { changedTasks, EVERY_TASK } from "../core/live";
import { useResource } from "../core/resource";
import { go, place, refine, to } from "../core/router";
import { ENDED, type Explain, type History, type StoryEvent, type Task } from "../core/types";
import { Chart } from "../draw/chart";
import { SERIES } from "../draw/palette";
import { adviceOf, eventSaid, priorityWord, said, t } from "../i18n";
import { Icon } from "../ui/icons";
import { confirmThen, copyText, Dialog, Facts, Field, notify, notifyError, PageHead, Panel, Problem, Shown, Skeletons, StatusBadge, Tabs, TaskLink, Time } from "../ui/kit";
import { LogView } from "../ui/log_view";

type Tab = "story" | "log" | "resources" | "request";

export function TaskPage({ id }: { id: string }) {
  const words = t.value.task;
  const resource = useResource<Task>(`tasks/${encodeURIComponent(id)}`, 5000);
  const task = resource.data.value;
  const tab = (place.value.query.get("tab") as Tab | null) ?? "story";
  const version = useSignal(0);
  useEffect(() => {
    if (task && (changedTasks.value.includes(task.id) || changedTasks.value.includes(EVERY_TASK))) {
      resource.refresh();
      version.value++;
    }
  }, [changedTasks.value]);
  if (!task)
    return (
      <>
        <PageHead title={id} back={{ href: to("tasks"), text: words.back }} />
        <Panel>{resource.error.value && !resource.error.value.away ? <Problem error={resource.error.value} retry={resource.refresh} /> : <Skeletons lines={8} />}</Panel>
      </>
    );
  const again = (): void => {
    resource.refresh();
    version.value++;
  };
  const ended = ENDED.includes(task.status);
  return (
    <>
      <PageHead
        title={titleOf(task)}
        back={{ href: to("tasks"), text: words.back }}
        note={
          <span class="row">
            <StatusBadge status={task.status} />
            <span>{task.id}</span>
          </span>
        }
      >
        <Actions task={task} again={again} />
      </PageHead>
      {(task.status === "pending" || task.status === "suspended") && <Why task={task} version={version.value} />}
      {ended && task.reason && (
        <div class={`callout ${task.status === "success" ? "good" : "bad"}`}>
          <span class="break">{visible(said(task.reason_code, task.reason))}</span>
        </div>
      )}
      <Panel>
        <Facts
          items={[
            [words.gpus, task.allocated_gpus.length ? task.allocated_gpus.slice(0, 16).map((one, i) => <span key={one}>{i > 0 && ", "}<a class="link" href={to(["gpus", one])}>{one}</a></span>) : gpusAsked(task)],
            [words.created, <Time at={task.created_at} />],
            [words.started, task.started_at && <Time at={task.started_at} />],
            [words.ended, task.finished_at && <Time at={task.finished_at} />],
            [words.waited, duration(secondsSince(task.created_at, task.started_at ?? task.finished_at))],
            [ended ? words.ran : words.running, task.started_at && duration(ranFor(task))],
            [words.estimate, task.estimated_seconds != null && duration(task.estimated_seconds)],
            [words.exit, task.exit_code != null ? String(task.exit_code) : task.signal != null ? words.signal(task.signal) : null],
            [words.attempts, task.attempts > 1 ? number(task.attempts) : null],
            [words.peak, task.gpu_memory_peak_mib != null && mebibytes(task.gpu_memory_peak_mib)],
            [words.util, task.gpu_utilization != null && percent(task.gpu_utilization)],
            [words.by, `${task.user || task.created_by || "–"} · ${task.tenant_id}`],
            [words.prio, `${priorityWord(task.priority)} · ${t.value.taskClass[task.class]}`],
          ]}
        />
      </Panel>
      <Tabs<Tab> label={task.id} value={tab} onChange={(value) => refine({ tab: value })}
        options={[{ value: "story", label: words.story }, { value: "log", label: words.log }, { value: "resources", label: words.resources }, { value: "request", label: words.request }]} />
      <Panel>
        {tab === "log" ? <LogView task={task} /> : tab === "resources" ? <Resources task={task} /> : tab === "request" ? <Request task={task} /> : <Story key={version.value} task={task} />}
      </Panel>
    </>
  );
}

/** Without the time in which it was suspended, where the server tells it. */
function ranFor(task: Task): number | null {
  if (task.run_seconds !== null) return task.run_seconds;
  if (task.running_since) return (task.ran_before_seconds ?? 0) + (secondsSince(task.running_since) ?? 0);
  return secondsSince(task.started_at, task.finished_at);
}

/** `version` increases when the task changes: the explanation is then asked for at once. */
function Why({ task, version }: { task: Task; version: number }) {
  const words = t.value.task;
  const explain = useResource<Explain>(`tasks/${task.id}/explain`, 5000);
  useEffect(() => {
    if (version) explain.refresh();
  }, [version]);
  // an answer from before a suspension or a release explains another state
  const told = explain.data.value?.status === task.status ? explain.data.value : null;
  const code = told?.reason_code ?? task.reason_code;
  const sentence = visible(said(code, told?.reason ?? task.reason));
  const suspended = task.status === "suspended";
  const parked = suspended && (code === null || code === "OnHold" || code === "suspended_by_user");
  const advice = adviceOf(code);
  return (
    <div class="callout" role="status">
      <strong>{parked ? words.isSuspended : suspended ? words.waitsToResume : words.why}</strong>
      <span class="break">{parked ? words.resumeHint : sentence || "–"}</span>
      {advice && <span>{advice}</span>}
      {told && !parked && advice === null && (
        <Facts
          items={[
            [words.starts, told.starts_at ? band(told.starts_at, told.starts_low, told.starts_high, words.band) : words.unknownStart],
            ["", told.guessed ? words.guessed : null],
            [t.value.overview.queue, told.ahead > 0 ? words.ahead(`${number(told.ahead)}${told.more_ahead ? "+" : ""}`) : words.aheadNone],
            [words.nodes, told.nodes.length ? told.nodes.slice(0, 8).join(", ") : null],
          ]}
        />
      )}
    </div>
  );
}

function Actions({ task, again }: { task: Task; again: () => void }) {
  const words = t.value.task;
  const priority = useSignal<string | null>(null);
  if (!may("stop") && !may("submit")) return null;
  const ended = ENDED.includes(task.status);
  const title = task.name ? `${task.id} (${nameOf(task)})` : task.id;
  const command = (name: "suspend" | "resume" | "hold" | "release"): void => {
    post(`tasks/${task.id}/${name}`).then(() => { notify(words.did[name](title)); again(); }).catch(notifyError);
  };
  const cancel = (): void =>
    confirmThen({
      title: words.cancel, text: task.status === "pending" ? words.confirmCancelWaiting(title) : words.confirmCancel(title), send: words.cancel, danger: true, dismiss: words.keep,
      act: async () => { await remove(`tasks/${task.id}`); notify(words.did.cancel(title)); again(); },
    });
  const wrongPriority = priority.value !== null && !/^(100|\d{1,2})$/.test(priority.value);
  return (
    <>
      {may("submit") && task.command !== null && (
        <button type="button" class="button" onClick={() => go(to("submit", { from: task.id }))}>
          <Icon name="copy" />
          {words.clone}
        </button>
      )}
      {!ended && may("stop") && (
        <>
          {task.status === "running" && task.preemption === "suspend" && <button type="button" class="button" onClick={() => command("suspend")}>{words.suspend}</button>}
          {task.status === "suspended" && <button type="button" class="button" onClick={() => command("resume")}>{words.resume}</button>}
          {task.status === "pending" && (task.reason_code === "OnHold" ? <button type="button" class="button" onClick={() => command("release")}>{words.release}</button> : <button type="button" class="button" onClick={() => command("hold")}>{words.hold}</button>)}
          <button type="button" class="button" onClick={() => (priority.value = "")}>{words.priority}</button>
          <button type="button" class="button danger" onClick={cancel}>{words.cancel}</button>
        </>
      )}
      {priority.value !== null && (
        <Dialog title={words.priority} onClose={() => (priority.value = null)} busy={wrongPriority}
          onSubmit={() => {
            const asked = Number(priority.value);
            patch(`tasks/${task.id}`, { priority: asked }).then(() => { notify(words.did.priority(title, asked)); again(); }).catch(notifyError);
            priority.value = null;
          }}>
          <Field label={words.newPriority} wrong={priority.value && wrongPriority ? t.value.submit.between(0, 100) : null}>
            {(ids) => <input {...ids} inputMode="numeric" autofocus value={priority.value ?? ""} onInput={(event) => (priority.value = event.currentTarget.value.trim())} />}
          </Field>
        </Dialog>
      )}
    </>
  );
}

const GOOD = /Succeeded|Released|Recovered/;
const BAD = /Failed|Lost|Cancel|Killed|Timeout|Stopping|Refused/;
const RUN = /Started|Resumed|Placed/;

function Story({ task }: { task: Task }) {
  const words = t.value.task;
  const events = useResource<{ events: StoryEvent[] }>(`tasks/${task.id}/events`, ENDED.includes(task.status) ? 0 : 5000);
  return (
    <Shown of={events} lines={6}>
      {(told) =>
        told.events.length === 0 ? (
          <p class="note-line">{words.noEvents}</p>
        ) : (
          <ol class="story">
            {told.events.map((one, i) => (
              <li key={`${one.at}-${i}`} class={markOf(one)}>
                <Time at={one.at} />
                <span class="mark" />
                <span class="break">
                  {eventSaid(one)} {one.attempt !== null && one.attempt > 1 && <span class="muted">{words.attempt(one.attempt)}</span>}
                  {one.cause && <span class="muted small"> · {said(one.cause_code, one.cause)}</span>}
                  {one.by && <span class="muted small"> · {one.by}</span>}
                </span>
              </li>
            ))}
          </ol>
        )
      }
    </Shown>
  );
}

function markOf(one: StoryEvent): string {
  if (one.event === "TaskEnded") return /success/i.test(one.text) ? "good" : "bad";
  return GOOD.test(one.event) ? "good" : BAD.test(one.event) ? "bad" : RUN.test(one.event) ? "run" : "";
}

interface TaskHistory extends Partial<History> {
  gpus?: { gpu_id: string; times?: number[]; series: History["series"] }[];
}

const PLOTS = [
  { name: "utilization", most: 100, unit: percent, word: "utilization" },
  { name: "memory_mb", most: 0, unit: mebibytes, word: "memory" },
  { name: "temperature", most: 60, unit: (value: number | null) => (value === null ? "–" : `${Math.round(value)} °C`), word: "temperature" },
  { name: "power_watts", most: 50, unit: watts, word: "power" },
] as const;

function Resources({ task }: { task: Task }) {
  const words = t.value;
  const history = useResource<TaskHistory>(task.attempts ? `tasks/${task.id}/history` : null, ENDED.includes(task.status) ? 0 : 5000);
  if (!task.attempts) return <p class="note-line">{words.task.notStarted}</p>;
  return (
    <Shown of={history} lines={8}>
      {(told) => {
        const times = told.times ?? told.gpus?.[0]?.times ?? [];
        const cards = told.gpus ?? [];
        if (times.length === 0 || cards.length === 0) return <p class="note-line">{words.task.noResources}</p>;
        return (
          <div class="grid">
            {PLOTS.map((plot) => (
              <div class="span-6 stack" key={plot.name}>
                <h3>{words.gpus[plot.word]}</h3>
                <Chart label={words.gpus[plot.word]} x={times} height={170} atLeast={plot.most} unit={plot.unit} steps={plot.name === "memory_mb" ? "binary" : undefined}
                  lines={cards.slice(0, 8).map((one, i) => ({ label: one.gpu_id, values: one.series[plot.name] ?? [], color: SERIES[i % SERIES.length]! }))} />
              </div>
            ))}
          </div>
        );
      }}
    </Shown>
  );
}

function Request({ task }: { task: Task }) {
  const words = t.value.task;
  const command = Array.isArray(task.command) ? task.command.join(" ") : task.command;
  const env = Object.entries(task.env);
  return (
    <div class="stack">
      {command !== null && (
        <div class="stack" style={{ gap: "6px" }}>
          <div class="spread">
            <h3>{words.command}</h3>
            <button type="button" class="button quiet small" onClick={() => void copyText(command)}>
              <Icon name="copy" />
              {t.value.common.copy}
            </button>
          </div>
          <pre class="block" tabIndex={0}>{command.slice(0, 8192)}</pre>
        </div>
      )}
      <Facts
        items={[
          [words.asked, `${task.gpu_fraction ? words.share(gpusAsked(task)) : `${gpusAsked(task)} GPU`} · ${Array.isArray(task.gpu_model) ? task.gpu_model.join(", ") : (task.gpu_model ?? words.anyModel)}`],
          [words.gpuMemory, task.gpu_memory_mb && mebibytes(task.gpu_memory_mb)],
          [words.cpu, task.cpu_count ? number(task.cpu_count) : null],
          [words.memory, task.memory_mb ? mebibytes(task.memory_mb) : null],
          [words.project, task.project],
          [words.describe, task.description],
          [words.model, task.model],
          [words.timeout, task.timeout !== null && duration(task.timeout)],
          [words.retries, task.retries ? number(task.retries) : null],
          [words.preemption, t.value.preemptions[task.preemption as "never"] ?? task.preemption],
          [words.workDir, task.work_dir],
          [words.depends, task.depends_on.length + task.after_any.length > 0 && [...task.depends_on, ...task.after_any].slice(0, 20).map((one, i) => <span key={one}>{i > 0 && ", "}{one.includes("..") ? one : <TaskLink id={one} />}</span>)],
          [words.labels, Object.entries(task.labels).map(([name, value]) => `${name}=${value}`).join(", ")],
          [words.secrets, task.secrets.join(", ")],
          [words.estimate, task.predicted_from ? words.from(task.predicted_from) : null],
          [words.requestId, task.request_id],
          [words.created, exact(task.created_at)],
        ]}
      />
      {env.length > 0 && (
        <div class="stack" style={{ gap: "6px" }}>
          <h3>{words.env}</h3>
          <pre class="block" tabIndex={0}>{env.map(([name, value]) => `${name}=${value}`).join("\n").slice(0, 8192)}</pre>
        </div>
      )}
      {task.forecasts.length > 0 && (
        <div class="scroll">
          <table>
            <thead>
              <tr><th>{words.forecast}</th><th class="num">{words.estimate}</th><th class="num">{words.gpuMemory}</th></tr>
            </thead>
            <tbody>
              {task.forecasts.map((one) => (
                <tr key={one.gpu_model}>
                  <td>{one.gpu_model}</td>
                  <td class="num">{duration(one.seconds)}</td>
                  <td class="num">{mebibytes(one.memory_mib)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}
