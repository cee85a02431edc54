// The parts that every page is made of.
import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { ApiError, standbyOf } from "../core/api";
import { exact, instant } from "../core/format";
import type { Resource } from "../core/resource";
import { place, to } from "../core/router";
import type { Status } from "../core/types";
import { said, t } from "../i18n";
import { Icon, type IconName } from "./icons";

type Children = { children?: ComponentChildren };

export function PageHead({ title, note, back, children }: { title: ComponentChildren; note?: ComponentChildren; back?: { href: string; text: string } } & Children) {
  return (
    <div class="page-head">
      <div>
        {back && (
          <a class="back" href={back.href}>
            <Icon name="back" />
            {back.text}
          </a>
        )}
        <h1>{title}</h1>
        {note && <p class="muted">{note}</p>}
      </div>
      {children && <div class="tools">{children}</div>}
    </div>
  );
}

export function Panel({ title, tools, children, class: more = "", flush = false }: { title?: ComponentChildren; tools?: ComponentChildren; class?: string; flush?: boolean } & Children) {
  return (
    <section class={`panel ${more}`}>
      {(title || tools) && (
        <header>
          {title && <h2>{title}</h2>}
          {tools && <div class="tools">{tools}</div>}
        </header>
      )}
      <div class={flush ? "body flush" : "body"}>{children}</div>
    </section>
  );
}

export function Stat({ label, value, unit, children, href }: { label: string; value: ComponentChildren | null; unit?: string; href?: string } & Children) {
  const inside = (
    <>
      <span class="label">{label}</span>
      <span class="value">
        {value === null ? <Skeleton width={70} height={30} /> : value}
        {value !== null && unit && <small>{unit}</small>}
      </span>
      <span class="note">{value === null ? <Skeleton width={110} height={14} /> : children}</span>
    </>
  );
  return href ? (
    <a class="panel stat" href={href}>
      {inside}
    </a>
  ) : (
    <div class="panel stat">{inside}</div>
  );
}

export function Skeleton({ width = "100%", height = 16 }: { width?: number | string; height?: number }) {
  return <span class="skeleton" style={{ width: typeof width === "number" ? `${width}px` : width, height: `${height}px` }} aria-hidden="true" />;
}

export function Skeletons({ lines = 4 }: { lines?: number }) {
  return (
    <div class="stack" role="status" aria-label={t.value.common.loading}>
      {Array.from({ length: lines }, (_, i) => (
        <Skeleton key={i} width={`${92 - ((i * 17) % 40)}%`} />
      ))}
    </div>
  );
}

export function Empty({ icon = "empty", title, text, children }: { icon?: IconName; title: string; text?: ComponentChildren } & Children) {
  return (
    <div class="empty">
      <Icon name={icon} />
      <h2>{title}</h2>
      {text && <p>{text}</p>}
      {children && <div class="row">{children}</div>}
    </div>
  );
}

/** One sentence for what went wrong, with what to do next. */
export function Problem({ error, retry }: { error: ApiError; retry?: () => void }) {
  const text = error.missing ? t.value.common.missing : said(error.code, error.message) || t.value.common.failed;
  return (
    <div class="note-line row" role="status">
      <span class="break">{text}</span>
      {retry && !error.missing && (
        <button type="button" class="button small" onClick={retry}>
          {t.value.common.retry}
        </button>
      )}
    </div>
  );
}

/** Show a resource: a skeleton before the first answer, one sentence if there is none, else its data. */
export function Shown<T>({ of, lines, children }: { of: Resource<T>; lines?: number; children: (data: T) => ComponentChildren }) {
  const data = of.data.value;
  const error = of.error.value;
  if (data !== null && !(error && error.missing)) return <>{children(data)}</>;
  if (error && !error.away) return <Problem error={error} retry={of.refresh} />;
  return <Skeletons lines={lines} />;
}

