import { useSignal } from "@preact/signals";
import { ApiError, may, post, remove } from "../core/api";
import { ago, duration, exact, rounded } from "../core/format";
import { useResource } from "../core/resource";
import { place, refine } from "../core/router";
import type { Alert, Silence } from "../core/types";
import { said, t } from "../i18n";
import { Dialog, Empty, Field, notify, notifyError, PageHead, Panel, Shown, Tabs } from "../ui/kit";

type Tab = "active" | "rules" | "silences" | "history";

interface Rule {
  name: string;
  summary: string;
  enabled: boolean;
  severity: string;
  threshold: number;
  above: boolean;
  unit: string;
  for_seconds: number;
}

export function AlertsPage() {
  const words = t.value.alerts;
  const tab = (place.value.query.get("tab") as Tab | null) ?? "active";
  return (
    <>
      <PageHead title={words.title} />
      <Tabs<Tab> label={words.title} value={tab} onChange={(value) => refine({ tab: value })}
        options={(["active", "rules", "silences", "history"] as const).map((value) => ({ value, label: words[value] }))} />
      {tab === "rules" ? <Rules /> : tab === "silences" ? <Silences /> : tab === "history" ? <Past /> : <Active />}
    </>
  );
}

function Severity({ severity }: { severity: string }) {
  const word = (t.value.alerts as Record<string, unknown>)[severity];
  return <span class={`badge ${severity === "critical" ? "bad" : severity === "warning" ? "warn" : ""}`}>{typeof word === "string" ? word : severity}</span>;
}

/** The sentence of the server, or of the rule in Chinese with the value. */
export function alertText(one: Alert): string {
  const words = t.value.alerts;
  const known = words.ruleNames[one.rule];
  if (!known) return one.summary.replace(/-?\d+\.\d+(?= |$)/g, (value) => rounded(Number(value)));
  const value = one.value === null || one.rule === "agent_lost" ? "" : words.measured(rounded(one.value), unitOf(one.rule));
  return [known, Object.values(one.labels).join(" · "), value].filter(Boolean).join(" ");
}

function unitOf(rule: string, unit = ""): string {
  return t.value.alerts.units[rule] ?? unit;
}

/** What a rule compares, as the manual says it: at or above the threshold, or at or below it. */
function conditionOf(one: Rule): string {
  const words = t.value.alerts;
  if (!one.unit) return words.ruleNames[one.name] ?? one.summary;
  const value = [rounded(one.threshold), unitOf(one.name, one.unit)].join(one.unit.startsWith("%") ? "" : " ");
  return `${words.ruleNames[one.name] ?? one.summary} ${one.above ? words.orMore(value) : words.atMost(value)}`;
}

function Labels({ labels }: { labels: Record<string, string> }) {
  return <span class="row">{Object.entries(labels).map(([name, value]) => <span key={name} class="badge">{name}={value}</span>)}</span>;
}

function Active() {
  const words = t.value.alerts;
  const alerts = useResource<{ alerts: Alert[] }>("alerts", 5000);
  const silenced = useSignal<Alert | null>(null);
  return (
    <Panel flush>
      <Shown of={alerts}>
        {(told) => {
          const rows = told.alerts.filter((one) => one.state !== "resolved");
          if (rows.length === 0) return <Empty icon="check" title={words.none} text={words.noneText} />;
          return <AlertTable rows={rows} silence={may("run_cluster") ? (one) => (silenced.value = one) : undefined} />;
        }}
      </Shown>
      {silenced.value && <SilenceDialog alert={silenced.value} close={() => (silenced.value = null)} again={alerts.refresh} />}
    </Panel>
  );
}

