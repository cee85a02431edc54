import { useSignal } from "@preact/signals";
import { may, post, remove } from "../core/api";
import { ago, exact, mebibytes, number, percent } from "../core/format";
import { useResource } from "../core/resource";
import { go, to } from "../core/router";
import type { History, Node } from "../core/types";
import { Chart } from "../draw/chart";
import { palette } from "../draw/palette";
import { t } from "../i18n";
import { confirmThen, Empty, Facts, Meter, notify, notifyError, PageHead, Panel, Segment, Shown, TaskLink } from "../ui/kit";
import { historyPath, known, type Range, RANGE_SECONDS } from "./overview";

const CLASS_OF: Record<Node["status"], string> = { online: "good", away: "warn", offline: "bad", cordoned: "warn", draining: "warn" };
const MOST_ROWS = 500;

const isSilent = (node: Node): boolean => node.status === "offline" || node.status === "away";

export function NodeBadge({ status }: { status: Node["status"] }) {
  return <span class={`badge ${CLASS_OF[status]}`}>{t.value.nodeStatus[status]}</span>;
}

export function NodesPage() {
  const words = t.value.nodes;
  const nodes = useResource<{ nodes: Node[]; total: number }>("nodes", 5000);
  const filter = useSignal("");
  return (
    <>
      <PageHead title={words.title} />
      <div class="filters">
        <input class="search" type="search" aria-label={t.value.common.search} placeholder={t.value.common.search} value={filter.value} onInput={(event) => (filter.value = event.currentTarget.value)} />
      </div>
      <Panel flush>
        <Shown of={nodes} lines={6}>
          {(told) => {
            const rows = told.nodes.filter((one) => one.id.toLowerCase().includes(filter.value.trim().toLowerCase()));
            if (told.nodes.length === 0)
              return (
                <Empty icon="nodes" title={words.none} text={words.noneText}>
                  <pre class="block">gpuyard agent --config agent.yaml</pre>
                </Empty>
              );
            return (
              <div class="scroll">
                <table>
                  <thead>
                    <tr>
                      <th>{words.node}</th>
                      <th>{words.status}</th>
                      <th>{words.gpus}</th>
                      <th class="num">{words.tasks}</th>
                      <th>{words.cpu}</th>
                      <th>{words.memory}</th>
                      <th class="num">{words.disk}</th>
                      <th>{words.seen}</th>
                      {may("run_cluster") && <th>{t.value.common.actions}</th>}
                    </tr>
                  </thead>
                  <tbody>
                    {rows.slice(0, MOST_ROWS).map((one) => (
                      <tr key={one.id} class={isSilent(one) ? "old" : undefined} title={isSilent(one) ? words.old(ago(one.last_seen)) : undefined}>
                        <td class="nowrap"><a class="link" href={to(["nodes", one.id])}>{one.id}</a></td>
                        <td><NodeBadge status={one.status} /></td>
                        <td class="nowrap">{number(one.gpus)} <span class="muted">({words.idle(number(one.gpus_idle))}) · {Object.keys(one.gpu_models).join(", ")}</span></td>
                        <td class="num">{number(one.tasks.length)}</td>
                        <td style={{ minWidth: "90px" }}>{percent(one.cpu_percent)}<Meter label={`${words.cpu} ${percent(one.cpu_percent)}`} parts={[{ value: one.cpu_percent ?? 0, class: "blue" }]} most={100} /></td>
                        <td style={{ minWidth: "120px" }}>{mebibytes(one.memory_used_mb)} / {mebibytes(one.memory_mb)}<Meter label={words.memory} parts={[{ value: one.memory_used_mb ?? 0, class: "blue" }]} most={one.memory_mb} /></td>
                        <td class="num">{mebibytes(one.disk_free_mb)}</td>
                        <td class="nowrap" title={exact(one.last_seen)}>{one.status === "online" ? t.value.common.now : ago(one.last_seen)}{isSilent(one) && <><br /><span class="small muted">{words.oldReadings}</span></>}</td>
                        {may("run_cluster") && <td><NodeActions node={one} again={nodes.refresh} /></td>}
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            );
          }}
        </Shown>
      </Panel>
    </>
  );
}

function NodeActions({ node, again }: { node: Node; again: () => void }) {
  const words = t.value.nodes;
  const act = async (name: "cordon" | "uncordon" | "drain"): Promise<void> => {
    await post(`nodes/${encodeURIComponent(node.id)}/${name}`);
    notify(words.did[name](node.id));
    again();
  };
  return (
    <span class="row" style={{ flexWrap: "nowrap" }}>
      {node.status === "cordoned" || node.status === "draining" ? (
        <button type="button" class="button small" onClick={() => void act("uncordon").catch(notifyError)}>{words.uncordon}</button>
      ) : (
        <button type="button" class="button small" onClick={() => void act("cordon").catch(notifyError)}>{words.cordon}</button>
      )}
      {node.status !== "draining" && (
        <button type="button" class="button small" onClick={() => confirmThen({ title: words.drain, text: words.confirmDrain(node.id), send: words.drain, danger: false, act: () => act("drain") })}>{words.drain}</button>
      )}
      {(node.status === "offline" || node.tasks.length === 0) && node.status !== "online" && (
        <button type="button" class="button small danger" onClick={() => confirmThen({ title: words.remove, text: words.confirmRemove(node.id), send: words.remove, danger: true, act: async () => { await remove(`nodes/${encodeURIComponent(node.id)}`); go(to("nodes")); again(); } })}>{words.remove}</button>
      )}
    </span>
  );
}

export function NodePage({ id }: { id: string }) {
  const words = t.value.nodes;
  const node = useResource<Node>(`nodes/${encodeURIComponent(id)}`, 5000);
  const range = useSignal<Range>("hour");
  const history = useResource<History>(historyPath(`nodes/${encodeURIComponent(id)}/history`, RANGE_SECONDS[range.value]), range.value === "hour" ? 10_000 : 60_000);
  const colors = palette.value;
  return (
    <>
      <PageHead title={id} back={{ href: to("nodes"), text: words.back }} note={node.data.value && <NodeBadge status={node.data.value.status} />}>
        {node.data.value && may("run_cluster") && <NodeActions node={node.data.value} again={node.refresh} />}
      </PageHead>
      <Panel>
        <Shown of={node}>
          {(told) => (
            <>
            {isSilent(told) && <p class="small muted" style={{ marginBottom: "10px" }}>{words.old(ago(told.last_seen))}</p>}
            <Facts
              items={[
                [words.gpus, `${number(told.gpus)} (${words.idle(number(told.gpus_idle))}) · ${Object.entries(told.gpu_models).map(([model, count]) => `${count} × ${model}`).join(", ")}`],
                [words.cpu, `${percent(told.cpu_percent)} · ${number(told.cpus)}`],
                [words.memory, `${mebibytes(told.memory_used_mb)} / ${mebibytes(told.memory_mb)}`],
                [words.disk, mebibytes(told.disk_free_mb)],
                [words.seen, exact(told.last_seen)],
                [words.version, told.version],
                [words.labels, Object.entries(told.labels).map(([name, value]) => `${name}=${value}`).join(", ")],
                [words.tasks, told.tasks.length > 0 && told.tasks.slice(0, 30).map((one, i) => <span key={one}>{i > 0 && ", "}<TaskLink id={one} /></span>)],
              ]}
            />
            </>
          )}
        </Shown>
      </Panel>
      <Panel title={t.value.gpus.title}>
        <Shown of={node}>
          {(told) => (
            <div class="row">
              {told.devices.map((one) => (
                <a key={one.id} class={`badge ${one.status === "busy" ? "good" : one.status === "offline" ? "bad" : one.status === "external" ? "warn" : ""}`} href={to(["gpus", one.id])}>
                  {t.value.gpuLetter[one.status]} {one.id} · {t.value.gpuState[one.status]}
                </a>
              ))}
            </div>
          )}
        </Shown>
      </Panel>
      <Panel title={words.history} tools={
        <Segment<Range> label={t.value.overview.range} value={range.value} onChange={(value) => (range.value = value)}
          options={[{ value: "hour", label: t.value.overview.hour }, { value: "day", label: t.value.overview.day }, { value: "week", label: t.value.overview.week }]} />
      }>
        <Shown of={history} lines={6}>
          {(whole) => {
            const told = known(whole);
            return (
            <div class="grid">
              <div class="span-6"><Chart label={`${words.cpu}, ${words.memory}`} x={told.times} unit={percent} atLeast={100} height={180} lines={[{ label: words.cpu, values: told.series.cpu_percent ?? [], color: colors.blue }, { label: words.memory, values: told.series.memory_percent ?? [], color: colors.accent }]} /></div>
              <div class="span-6"><Chart label={words.latency} x={told.times} unit={(value) => (value === null ? "–" : `${number(value, 1)} ms`)} atLeast={1} height={180} lines={[{ label: words.latency, values: told.series.network_latency_ms ?? [], color: colors.amber }]} /></div>
            </div>
            );
          }}
        </Shown>
      </Panel>
    </>
  );
}
