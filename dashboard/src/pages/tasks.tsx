import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { duration, gpusAsked, instant, millis, nameOf, number, secondsSince } from "../core/format";
import { changedTasks } from "../core/live";
import { place, refine, to } from "../core/router";
import { TaskRows } from "../core/task_list";
import { ENDED, type Status, STATUSES, type TaskRow } from "../core/types";
import { priorityWord, said, t } from "../i18n";
import { Empty, PageHead, Panel, Problem, Select, Skeletons, StatusBadge } from "../ui/kit";
import { type Column, VirtualTable } from "../ui/virtual_table";
import { SampleButton } from "./overview";

const SINCE: Record<string, number> = { hour: 3600, day: 86_400, week: 604_800 };
const phoneQuery = matchMedia("(max-width: 860px)");

export function TasksPage() {
  const words = t.value.tasks;
  const { query } = place.value;
  const phone = useSignal(phoneQuery.matches);
  const typed = useSignal(query.get("q") ?? "");
  const sort = query.get("sort") ?? "-created_at";
  const filters = filtersOf(query);
  const rows = useMemo(() => new TaskRows(filters), [filters]);
  const shown = useMemo(() => (phone.value ? phoneColumns() : columns()), [phone.value, t.value]);

  useEffect(() => {
    rows.need(0, 1);
    return () => rows.close();
  }, [rows]);
  useEffect(() => {
    if (changedTasks.value.length) rows.changed(changedTasks.value);
  }, [changedTasks.value]);
  useEffect(() => {
    const changed = (): void => void (phone.value = phoneQuery.matches);
    phoneQuery.addEventListener("change", changed);
    return () => phoneQuery.removeEventListener("change", changed);
  }, []);
  useEffect(() => {
    const text = query.get("q") ?? "";
    if (text !== typed.value.trim()) typed.value = text;
  }, [query.get("q")]);
  useEffect(() => {
    const timer = setTimeout(() => {
      if (typed.value.trim() !== (place.value.query.get("q") ?? "")) refine({ q: typed.value.trim() });
    }, 200);
    return () => clearTimeout(timer);
  }, [typed.value]);

  void rows.version.value;
  const total = rows.total.value;
  const error = rows.error.value;
  const filtered = ["q", "status", "tenant", "user", "project", "since"].some((name) => query.get(name));
  return (
    <>
      <PageHead title={words.title} note={total === null ? " " : total === 1 ? words.one : words.count(number(total))} />
      <div class="filters">
        <input class="search" type="search" aria-label={words.search} placeholder={words.search} value={typed.value} onInput={(event) => (typed.value = event.currentTarget.value)} />
        <Select label={words.status} value={query.get("status") ?? ""} onChange={(value) => refine({ status: value })}
          options={[{ value: "", label: `${words.status}: ${t.value.common.any}` }, { value: "pending,running,suspended", label: `${t.value.status.pending} / ${t.value.status.running}` }, ...STATUSES.map((value: Status) => ({ value: value as string, label: t.value.status[value] }))]} />
        <Select label={words.since} value={query.get("since") ?? ""} onChange={(value) => refine({ since: value })}
          options={[{ value: "", label: words.ever }, { value: "hour", label: words.hour }, { value: "day", label: words.day }, { value: "week", label: words.week }]} />
        <TextFilter name="tenant" label={words.tenant} />
        <TextFilter name="user" label={words.user} />
        <TextFilter name="project" label={words.project} />
        {filtered && (
          <button type="button" class="button quiet" onClick={() => { typed.value = ""; refine({ q: "", status: "", tenant: "", user: "", project: "", since: "" }); }}>
            {t.value.common.clear}
          </button>
        )}
      </div>
      {error && !error.away && total === null ? (
        <Panel>
          <Problem error={error} retry={() => rows.refresh()} />
        </Panel>
      ) : total === null ? (
        <Panel>
          <Skeletons lines={10} />
        </Panel>
      ) : total === 0 ? (
        <Panel>
          {filtered ? (
            <Empty icon="search" title={words.emptyTitle} text={words.emptyText} />
          ) : (
            <Empty icon="tasks" title={words.noneTitle} text={words.noneText}>
              <a class="button primary" href={to("submit")}>
                {t.value.bar.submit}
              </a>
              <SampleButton />
            </Empty>
          )}
        </Panel>
      ) : (
        <section class="panel">
          <VirtualTable<TaskRow>
            label={words.title}
            columns={shown}
            total={total}
            row={(index) => rows.row(index)}
            href={addressOf}
            need={(first, last) => rows.need(first, last)}
            sort={sort}
            onSort={(value) => refine({ sort: value })}
            sortLabel={words.sortBy}
            loading={words.loadingRow}
            phone={phone.value}
            resetKey={filters}
          />
        </section>
      )}
    </>
  );
}

