import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { number, percent, watts } from "../core/format";
import { cards, type Cards, sampleAt } from "../core/live";
import { useResource } from "../core/resource";
import { place, refine, to } from "../core/router";
import { GPU_STATES, type GpuList } from "../core/types";
import { type ColorBy, GpuMap } from "../draw/gpu_map";
import { palette, RAMP_CSS } from "../draw/palette";
import { t } from "../i18n";
import { Empty, PageHead, Panel, Segment, Skeletons, TaskLink } from "../ui/kit";

const COLORS: ColorBy[] = ["state", "utilization", "memory", "temperature", "power"];
const MOST_ROWS = 400;

export function GpusPage() {
  const words = t.value;
  const all = cards.value;
  const { query } = place.value;
  const by = COLORS.find((one) => one === query.get("by")) ?? "state";
  const filter = query.get("q") ?? "";
  const table = useSignal(false);
  const shown = useMemo(() => (all ? matching(all, filter) : []), [all?.cards, filter, filter ? all?.holders : null]);
  // the stream does not say which cards are virtual; this changes only when cards join
  const list = useResource<GpuList>("gpus");
  useEffect(() => {
    if (list.data.value) list.refresh();
  }, [all?.generation]);
  const virtual = useMemo(() => new Set(list.data.value?.gpus.filter((one) => one.virtual).map((one) => one.id)), [list.data.value]);
  const tally = [0, 0, 0, 0];
  if (all) for (const at of shown) tally[sampleAt(all, at).state] = (tally[sampleAt(all, at).state] ?? 0) + 1;
  const summary = words.gpus.summary(number(shown.length), number(tally[1]), number(tally[0]), number(tally[2]), number(tally[3]));
  const colors = palette.value;
  return (
    <>
      <PageHead title={words.gpus.title} note={all ? summary : " "}>
        <button type="button" class="button" aria-pressed={table.value} onClick={() => (table.value = !table.value)}>
          {table.value ? words.common.asMap : words.common.asTable}
        </button>
      </PageHead>
      <div class="filters">
        <input class="search" type="search" aria-label={words.gpus.filter} placeholder={words.gpus.filter} value={filter} onInput={(event) => refine({ q: event.currentTarget.value })} />
        <Segment label={words.gpus.colorBy} value={by} options={COLORS.map((value) => ({ value, label: words.gpus[value] }))} onChange={(value) => refine({ by: value })} />
      </div>
      {all === null ? (
        <Panel>
          <Skeletons lines={8} />
        </Panel>
      ) : all.cards.length === 0 ? (
        <Panel>
          <Empty icon="nodes" title={words.overview.noNodesTitle} text={words.overview.noNodesText}>
            <pre class="block">gpuyard agent --config agent.yaml</pre>
          </Empty>
        </Panel>
      ) : shown.length === 0 ? (
        <Panel>
          <Empty icon="search" title={words.gpus.none}>
            <button type="button" class="button" onClick={() => refine({ q: "" })}>
              {words.common.clear}
            </button>
          </Empty>
        </Panel>
      ) : table.value ? (
        <Panel flush>
          <GpuTable all={all} shown={shown} virtual={virtual} />
        </Panel>
      ) : (
        <Panel>
          <div class="stack">
            <GpuMap all={all} shown={shown} colorBy={by} summary={summary} virtual={virtual} />
            <div class="legend">
              {by === "state" ? (
                GPU_STATES.map((state) => (
                  <span key={state}>
                    <i class="swatch" style={{ background: colors.state[state], color: colors.onState[state], width: "18px", height: "18px", fontStyle: "normal", fontSize: "11px" }}>
                      {words.gpuLetter[state]}
                    </i>
                    {words.gpuState[state]}
                  </span>
                ))
              ) : (
                <span>
                  {{ utilization: "0%", memory: "0%", temperature: "0 °C", power: "0 W" }[by]}
                  <i class="ramp" style={{ background: RAMP_CSS }} />
                  {{ utilization: "100%", memory: "100%", temperature: "95 °C", power: "700 W" }[by]}
                </span>
              )}
              {shown.some((at) => virtual.has(all.cards[at]!.gpu_id)) && (
                <span>
                  <i class="swatch virtual" />
                  {words.gpus.virtualCard}
                </span>
              )}
            </div>
          </div>
        </Panel>
      )}
    </>
  );
}

function matching(all: Cards, text: string): number[] {
  const wanted = text.trim().toLowerCase();
  const found: number[] = [];
  all.cards.forEach((card, at) => {
    if (!wanted || card.gpu_id.toLowerCase().includes(wanted) || card.model.toLowerCase().includes(wanted) || (all.holders[at] ?? "").toLowerCase() === wanted) found.push(at);
  });
  return found;
}

function GpuTable({ all, shown, virtual }: { all: Cards; shown: number[]; virtual: ReadonlySet<string> }) {
  const words = t.value;
  return (
    <div class="scroll">
      <table>
        <thead>
          <tr>
            <th>{words.gpus.gpu}</th>
            <th>{words.gpus.model}</th>
            <th>{words.gpus.state}</th>
            <th>{words.gpus.holder}</th>
            <th class="num">{words.gpus.utilization}</th>
            <th class="num">{words.gpus.memory}</th>
            <th class="num">{words.gpus.temperature}</th>
            <th class="num">{words.gpus.power}</th>
          </tr>
        </thead>
        <tbody>
          {shown.slice(0, MOST_ROWS).map((at) => {
            const card = all.cards[at]!;
            const sample = sampleAt(all, at);
            return (
              <tr key={card.gpu_id}>
                <td>
                  <a class="link" href={to(["gpus", card.gpu_id])}>
                    {card.gpu_id}
                  </a>
                </td>
                <td>{card.model} {virtual.has(card.gpu_id) && card.model !== "virtual" && <span class="badge">{words.gpus.virtual}</span>}</td>
                <td>{words.gpuState[GPU_STATES[sample.state] ?? "offline"]}</td>
                <td>{sample.holder ? <TaskLink id={sample.holder} /> : <span class="muted">–</span>}</td>
                <td class="num">{percent(sample.utilization)}</td>
                <td class="num">{percent(sample.memory)}</td>
                <td class="num">{sample.temperature === null ? "–" : `${sample.temperature} °C`}</td>
                <td class="num">{watts(sample.power)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {shown.length > MOST_ROWS && <p class="note-line">{words.common.of(number(MOST_ROWS), number(shown.length))}</p>}
    </div>
  );
}
