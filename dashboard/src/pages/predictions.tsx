import { exact, number } from "../core/format";
import { useResource } from "../core/resource";
import { t } from "../i18n";
import { Empty, Facts, PageHead, Panel, Shown } from "../ui/kit";

interface Predictions {
  enabled: boolean;
  scores: { predictor: string; about: string; tasks: number; median_ape: number | null; mape: number | null; band_coverage: number | null }[];
  model: { file: string | null; since: string | null; why: string; refused: number; refused_why: string | null; trained_on: Record<string, number> } | null;
}

const share = (value: number | null): string => (value === null ? "–" : `${number(Math.round(value * 1000) / 10, 1)}%`);

export function PredictionsPage() {
  const words = t.value.predictions;
  const told = useResource<Predictions>("predictions", 30_000);
  return (
    <>
      <PageHead title={words.title} note={words.subtitle} />
      <Panel flush>
        <Shown of={told}>
          {(data) =>
            !data.enabled ? (
              <Empty icon="predictions" title={words.off} />
            ) : data.scores.length === 0 ? (
              <Empty icon="predictions" title={words.none} />
            ) : (
              <div class="scroll">
                <table>
                  <thead><tr><th>{words.predictor}</th><th>{words.about}</th><th class="num">{words.tasks}</th><th class="num">{words.median}</th><th class="num">{words.mean}</th><th class="num">{words.coverage}</th></tr></thead>
                  <tbody>
                    {data.scores.map((one) => (
                      <tr key={`${one.predictor} ${one.about}`}>
                        <td>{one.predictor}</td><td>{words.abouts[one.predictor] ?? one.about}</td><td class="num">{number(one.tasks)}</td><td class="num">{share(one.median_ape)}</td><td class="num">{share(one.mape)}</td><td class="num">{share(one.band_coverage)}</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            )
          }
        </Shown>
      </Panel>
      <Panel title={words.model}>
        <Shown of={told}>
          {({ model }) =>
            model ? (
              <Facts items={[[words.file, model.file ?? words.shipped], [words.since, model.since && exact(model.since)], [words.why, model.why], [words.refused, model.refused ? number(model.refused) : null], [words.trained, Object.entries(model.trained_on).map(([kind, rows]) => `${kind} ${number(rows)}`).join(", ")]]} />
            ) : (
              <p class="muted">{words.notLoaded}</p>
            )
          }
        </Shown>
      </Panel>
    </>
  );
}
