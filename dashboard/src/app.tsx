// The frame of all pages: navigation, top bar, banners; and which page an address shows.
import { useSignal } from "@preact/signals";
import type { FunctionComponent } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { loginNeeded, may, remove, session } from "./core/api";
import { number } from "./core/format";
import { connected, counts, outdated } from "./core/live";
import { go, page, place, to } from "./core/router";
import { chooseLang, chooseTheme, lang, theme, type Theme } from "./core/settings";
import { t } from "./i18n";
import { AccessPage } from "./pages/access";
import { AlertsPage } from "./pages/alerts";
import { GpuPage } from "./pages/gpu";
import { GpusPage } from "./pages/gpus";
import { LoginPage } from "./pages/login";
import { NodePage, NodesPage } from "./pages/nodes";
import { OverviewPage } from "./pages/overview";
import { PlansPage } from "./pages/plans";
import { PoliciesPage } from "./pages/policies";
import { PredictionsPage } from "./pages/predictions";
import { SubmitPage } from "./pages/submit";
import { TaskPage } from "./pages/task";
import { TasksPage } from "./pages/tasks";
import { TenantsPage } from "./pages/tenants";
import { TimelinePage } from "./pages/timeline";
import { UsagePage } from "./pages/usage";
import { Icon, type IconName, Logo } from "./ui/icons";
import { Confirm, Empty, notifyError, Segment, StandbyNote, Toasts } from "./ui/kit";

type PageName = keyof typeof NAV_ICONS;

const NAV_ICONS = {
  overview: "overview", gpus: "gpus", tasks: "tasks", timeline: "timeline", plans: "plans", policies: "policies", usage: "usage",
  alerts: "alerts", nodes: "nodes", tenants: "tenants", access: "access", predictions: "predictions",
} as const satisfies Record<string, IconName>;

const GROUPS: { title: "work" | "study" | "run"; pages: PageName[] }[] = [
  { title: "work", pages: ["overview", "gpus", "tasks", "timeline"] },
  { title: "study", pages: ["plans", "policies", "usage", "predictions"] },
  { title: "run", pages: ["alerts", "nodes", "tenants", "access"] },
];

/** The right that a page needs; without it the page is not offered. */
const NEEDS: Partial<Record<PageName, string>> = { gpus: "see_cluster", nodes: "see_cluster", predictions: "see_cluster", timeline: "see_cluster" };

const PAGES: Record<string, FunctionComponent> = {
  overview: OverviewPage, gpus: GpusPage, tasks: TasksPage, submit: SubmitPage, timeline: TimelinePage, plans: PlansPage,
  policies: PoliciesPage, usage: UsagePage, alerts: AlertsPage, nodes: NodesPage, tenants: TenantsPage, access: AccessPage,
  predictions: PredictionsPage,
};

function Shown() {
  const { parts } = place.value;
  const name = page.value;
  if (name === "gpus" && parts[1]) return <GpuPage key={parts[1]} id={parts[1]} />;
  if (name === "tasks" && parts[1]) return <TaskPage key={parts[1]} id={parts[1]} />;
  if (name === "nodes" && parts[1]) return <NodePage key={parts[1]} id={parts[1]} />;
  const Page = PAGES[name];
  if (Page) return <Page />;
  return (
    <Empty icon="warning" title={t.value.common.notFound}>
      <a class="button" href={to("overview")}>
        {t.value.common.toOverview}
      </a>
    </Empty>
  );
}

export function App() {
  const open = useSignal(false);
  const content = useRef<HTMLElement>(null);
  const words = t.value;
  const name = page.value;
  const title = (words.nav as Record<string, string>)[name];
  const first = useRef(true);
  const where = place.value.parts.join("/");

  useEffect(() => {
    document.title = `${place.value.parts[1] ?? title ?? words.product} · gpuyard`;
  }, [where, title]);
  useEffect(() => {
    open.value = false;
    if (first.current) first.current = false;
    else {
      scrollTo({ top: 0 });
      content.current?.focus({ preventScroll: true });
    }
  }, [where]);

  if (loginNeeded.value) return <LoginPage />;
  return (
    <div class="app">
      <a
        class="skip"
        href={location.hash || "#/"}
        onClick={(event) => {
          event.preventDefault();
          content.current?.focus();
        }}
      >
        {words.skip}
      </a>
      {open.value && <button type="button" class="veil" aria-label={words.nav.close} onClick={() => (open.value = false)} />}
      <nav class={open.value ? "side open" : "side"} aria-label={words.nav.label} id="menu">
        <a class="brand" href={to("overview")}>
          <Logo />
          {words.product}
        </a>
        {GROUPS.map((group) => (
          <div key={group.title}>
            <h2>{words.nav[group.title]}</h2>
            {group.pages
              .filter((one) => !NEEDS[one] || may(NEEDS[one]!))
              .map((one) => (
                <a key={one} href={to(one)} aria-current={name === one ? "page" : undefined}>
                  <Icon name={NAV_ICONS[one]} />
                  {words.nav[one]}
                  <NavCount page={one} />
                </a>
              ))}
          </div>
        ))}
        {may("submit") && (
          <a class="only-phone" href={to("submit")}>
            <Icon name="plus" />
            {words.bar.submit}
          </a>
        )}
        <footer>
          <a href="/docs">{words.bar.docs}</a>
        </footer>
      </nav>
      <div class="main">
        <TopBar menu={() => (open.value = !open.value)} opened={open.value} />
        {connected.value === false && (
          <div class="banner" role="status">
            <Icon name="warning" />
            {words.bar.awayLong}
          </div>
        )}
        <StandbyNote />
        {outdated.value && (
          <div class="banner info" role="status">
            {words.bar.outdated}
            <button type="button" class="button small" onClick={() => location.reload()}>
              {words.bar.reload}
            </button>
          </div>
        )}
        <main class="content" ref={content} tabIndex={-1} id="content">
          <Shown />
        </main>
      </div>
      <Confirm />
      <Toasts />
    </div>
  );
}