function AlertTable({ rows, silence }: { rows: Alert[]; silence?: (one: Alert) => void }) {
  const words = t.value.alerts;
  return (
    <div class="scroll">
      <table>
        <thead><tr><th>{words.state}</th><th>{words.severity}</th><th>{words.rule}</th><th>{words.summary}</th><th>{words.labels}</th><th>{words.since}</th>{silence && <th>{t.value.common.actions}</th>}</tr></thead>
        <tbody>
          {rows.map((one) => (
            <tr key={`${one.id}-${one.fired_at ?? one.since}`}>
              <td><span class={`badge ${one.state === "firing" ? "bad" : one.state === "resolved" ? "good" : "warn"}`}>{words[one.state] ?? one.state}</span> {one.silenced_by && <span class="badge">{words.silenced}</span>}</td>
              <td><Severity severity={one.severity} /></td>
              <td class="nowrap">{one.rule}</td>
              <td class="break" style={{ minWidth: "200px" }}>{alertText(one)}</td>
              <td><Labels labels={one.labels} /></td>
              <td class="nowrap" title={exact(one.fired_at ?? one.since)}>{ago(one.resolved_at ?? one.fired_at ?? one.since)}</td>
              {silence && <td>{!one.silenced_by && <button type="button" class="button small" onClick={() => silence(one)}>{words.silence}</button>}</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Rules() {
  const words = t.value.alerts;
  const rules = useResource<{ rules: Rule[] }>("alerts/rules");
  return (
    <Panel flush>
      <Shown of={rules}>
        {(told) => (
          <div class="scroll">
            <table>
              <thead><tr><th>{words.rule}</th><th>{words.severity}</th><th>{words.condition}</th><th class="num">{words.for}</th></tr></thead>
              <tbody>
                {told.rules.map((one) => (
                  <tr key={one.name}>
                    <td class="nowrap">{one.name} {one.enabled === false && <span class="badge">{t.value.access.disabled}</span>}</td>
                    <td><Severity severity={one.severity} /></td>
                    <td class="break" style={{ minWidth: "220px" }}>{conditionOf(one)}</td>
                    <td class="num nowrap">{one.for_seconds ? duration(one.for_seconds) : "–"}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Shown>
    </Panel>
  );
}

interface Entry {
  at: string;
  state: Alert["state"];
  alert: Alert;
}

function Past() {
  const past = useResource<{ entries: Entry[] }>("alerts/history?limit=200");
  return (
    <Panel flush>
      <Shown of={past}>
        {({ entries }) =>
          entries.length === 0 ? (
            <Empty icon="alerts" title={t.value.alerts.noHistory} />
          ) : (
            <AlertTable rows={entries.map((one) => ({ ...one.alert, state: one.state, fired_at: one.at, resolved_at: null }))} />
          )
        }
      </Shown>
    </Panel>
  );
}

function Silences() {
  const words = t.value.alerts;
  const silences = useResource<{ silences: Silence[] }>("alerts/silences", 10_000);
  const adding = useSignal(false);
  return (
    <Panel flush title={words.silences} tools={may("run_cluster") && <button type="button" class="button small" onClick={() => (adding.value = true)}>{words.addSilence}</button>}>
      <Shown of={silences}>
        {(told) =>
          told.silences.length === 0 ? (
            <Empty icon="alerts" title={words.noSilences} />
          ) : (
            <div class="scroll">
              <table>
                <thead><tr><th>{words.labels}</th><th>{words.comment}</th><th>{words.until}</th><th>{t.value.common.actions}</th></tr></thead>
                <tbody>
                  {told.silences.map((one) => (
                    <tr key={one.id}>
                      <td><Labels labels={one.matchers} /></td>
                      <td class="break">{one.comment}</td>
                      <td class="nowrap">{exact(one.until)}</td>
                      <td>{may("run_cluster") && <button type="button" class="button small" onClick={() => void remove(`alerts/silences/${encodeURIComponent(one.id)}`).then(silences.refresh).catch(notifyError)}>{words.expire}</button>}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          )
        }
      </Shown>
      {adding.value && <SilenceDialog alert={null} close={() => (adding.value = false)} again={silences.refresh} />}
    </Panel>
  );
}

function SilenceDialog({ alert, close, again }: { alert: Alert | null; close: () => void; again: () => void }) {
  const words = t.value.alerts;
  const form = useSignal({ rule: alert?.rule ?? "", node: alert?.labels.node ?? "", gpu: alert?.labels.gpu ?? "", comment: "" });
  const hours = useSignal("2");
  const problem = useSignal<ApiError | null>(null);
  const labels = { rule: words.rule, node: words.node, gpu: words.gpu, comment: words.comment };
  const wrong = !(Number(hours.value) > 0);
  const save = (): void => {
    const { comment, ...matchers } = form.value;
    const kept = Object.fromEntries(Object.entries(matchers).filter(([, value]) => value.trim()));
    post("alerts/silences", { matchers: kept, seconds: Number(hours.value) * 3600, comment })
      .then(() => { notify(words.created); close(); again(); })
      .catch((error: ApiError) => (problem.value = error));
  };
  return (
    <Dialog title={words.addSilence} onClose={close} onSubmit={save} busy={wrong}>
      {(["rule", "node", "gpu", "comment"] as const).map((name) => (
        <Field key={name} label={labels[name]}>{(ids) => <input {...ids} value={form.value[name]} onInput={(event) => (form.value = { ...form.value, [name]: event.currentTarget.value })} />}</Field>
      ))}
      <Field label={words.hours}>{(ids) => <input {...ids} inputMode="decimal" value={hours.value} onInput={(event) => (hours.value = event.currentTarget.value)} />}</Field>
      {problem.value && <div class="callout bad" role="alert">{said(problem.value.code, problem.value.message)}</div>}
    </Dialog>
  );
}
