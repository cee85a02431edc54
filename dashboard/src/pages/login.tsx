import { useSignal } from "@preact/signals";
import { ApiError, askSession, loginNeeded, post, session } from "../core/api";
import { followAgain } from "../core/live";
import { chooseLang, lang } from "../core/settings";
import type { Session } from "../core/types";
import { said, t } from "../i18n";
import { Logo } from "../ui/icons";
import { Field, StandbyNote } from "../ui/kit";

/** The address stays as it is, so the page after the login is the one that was asked for. */
export function LoginPage() {
  const words = t.value.login;
  const username = useSignal("");
  const password = useSignal("");
  const problem = useSignal<string | null>(null);
  const busy = useSignal(false);
  const wasIn = Boolean(session.value?.username);
  const enter = async (): Promise<void> => {
    busy.value = true;
    problem.value = null;
    try {
      await post<Session>("session", { username: username.value, password: password.value });
      await askSession();
      loginNeeded.value = false;
      followAgain();
    } catch (error) {
      const told = error as ApiError;
      password.value = "";
      if (told.status === 401) problem.value = words.wrong;
      else if (told.status === 429) problem.value = words.slow(told.retryAfter || 10);
      else problem.value = said(told.code, told.message);
    } finally {
      busy.value = false;
    }
  };
  return (
    <main class="login">
      <form
        class="panel"
        onSubmit={(event) => {
          event.preventDefault();
          void enter();
        }}
      >
        <div class="brand">
          <Logo />
          <h1>{words.title}</h1>
        </div>
        <StandbyNote />
        {wasIn && <p class="muted">{words.expired}</p>}
        <Field label={words.username}>
          {(ids) => <input {...ids} name="username" autocomplete="username" autofocus required value={username.value} onInput={(event) => (username.value = event.currentTarget.value)} />}
        </Field>
        <Field label={words.password}>
          {(ids) => <input {...ids} name="password" type="password" autocomplete="current-password" required value={password.value} onInput={(event) => (password.value = event.currentTarget.value)} />}
        </Field>
        {problem.value && (
          <div class="callout bad" role="alert">
            {problem.value}
          </div>
        )}
        <button type="submit" class="button primary" disabled={busy.value}>
          {busy.value ? words.busy : words.submit}
        </button>
        <button type="button" class="button quiet small" onClick={() => chooseLang(lang.value === "zh" ? "en" : "zh")}>
          {lang.value === "zh" ? "English" : "中文"}
        </button>
      </form>
    </main>
  );
}