/** On the page of a standby: where the one that leads is. */
export function StandbyNote() {
  const leader = standbyOf.value;
  const { parts, query } = place.value;
  if (leader === null) return null;
  const words = t.value.bar;
  return (
    <div class="banner info" role="status">
      {leader ? words.standby : words.noLeader}
      {/^https?:/.test(leader) && (
        <a class="button small" href={`${leader}/${to(parts, Object.fromEntries(query))}`}>
          {words.toLeader}
        </a>
      )}
    </div>
  );
}

const STATUS_MARK: Record<Status, string> = { pending: "◷", running: "▶", suspended: "⏸", success: "✓", failed: "✕", cancelled: "⊘", timeout: "⌛" };

export function StatusBadge({ status }: { status: Status }) {
  return (
    <span class={`badge ${status}`}>
      <span aria-hidden="true">{STATUS_MARK[status] ?? "·"}</span>
      {t.value.status[status] ?? status}
    </span>
  );
}

export function Time({ at }: { at: string | number | null | undefined }) {
  if (at == null) return <span class="muted">–</span>;
  return (
    <time dateTime={typeof at === "string" ? at : new Date(at * 1000).toISOString()} title={exact(at)}>
      {instant(at)}
    </time>
  );
}

export function TaskLink({ id, children }: { id: string } & Children) {
  return (
    <a class="link" href={to(["tasks", id])}>
      {children ?? id}
    </a>
  );
}

export interface Option<V extends string> {
  value: V;
  label: string;
}

export function Segment<V extends string>({ label, value, options, onChange }: { label: string; value: V; options: Option<V>[]; onChange: (value: V) => void }) {
  return (
    <div class="segment" role="group" aria-label={label}>
      {options.map((one) => (
        <button key={one.value} type="button" aria-pressed={one.value === value} onClick={() => onChange(one.value)}>
          {one.label}
        </button>
      ))}
    </div>
  );
}

export function Tabs<V extends string>({ label, value, options, onChange }: { label: string; value: V; options: Option<V>[]; onChange: (value: V) => void }) {
  const list = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent): void => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    const at = options.findIndex((one) => one.value === value);
    const next = (at + step + options.length) % options.length;
    onChange(options[next]!.value);
    (list.current?.children[next] as HTMLElement | undefined)?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} ref={list} onKeyDown={move}>
      {options.map((one) => (
        <button key={one.value} type="button" role="tab" aria-selected={one.value === value} tabIndex={one.value === value ? 0 : -1} onClick={() => onChange(one.value)}>
          {one.label}
        </button>
      ))}
    </div>
  );
}

export function Select<V extends string>({ label, value, options, onChange }: { label: string; value: V; options: Option<V>[]; onChange: (value: V) => void }) {
  return (
    <select aria-label={label} value={value} onChange={(event) => onChange(event.currentTarget.value as V)}>
      {options.map((one) => (
        <option key={one.value} value={one.value}>
          {one.label}
        </option>
      ))}
    </select>
  );
}

interface FieldProps {
  label: string;
  hint?: string;
  wrong?: string | null;
  class?: string;
  children: (ids: { id: string; "aria-invalid"?: boolean; "aria-describedby"?: string }) => ComponentChildren;
}

/** A control with its label, a hint and what is wrong with it. */
export function Field({ label, hint, wrong, class: more = "", children }: FieldProps) {
  const id = useId();
  const note = wrong || hint;
  return (
    <div class={`field ${more}`}>
      <label for={id}>{label}</label>
      {children({ id, ...(wrong ? { "aria-invalid": true } : {}), ...(note ? { "aria-describedby": `${id}-note` } : {}) })}
      {note && (
        <span id={`${id}-note`} class={wrong ? "wrong" : "hint"}>
          {note}
        </span>
      )}
    </div>
  );
}

