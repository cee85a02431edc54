import { useSignal } from "@preact/signals";
import { ApiError, may, patch, post, remove, session } from "../core/api";
import { ago, exact } from "../core/format";
import { useResource } from "../core/resource";
import type { Token, User } from "../core/types";
import { said, t } from "../i18n";
import { confirmThen, copyText, Dialog, Empty, Field, notify, PageHead, Panel, Select, Shown } from "../ui/kit";

const ROLES = ["admin", "operator", "member", "viewer"] as const;
const roleWord = (role: string): string => (ROLES.includes(role as (typeof ROLES)[number]) ? t.value.access[role as (typeof ROLES)[number]] : role);

export function AccessPage() {
  const words = t.value.access;
  const users = useResource<{ users: User[] }>(may("all_access") ? "users" : null);
  const tokens = useResource<{ tokens: Token[] }>("tokens");
  const dialog = useSignal<"user" | "token" | { password: string } | null>(null);
  const close = (): void => void (dialog.value = null);
  const own = session.value?.username;
  return (
    <>
      <PageHead title={words.title}>
        {own && session.value?.via === "session" && <button type="button" class="button" onClick={() => (dialog.value = { password: own })}>{words.changePassword}</button>}
      </PageHead>
      {may("all_access") && (
        <Panel title={words.users} flush tools={<button type="button" class="button small" onClick={() => (dialog.value = "user")}>{words.add}</button>}>
          <Shown of={users}>
            {(told) =>
              told.users.length === 0 ? (
                <Empty icon="access" title={words.noUsers} />
              ) : (
                <div class="scroll">
                  <table>
                    <thead><tr><th>{words.username}</th><th>{words.role}</th><th>{words.tenant}</th><th>{words.systemUser}</th><th>{t.value.common.actions}</th></tr></thead>
                    <tbody>
                      {told.users.map((one) => (
                        <tr key={one.username}>
                          <td>{one.username} {one.disabled && <span class="badge">{words.disabled}</span>}</td>
                          <td>{roleWord(one.role)}</td>
                          <td>{one.tenant_id || "–"}</td>
                          <td>{one.system_user || "–"}</td>
                          <td>
                            <span class="row">
                              <button type="button" class="button small" onClick={() => (dialog.value = { password: one.username })}>{words.changePassword}</button>
                              <button type="button" class="button small danger" onClick={() => confirmThen({ title: t.value.common.remove, text: words.removeUser(one.username), send: t.value.common.remove, danger: true, act: async () => { await remove(`users/${encodeURIComponent(one.username)}`); users.refresh(); tokens.refresh(); } })}>{t.value.common.remove}</button>
                            </span>
                          </td>
                        </tr>
                      ))}
                    </tbody>
                  </table>
                </div>
              )
            }
          </Shown>
        </Panel>
      )}
      <Panel title={words.tokens} flush tools={<button type="button" class="button small" onClick={() => (dialog.value = "token")}>{words.newToken}</button>}>
        <Shown of={tokens}>
          {(told) =>
            told.tokens.length === 0 ? (
              <p class="note-line">{words.noTokens}</p>
            ) : (
              <div class="scroll">
                <table>
                  <thead><tr><th>{words.tokenName}</th><th>{words.username}</th><th>{words.created}</th><th>{words.expires}</th><th>{words.used}</th><th>{t.value.common.actions}</th></tr></thead>
                  <tbody>
                    {told.tokens.map((one) => (
                      <tr key={one.id}>
                        <td>{one.name || <span class="mono">{one.id}</span>}</td>
                        <td>{one.username}</td>
                        <td>{exact(one.created_at)}</td>
                        <td>{one.expires_at ? exact(one.expires_at) : words.never}</td>
                        <td>{one.last_used_at ? ago(one.last_used_at) : words.never}</td>
                        <td><button type="button" class="button small danger" onClick={() => confirmThen({ title: words.revoke, text: words.revokeSure, send: words.revoke, danger: true, act: async () => { await remove(`tokens/${encodeURIComponent(one.id)}`); tokens.refresh(); } })}>{words.revoke}</button></td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            )
          }
        </Shown>
      </Panel>
      {dialog.value === "user" && <UserDialog close={close} again={users.refresh} />}
      {dialog.value === "token" && <TokenDialog close={close} again={tokens.refresh} />}
      {dialog.value && typeof dialog.value === "object" && <PasswordDialog username={dialog.value.password} close={close} />}
    </>
  );
}

function wrongOf(problem: ApiError | null, field: string): string | null {
  return problem && problem.field === field ? said(problem.code, problem.message) : null;
}

function Rest({ problem, fields }: { problem: ApiError | null; fields: string[] }) {
  if (!problem || (problem.field && fields.includes(problem.field))) return null;
  return <div class="callout bad" role="alert">{said(problem.code, problem.message)}</div>;
}

function UserDialog({ close, again }: { close: () => void; again: () => void }) {
  const words = t.value.access;
  const form = useSignal({ username: "", password: "", tenant_id: "default", system_user: "" });
  const role = useSignal<(typeof ROLES)[number]>("member");
  const problem = useSignal<ApiError | null>(null);
  const fields = ["username", "password", "tenant_id", "system_user"] as const;
  const labels = { username: words.username, password: words.password, tenant_id: words.tenant, system_user: words.systemUser };
  const save = (): void => {
    const { system_user, ...rest } = form.value;
    post("users", { ...rest, role: role.value, ...(system_user ? { system_user } : {}) }).then(() => { notify(t.value.task.done); close(); again(); }).catch((error: ApiError) => (problem.value = error));
  };
  return (
    <Dialog title={words.add} onClose={close} onSubmit={save} busy={!form.value.username || !form.value.password}>
      {fields.map((name) => (
        <Field key={name} label={labels[name]} wrong={wrongOf(problem.value, name)}>
          {(ids) => <input {...ids} type={name === "password" ? "password" : "text"} autocomplete={name === "password" ? "new-password" : "off"} value={form.value[name]} onInput={(event) => (form.value = { ...form.value, [name]: event.currentTarget.value })} />}
        </Field>
      ))}
      <div class="field"><span class="label">{words.role}</span><Select label={words.role} value={role.value} onChange={(value) => (role.value = value)} options={ROLES.map((value) => ({ value, label: roleWord(value) }))} /></div>
      <Rest problem={problem.value} fields={[...fields]} />
    </Dialog>
  );
}

function PasswordDialog({ username, close }: { username: string; close: () => void }) {
  const words = t.value.access;
  const password = useSignal("");
  const problem = useSignal<ApiError | null>(null);
  return (
    <Dialog title={`${words.changePassword} · ${username}`} onClose={close} busy={!password.value}
      onSubmit={() => void patch(`users/${encodeURIComponent(username)}`, { password: password.value }).then(() => { notify(words.changed); close(); }).catch((error: ApiError) => (problem.value = error))}>
      <Field label={words.password} wrong={problem.value ? said(problem.value.code, problem.value.message) : null}>
        {(ids) => <input {...ids} type="password" autocomplete="new-password" value={password.value} onInput={(event) => (password.value = event.currentTarget.value)} />}
      </Field>
    </Dialog>
  );
}

function TokenDialog({ close, again }: { close: () => void; again: () => void }) {
  const words = t.value.access;
  const name = useSignal("");
  const days = useSignal("30");
  const made = useSignal<string | null>(null);
  const problem = useSignal<ApiError | null>(null);
  if (made.value)
    return (
      <Dialog title={words.newToken} onClose={close}>
        <p>{words.once}</p>
        <pre class="block" tabIndex={0}>{made.value}</pre>
        <button type="button" class="button" onClick={() => void copyText(made.value!)}>{t.value.common.copy}</button>
      </Dialog>
    );
  const save = (): void => {
    post<{ token: string }>("tokens", { name: name.value, ...(days.value.trim() ? { lifetime: Number(days.value) * 86_400 } : {}) })
      .then((told) => { made.value = told.token; again(); })
      .catch((error: ApiError) => (problem.value = error));
  };
  return (
    <Dialog title={words.newToken} onClose={close} onSubmit={save} busy={Number.isNaN(Number(days.value))}>
      <Field label={words.tokenName} wrong={wrongOf(problem.value, "name")}>{(ids) => <input {...ids} value={name.value} onInput={(event) => (name.value = event.currentTarget.value)} />}</Field>
      <Field label={words.lifetime} wrong={wrongOf(problem.value, "lifetime")}>{(ids) => <input {...ids} inputMode="decimal" value={days.value} onInput={(event) => (days.value = event.currentTarget.value)} />}</Field>
      <Rest problem={problem.value} fields={["name", "lifetime"]} />
    </Dialog>
  );
}