const addressOf = (task: TaskRow): string => to(["tasks", task.id]);

function TextFilter({ name, label }: { name: string; label: string }) {
  const value = place.value.query.get(name) ?? "";
  return <input aria-label={label} placeholder={label} value={value} style={{ width: "120px" }} onChange={(event) => refine({ [name]: event.currentTarget.value.trim() })} />;
}

function filtersOf(query: URLSearchParams): string {
  const asked = new URLSearchParams();
  for (const name of ["q", "status", "tenant", "user", "project"]) {
    const value = query.get(name);
    if (value) asked.set(name, value);
  }
  const since = SINCE[query.get("since") ?? ""];
  if (since) asked.set("since", String(Math.floor(Date.now() / 60_000) * 60 - since));
  const sort = query.get("sort");
  if (sort && sort !== "-created_at") asked.set("sort", sort);
  return asked.toString();
}

export function startText(task: TaskRow): string | null {
  const band = task.expected_start;
  const likely = typeof band === "string" ? band : band?.likely;
  return likely && (millis(likely) ?? 0) > Date.now() ? t.value.tasks.starts(instant(likely)) : null;
}

/** Why it waits and when it starts, or how it ended. */
function because(task: TaskRow): string {
  const sentence = said(task.reason_code, task.reason);
  const start = task.status === "pending" ? startText(task) : null;
  if (start) return sentence ? `${start} · ${sentence}` : start;
  if (task.exit_code && !sentence) return `${t.value.task.exit} ${task.exit_code}`;
  return sentence;
}

function took(task: TaskRow): string {
  if (task.started_at) return duration(secondsSince(task.started_at, task.finished_at));
  return "–";
}

function columns(): Column<TaskRow>[] {
  const words = t.value.tasks;
  return [
    { key: "id", title: words.id, width: "minmax(130px, 1.3fr)", sort: "name", cell: (task) => <span class="two"><span>{task.name ? nameOf(task) : <span class="muted">{words.unnamed}</span>}</span><small>{task.id}</small></span> },
    { key: "status", title: words.status, width: "112px", sort: "status", cell: (task) => <StatusBadge status={task.status} /> },
    { key: "who", title: words.user, width: "minmax(80px, 0.7fr)", cell: (task) => <span class="two"><span>{task.user || "–"}</span><small>{task.tenant_id}</small></span> },
    { key: "gpus", title: `${words.gpus} · ${words.node}`, width: "minmax(96px, 0.8fr)", cell: (task) => <span class="two"><span>{[gpusAsked(task), modelText(task)].filter(Boolean).join(" · ")}</span><small>{task.node_id ?? "–"}</small></span> },
    { key: "priority", title: words.priority, width: "76px", sort: "priority", cell: (task) => <span class="two"><span>{priorityWord(task.priority)}</span><small>{t.value.taskClass[task.class]}</small></span> },
    { key: "created", title: words.created, width: "104px", sort: "created_at", cell: (task) => instant(task.created_at) },
    { key: "ran", title: words.ran, width: "88px", sort: "started_at", cell: took },
    { key: "why", title: words.reason, width: "minmax(260px, 4fr)", class: "clamp", cell: (task) => <span title={because(task)}>{because(task)}</span> },
  ];
}

function phoneColumns(): Column<TaskRow>[] {
  const words = t.value.tasks;
  return [
    { key: "id", title: words.id, width: "minmax(0, 1fr)", cell: (task) => (
      <span class="two">
        <span>{nameOf(task)}</span>
        <small>{task.id} · {gpusAsked(task)} GPU · {task.user || task.tenant_id}</small>
        <small>{ENDED.includes(task.status) ? took(task) : because(task) || took(task)}</small>
      </span>
    ) },
    { key: "status", title: words.status, width: "max-content", cell: (task) => <StatusBadge status={task.status} /> },
  ];
}

function modelText(task: TaskRow): string {
  return Array.isArray(task.gpu_model) ? task.gpu_model.join(", ") : (task.gpu_model ?? "");
}