export function Facts({ items, narrow = false }: { items: [string, ComponentChildren | null | undefined | false][]; narrow?: boolean }) {
  return (
    <dl class={narrow ? "facts narrow" : "facts"}>
      {items
        .filter(([, value]) => value !== null && value !== undefined && value !== false && value !== "")
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

export function Meter({ label, parts, most, thin = false }: { label: string; parts: { value: number; class?: string }[]; most: number; thin?: boolean }) {
  const total = Math.max(most, parts.reduce((sum, part) => sum + part.value, 0), 1e-9);
  return (
    <div class={thin ? "meter thin" : "meter"} role="img" aria-label={label}>
      {parts.map((part, i) => (
        <i key={i} class={part.class} style={{ width: `${(100 * part.value) / total}%` }} />
      ))}
    </div>
  );
}

// --- toasts -----------------------------------------------------------------------------------------------------------

interface Toast {
  id: number;
  text: ComponentChildren;
  bad: boolean;
}

const toasts = signal<Toast[]>([]);
let lastToast = 0;

export function notify(text: ComponentChildren, bad = false): void {
  const id = ++lastToast;
  toasts.value = [...toasts.value.slice(-3), { id, text, bad }];
  setTimeout(() => dismiss(id), bad ? 10_000 : 5000);
}

export function notifyError(problem: unknown): void {
  notify(problem instanceof ApiError ? said(problem.code, problem.message) : String(problem), true);
}

function dismiss(id: number): void {
  toasts.value = toasts.value.filter((one) => one.id !== id);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((one) => (
        <div key={one.id} class={one.bad ? "toast bad" : "toast"}>
          <span>{one.text}</span>
          <button type="button" aria-label={t.value.common.close} onClick={() => dismiss(one.id)}>
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}

// --- dialogs ----------------------------------------------------------------------------------------------------------

interface DialogProps extends Children {
  title: string;
  onClose: () => void;
  onSubmit?: () => void;
  send?: string;
  danger?: boolean;
  busy?: boolean;
  dismissText?: string;
}

/** A modal dialog: the browser keeps the focus inside and returns it. */
export function Dialog({ title, onClose, onSubmit, send, danger, busy, dismissText, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useEffect(() => {
    dialog.current?.showModal();
    return () => dialog.current?.close();
  }, []);
  const submit = (event: JSX.TargetedSubmitEvent<HTMLFormElement>): void => {
    event.preventDefault();
    onSubmit?.();
  };
  return (
    <dialog ref={dialog} aria-labelledby={heading} onClose={onClose} onCancel={onClose}>
      <form onSubmit={submit} noValidate>
        <h2 id={heading}>{title}</h2>
        {children}
        <div class="row">
          <button type="button" class="button" onClick={onClose}>
            {dismissText ?? (onSubmit ? t.value.common.cancel : t.value.common.close)}
          </button>
          {onSubmit && (
            <button type="submit" class={danger ? "button danger solid" : "button primary"} disabled={busy}>
              {send ?? t.value.common.save}
            </button>
          )}
        </div>
      </form>
    </dialog>
  );
}

interface Question {
  title: string;
  text: string;
  send: string;
  danger: boolean;
  dismiss?: string;
  act: () => Promise<unknown>;
}

const question = signal<Question | null>(null);

/** Ask before something that cannot be taken back. */
export function confirmThen(asked: Question): void {
  question.value = asked;
}

export function Confirm() {
  const asked = question.value;
  if (!asked) return null;
  const close = (): void => {
    question.value = null;
  };
  const act = (): void => {
    close();
    asked.act().catch(notifyError);
  };
  return (
    <Dialog title={asked.title} onClose={close} onSubmit={act} send={asked.send} danger={asked.danger} dismissText={asked.dismiss}>
      <p class="break">{asked.text}</p>
    </Dialog>
  );
}

/** The clipboard API exists on secure origins only; elsewhere a selected field is copied. */
export async function copyText(text: string): Promise<void> {
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    notify(t.value.common.copied);
  } catch {
    notify(t.value.common.failed, true);
  }
}
