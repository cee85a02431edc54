import { useSignal } from "@preact/signals";
import { ApiError, may, put } from "../core/api";
import { number, rounded } from "../core/format";
import { useResource } from "../core/resource";
import { to } from "../core/router";
import type { Quota, Tenant, UsageRow } from "../core/types";
import { said, t } from "../i18n";
import { Dialog, Field, Meter, notify, notifyError, PageHead, Panel, Select, Shown } from "../ui/kit";

const USAGE_DAYS = 30;

/** Midnight in UTC so many days ago, as the API takes it. */
function dayStart(days: number): string {
  return `${new Date(Date.now() - days * 86_400_000).toISOString().slice(0, 10)}T00:00:00Z`;
}

export function TenantsPage() {
  const words = t.value.tenants;
  const tenants = useResource<{ tenants: Tenant[] }>("tenants", 5000);
  const usage = useResource<{ rows: UsageRow[] }>(`usage?since=${dayStart(USAGE_DAYS)}&by=tenant`, 60_000);
  const hoursOf = (id: string): number | null => {
    const told = usage.data.value;
    return told ? Number(told.rows.find((one) => one.tenant === id)?.gpu_hours ?? 0) : null;
  };
  const edited = useSignal<Tenant | "new" | null>(null);
  return (
    <>
      <PageHead title={words.title}>
        {may("run_cluster") && <button type="button" class="button" onClick={() => (edited.value = "new")}>{words.add}</button>}
      </PageHead>
      <QuotaPanel />
      <Panel flush title={t.value.overview.byTenant}>
        <Shown of={tenants}>
          {(told) =>
            told.tenants.length === 0 ? (
              <p class="note-line">{words.none}</p>
            ) : (
              <div class="scroll">
                <table>
                  <thead>
                    <tr>
                      <th>{words.tenant}</th><th>{words.used}</th><th class="num">{words.limit}</th><th class="num">{words.guaranteed}</th><th class="num">{words.weight}</th>
                      <th class="num">{words.hours}</th><th class="num">{words.running}</th><th class="num">{words.pending}</th>{may("run_cluster") && <th>{t.value.common.actions}</th>}
                    </tr>
                  </thead>
                  <tbody>
                    {told.tenants.map((one) => (
                      <tr key={one.id}>
                        <td><a class="link" href={to("tasks", { tenant: one.id })}>{one.id}</a></td>
                        <td style={{ minWidth: "120px" }}>{number(one.used_gpus, 1)}{one.max_gpus !== null && <Meter label={`${one.used_gpus} / ${one.max_gpus}`} parts={[{ value: one.used_gpus }]} most={one.max_gpus} />}</td>
                        <td class="num">{one.max_gpus === null ? t.value.common.unlimited : number(one.max_gpus)}</td>
                        <td class="num">{number(one.guaranteed_gpus)}</td>
                        <td class="num">{number(one.weight, 1)}</td>
                        <td class="num">
                          {words.hoursUsed(hoursOf(one.id) === null ? "–" : rounded(hoursOf(one.id)!), USAGE_DAYS)}
                          <br /><span class="small muted">{one.gpu_hours === null ? words.noHoursLimit : words.hoursLimit(number(one.gpu_hours), number((one.gpu_hours_period ?? 2_592_000) / 86_400, 1))}</span>
                        </td>
                        <td class="num">{number(one.running_tasks)}</td>
                        <td class="num">{number(one.pending_tasks)}</td>
                        {may("run_cluster") && <td><button type="button" class="button small" onClick={() => (edited.value = one)}>{words.set}</button></td>}
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            )
          }
        </Shown>
      </Panel>
      {edited.value && <LimitsDialog tenant={edited.value === "new" ? null : edited.value} close={() => (edited.value = null)} again={tenants.refresh} />}
    </>
  );
}

function QuotaPanel() {
  const words = t.value.tenants;
  const quota = useResource<Quota>("quota", 5000);
  const changing = useSignal(false);
  const share = useSignal("");
  const mode = useSignal("borrow");
  const wrong = share.value !== "" && !(Number(share.value) >= 0 && Number(share.value) <= 100);
  const save = (): void => {
    put<Quota>("quota", { online_percent: Number(share.value) / 100, mode: mode.value })
      .then(() => { changing.value = false; notify(words.saved); quota.refresh(); })
      .catch(notifyError);
  };
  return (
    <Panel title={words.quota} tools={may("run_cluster") && quota.data.value && (
      <button type="button" class="button small" onClick={() => { share.value = String(Math.round(quota.data.value!.online_percent * 100)); mode.value = quota.data.value!.mode; changing.value = true; }}>{words.change}</button>
    )}>
      <Shown of={quota}>
        {(told) => (
          <div class="grid">
            {(["online", "batch"] as const).map((one) => {
              const { used, quota: limit } = told[one];
              const borrowed = Math.max(0, used - limit);
              return (
                <div class="span-6 stack" key={one} style={{ gap: "6px" }}>
                  <div class="spread"><strong>{words[one]}</strong><span class="muted">{t.value.overview.quotaUse(number(used, 1), number(limit), borrowed ? number(borrowed, 1) : "")}</span></div>
                  <Meter label={`${words[one]}: ${used} / ${limit}`} parts={[{ value: used - borrowed, class: one === "online" ? "blue" : "" }, { value: borrowed, class: "amber" }]} most={Math.max(limit, 1)} />
                </div>
              );
            })}
            <p class="span-12 small muted">{words.mode}: {told.mode === "borrow" ? words.borrow : told.mode === "strict" ? words.strict : told.mode}</p>
          </div>
        )}
      </Shown>
      {changing.value && (
        <Dialog title={words.change} onClose={() => (changing.value = false)} onSubmit={save} busy={wrong || share.value === ""}>
          <Field label={words.onlineShare} wrong={wrong ? t.value.submit.between(0, 100) : null}>
            {(ids) => <input {...ids} inputMode="decimal" value={share.value} onInput={(event) => (share.value = event.currentTarget.value.trim())} />}
          </Field>
          <div class="field"><span class="label">{words.mode}</span>
            <Select label={words.mode} value={mode.value} onChange={(value) => (mode.value = value)} options={[{ value: "strict", label: words.strict }, { value: "borrow", label: words.borrow }]} />
          </div>
        </Dialog>
      )}
    </Panel>
  );
}

const NUMBERS = ["max_gpus", "guaranteed_gpus", "max_open_tasks", "weight", "gpu_hours", "days"] as const;

function LimitsDialog({ tenant, close, again }: { tenant: Tenant | null; close: () => void; again: () => void }) {
  const words = t.value.tenants;
  const labels = { max_gpus: words.maxGpus, guaranteed_gpus: words.guaranteedGpus, max_open_tasks: words.maxOpen, weight: words.weight, gpu_hours: words.gpuHours, days: words.period };
  const text = (value: number | null | undefined): string => (value == null ? "" : String(value));
  const values = useSignal<Record<(typeof NUMBERS)[number], string>>({
    max_gpus: text(tenant?.max_gpus), guaranteed_gpus: text(tenant?.guaranteed_gpus), max_open_tasks: text(tenant?.max_open_tasks),
    weight: text(tenant?.weight), gpu_hours: text(tenant?.gpu_hours), days: tenant?.gpu_hours_period ? text(tenant.gpu_hours_period / 86_400) : "",
  });
  const name = useSignal(tenant?.id ?? "");
  const problem = useSignal<ApiError | null>(null);
  const save = (): void => {
    const body: Record<string, unknown> = {};
    for (const key of NUMBERS) {
      const value = values.value[key].trim();
      if (value !== "") body[key === "days" ? "gpu_hours_period" : key] = key === "days" ? Number(value) * 86_400 : Number(value);
    }
    if (tenant && Object.keys(tenant.max_gpus_by_model).length) body.max_gpus_by_model = tenant.max_gpus_by_model;
    put(`tenants/${encodeURIComponent(name.value.trim())}`, body)
      .then(() => { notify(words.saved); close(); again(); })
      .catch((error: ApiError) => (problem.value = error));
  };
  return (
    <Dialog title={tenant ? words.limits(tenant.id) : words.add} onClose={close} onSubmit={save} busy={!name.value.trim()}>
      {!tenant && <Field label={words.name}>{(ids) => <input {...ids} value={name.value} onInput={(event) => (name.value = event.currentTarget.value)} />}</Field>}
      <p class="small muted">{words.empty}</p>
      <div class="fields">
        {NUMBERS.map((key) => (
          <Field key={key} label={labels[key]} wrong={problem.value?.field === key ? said(problem.value.code, problem.value.message) : Number.isNaN(Number(values.value[key])) ? t.value.submit.wholeNumber : null}>
            {(ids) => <input {...ids} inputMode="decimal" value={values.value[key]} onInput={(event) => (values.value = { ...values.value, [key]: event.currentTarget.value })} />}
          </Field>
        ))}
      </div>
      {problem.value && !NUMBERS.some((key) => key === problem.value!.field) && <div class="callout bad" role="alert">{said(problem.value.code, problem.value.message)}</div>}
    </Dialog>
  );
}