function NavCount({ page: one }: { page: PageName }) {
  const now = counts.value;
  if (!now) return null;
  if (one === "tasks" && now.tasks.pending + now.tasks.running > 0) return <span class="count">{number(now.tasks.running + now.tasks.pending)}</span>;
  if (one === "gpus" && now.gpus.total > 0) return <span class="count">{number(now.gpus.total)}</span>;
  if (one === "alerts" && now.alerts && now.alerts.firing > 0) return <span class="count bad">{number(now.alerts.firing)}</span>;
  return null;
}

function TopBar({ menu, opened }: { menu: () => void; opened: boolean }) {
  const words = t.value;
  const find = useSignal("");
  const input = useRef<HTMLInputElement>(null);
  const up = connected.value;
  useEffect(() => {
    const slash = (event: KeyboardEvent): void => {
      const inField = (event.target as HTMLElement).closest("input, textarea, select, dialog");
      if (event.key !== "/" || event.ctrlKey || event.metaKey || inField) return;
      event.preventDefault();
      input.current?.focus();
    };
    document.addEventListener("keydown", slash);
    return () => document.removeEventListener("keydown", slash);
  }, []);
  return (
    <header class="top">
      <button type="button" class="button square only-phone" aria-label={words.nav.menu} aria-expanded={opened} aria-controls="menu" onClick={menu}>
        <Icon name="menu" />
      </button>
      <form
        class="find"
        role="search"
        onSubmit={(event) => {
          event.preventDefault();
          const text = find.value.trim();
          if (/^task-\d+$/.test(text)) go(to(["tasks", text]));
          else go(to("tasks", { q: text }));
          find.value = "";
          input.current?.blur();
        }}
      >
        <Icon name="search" />
        <input ref={input} type="search" aria-label={words.bar.find} placeholder={words.bar.findHint} value={find.value} onInput={(event) => (find.value = event.currentTarget.value)} />
      </form>
      <span class="state push not-phone" role="status">
        <i class={up ? "dot good" : up === false ? "dot warn" : "dot"} />
        {up ? words.bar.live : up === false ? words.bar.away : words.bar.connecting}
      </span>
      {may("submit") && (
        <a class="button primary not-phone" href={to("submit")}>
          <Icon name="plus" />
          {words.bar.submit}
        </a>
      )}
      <Account />
    </header>
  );
}

function Account() {
  const words = t.value;
  const open = useSignal(false);
  const box = useRef<HTMLDivElement>(null);
  const who = session.value;
  useEffect(() => {
    if (!open.value) return;
    const away = (event: Event): void => {
      if (!box.current?.contains(event.target as Node)) open.value = false;
    };
    const escape = (event: KeyboardEvent): void => {
      if (event.key === "Escape") open.value = false;
    };
    document.addEventListener("pointerdown", away);
    document.addEventListener("keydown", escape);
    return () => {
      document.removeEventListener("pointerdown", away);
      document.removeEventListener("keydown", escape);
    };
  }, [open.value]);
  const logout = (): void => {
    remove("session")
      .then(() => (loginNeeded.value = true))
      .catch(notifyError);
  };
  return (
    <div class="menu" ref={box}>
      <button type="button" class="button square" aria-label={words.bar.account} aria-expanded={open.value} onClick={() => (open.value = !open.value)}>
        <Icon name="user" />
      </button>
      {open.value && (
        <div class="sheet">
          <div class="row">
            <Icon name="user" />
            <span class="break">
              {who?.username || words.bar.local}
              {who?.role && <span class="muted"> · {(words.access as Record<string, unknown>)[who.role] as string}</span>}
            </span>
          </div>
          <div class="field">
            <span class="label">{words.bar.language}</span>
            <Segment label={words.bar.language} value={lang.value} options={[{ value: "en", label: "English" }, { value: "zh", label: "中文" }]} onChange={chooseLang} />
          </div>
          <div class="field">
            <span class="label">{words.bar.theme}</span>
            <Segment<Theme> label={words.bar.theme} value={theme.value} options={[{ value: "light", label: words.bar.light }, { value: "dark", label: words.bar.dark }, { value: "auto", label: words.bar.auto }]} onChange={chooseTheme} />
          </div>
          {who?.via === "session" && (
            <button type="button" class="button" onClick={logout}>
              {words.bar.logout}
            </button>
          )}
        </div>
      )}
    </div>
  );
}
