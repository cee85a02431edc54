import { instant, number } from "../core/format";
import { useResource } from "../core/resource";
import { place, refine } from "../core/router";
import type { UsageRow } from "../core/types";
import { t } from "../i18n";
import { Icon } from "../ui/icons";
import { Empty, Meter, PageHead, Panel, Segment, Shown } from "../ui/kit";

const BY = ["tenant", "user", "project", "model", "day", "hour"] as const;
type By = (typeof BY)[number];
const PERIODS = { today: 1, week: 7, month: 30 } as const;
type Period = keyof typeof PERIODS;

interface Usage {
  since: string;
  until: string;
  rows: UsageRow[];
  total: UsageRow;
}

/** Midnight of the viewer, so many days ago. */
function startOf(period: Period): number {
  const date = new Date();
  date.setHours(0, 0, 0, 0);
  return Math.floor(date.getTime() / 1000) - (PERIODS[period] - 1) * 86_400;
}

const amount = (row: UsageRow, name: string): number => Number(row[name] ?? 0);

/** The parts of a bar, as in the table: what no reading covers is neither used nor idle. Time that was lost can be any of the three. */
function partsOf(row: UsageRow): { used: number; idle: number; unmeasured: number; lost: number } {
  const [used, idle] = [amount(row, "used_gpu_hours"), amount(row, "idle_gpu_hours")];
  const lost = amount(row, "failed_gpu_hours") + amount(row, "preempted_gpu_hours") + amount(row, "out_of_memory_gpu_hours");
  return { used, idle, unmeasured: Math.max(0, amount(row, "gpu_hours") - used - idle), lost };
}

/** Small sums keep three digits: a short test is not nothing. */
const figure = (value: number): string => (value !== 0 && Math.abs(value) < 1 ? value.toFixed(3) : number(value, 1));

export function UsagePage() {
  const words = t.value.usage;
  const { query } = place.value;
  const by = BY.find((one) => one === query.get("by")) ?? "tenant";
  const period = (Object.keys(PERIODS) as Period[]).find((one) => one === query.get("period")) ?? "week";
  const path = `usage?since=${new Date(startOf(period) * 1000).toISOString().replace(".000", "")}&by=${by}`;
  const usage = useResource<Usage>(path, 60_000);
  const columns: [string, string][] = [
    ["tasks", words.tasks], ["gpu_hours", words.gpuHours], ["used_gpu_hours", words.used], ["idle_gpu_hours", words.idle], ["failed_gpu_hours", words.failed],
    ["preempted_gpu_hours", words.preempted], ["out_of_memory_gpu_hours", words.oom], ["energy_kwh", words.energy], ["wait_hours", words.waited],
  ];
  return (
    <>
      <PageHead title={words.title} note={words.subtitle}>
        <a class="button" href={`/api/v1/${path}&format=csv`} download={`usage-${by}-${period}.csv`}>
          <Icon name="download" />
          {words.csv}
        </a>
      </PageHead>
      <div class="filters">
        <Segment<By> label={words.by} value={by} options={BY.map((value) => ({ value, label: words[value] }))} onChange={(value) => refine({ by: value })} />
        <Segment<Period> label={words.since} value={period} options={(Object.keys(PERIODS) as Period[]).map((value) => ({ value, label: words[value] }))} onChange={(value) => refine({ period: value })} />
      </div>
      <Shown of={usage} lines={8}>
        {(told) => {
          if (told.rows.length === 0)
            return <Panel><Empty icon="usage" title={words.empty} /></Panel>;
          const timely = by === "day" || by === "hour";
          const rows = [...told.rows].sort((a, b) => (timely ? String(a[by]).localeCompare(String(b[by])) : amount(b, "gpu_hours") - amount(a, "gpu_hours")));
          const most = Math.max(...rows.map((one) => amount(one, "gpu_hours")), 1e-9);
          return (
            <>
              <Panel title={words.chart}>
                <div class="stack">
                  <div class="legend">
                    <span><i class="swatch" style={{ background: "var(--accent)" }} />{words.legendUsed}</span>
                    <span><i class="swatch" style={{ background: "var(--line-strong)" }} />{words.legendIdle}</span>
                    <span><i class="swatch unmeasured" />{words.legendUnmeasured}</span>
                    <span><i class="swatch" style={{ background: "var(--red)", height: "4px" }} />{words.legendLost}</span>
                  </div>
                  <ul class="bars">
                    {rows.slice(0, 40).map((one, i) => {
                      const { used, idle, lost, unmeasured } = partsOf(one);
                      const name = nameOf(one, by);
                      return (
                        <li key={i}>
                          <span class="cut" title={name}>{name}</span>
                          <div class="stack" style={{ gap: "3px" }}>
                            <Meter label={`${name}: ${figure(amount(one, "gpu_hours"))} (${words.legendUsed} ${figure(used)}, ${words.legendIdle} ${figure(idle)}, ${words.legendUnmeasured} ${figure(unmeasured)})`} most={most} parts={[{ value: used }, { value: idle, class: "faint" }, { value: unmeasured, class: "unmeasured" }]} />
                            {lost > 0 && <Meter thin label={`${name}: ${words.legendLost} ${figure(lost)}`} most={most} parts={[{ value: lost, class: "red" }]} />}
                          </div>
                          <span class="num">{figure(amount(one, "gpu_hours"))}</span>
                        </li>
                      );
                    })}
                  </ul>
                </div>
              </Panel>
              <Panel flush>
                <div class="scroll">
                  <table>
                    <thead><tr><th>{words[by]}</th>{columns.map(([name, title]) => <th key={name} class="num">{title}</th>)}</tr></thead>
                    <tbody>
                      {rows.map((one, i) => (
                        <tr key={i}><td class="break">{nameOf(one, by)}</td>{columns.map(([name]) => <td key={name} class="num">{one[name] == null ? "–" : figure(amount(one, name))}</td>)}</tr>
                      ))}
                      <tr><td><strong>{t.value.common.total}</strong></td>{columns.map(([name]) => <td key={name} class="num"><strong>{told.total[name] == null ? "–" : figure(amount(told.total, name))}</strong></td>)}</tr>
                    </tbody>
                  </table>
                </div>
              </Panel>
            </>
          );
        }}
      </Shown>
    </>
  );
}

function nameOf(row: UsageRow, by: By): string {
  if (by === "hour" && row.hour) return instant(String(row.hour));
  return String(row[by] ?? "") || t.value.common.none;
}
