import { useSignal } from "@preact/signals";
import { mebibytes, percent, watts } from "../core/format";
import { cardIndex, cards, sampleAt } from "../core/live";
import { useResource } from "../core/resource";
import { to } from "../core/router";
import { type Gpu, GPU_STATES, type GpuList, type History } from "../core/types";
import { Chart, type Line } from "../draw/chart";
import { palette } from "../draw/palette";
import { t } from "../i18n";
import { Facts, PageHead, Panel, Segment, Shown, TaskLink } from "../ui/kit";
import { historyPath, known, type Range, RANGE_SECONDS } from "./overview";

const PLOTS = [
  { name: "utilization", most: 100, unit: percent },
  { name: "memory_mb", most: 0, unit: mebibytes },
  { name: "temperature", most: 60, unit: (value: number | null) => (value === null ? "–" : `${Math.round(value)} °C`) },
  { name: "power_watts", most: 50, unit: watts },
] as const;

export function GpuPage({ id }: { id: string }) {
  const words = t.value;
  const all = cards.value;
  const at = all ? cardIndex(id) : -1;
  const sample = all && at >= 0 ? sampleAt(all, at) : null;
  const card = all && at >= 0 ? all.cards[at]! : null;
  const range = useSignal<Range>("hour");
  const history = useResource<History>(historyPath(`gpus/${encodeURIComponent(id)}/history`, RANGE_SECONDS[range.value]), range.value === "hour" ? 10_000 : 60_000);
  const list = useResource<GpuList>("gpus");
  const device: Gpu | undefined = list.data.value?.gpus.find((one) => one.id === id);
  const state = sample ? (GPU_STATES[sample.state] ?? "offline") : (device?.status ?? null);
  const titles = { utilization: words.gpus.utilization, memory_mb: words.gpus.memory, temperature: words.gpus.temperature, power_watts: words.gpus.power };
  const holders = device && device.tasks.length > 1 ? device.tasks : sample?.holder ? [sample.holder] : [];
  return (
    <>
      <PageHead title={id} back={{ href: to("gpus"), text: words.gpus.back }} note={card?.model ?? device?.model} />
      <Panel>
        {state === "offline" && <p class="small muted" style={{ marginBottom: "10px" }}>{words.gpus.old}</p>}
        <Facts
          items={[
            [words.gpus.state, state && words.gpuState[state]],
            [words.gpus.held, holders.length ? holders.map((one) => <TaskLink key={one} id={one} />) : words.gpus.free],
            [words.gpus.utilization, percent(sample?.utilization)],
            [words.gpus.memory, card ? `${percent(sample?.memory)} · ${mebibytes(card.memory_mb)}` : "–"],
            [words.gpus.temperature, sample?.temperature == null ? "–" : `${sample.temperature} °C`],
            [words.gpus.power, watts(sample?.power)],
            [words.gpus.node, card && <a class="link" href={to(["nodes", card.node_id])}>{card.node_id}</a>],
            [words.gpus.device, device?.virtual ? words.gpus.virtual : device?.uuid],
            [words.gpus.why, device?.why],
          ]}
        />
      </Panel>
      <Panel
        title={words.gpus.history}
        tools={
          <Segment<Range> label={words.overview.range} value={range.value} onChange={(value) => (range.value = value)}
            options={[{ value: "hour", label: words.overview.hour }, { value: "day", label: words.overview.day }, { value: "week", label: words.overview.week }]} />
        }
      >
        <Shown of={history} lines={8}>
          {(whole) => {
            const told = known(whole);
            return Object.values(told.series).some((values) => values.some((one) => one !== null)) ? (
              <div class="grid">
                {PLOTS.filter((plot) => told.series[plot.name]).map((plot) => (
                  <div class="span-6 stack" key={plot.name}>
                    <h3>{titles[plot.name]}</h3>
                    <Chart label={titles[plot.name]} x={told.times} lines={linesOf(told, plot.name)} unit={plot.unit} height={170} steps={plot.name === "memory_mb" ? "binary" : undefined} atLeast={plot.name === "memory_mb" ? (card?.memory_mb ?? 0) : plot.most} />
                  </div>
                ))}
              </div>
            ) : (
              <p class="note-line">{words.gpus.noHistory}</p>
            );
          }}
        </Shown>
      </Panel>
    </>
  );
}

function linesOf(told: History, name: string): Line[] {
  const colors = palette.value;
  const words = t.value.gpus;
  const most = told.series[`${name}_max`];
  const mean: Line = { label: words.mean, values: told.series[name]!, color: colors.accent, fill: true };
  return most && most.some((one) => one !== null) ? [mean, { label: words.maximum, values: most, color: colors.amber }] : [mean];
}
