import { useSignal } from "@preact/signals";
import { ApiError, askSession, may, patch, post, remove, session } from "../core/api";
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
  const dialog = useSignal<"user" | "token" | { password: string } | { changed: User } | null>(null);
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
                              <button type="button" class="button small" onClick={() => (dialog.value = { changed: one })}>{words.change}</button>
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
      {dialog.value && typeof dialog.value === "object" && "changed" in dialog.value && <ChangeDialog user={dialog.value.changed} close={close} again={users.refresh} />}
      {dialog.value && typeof dialog.value === "object" && "password" in dialog.value && <PasswordDialog username={dialog.value.password} close={close} />}
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
    post("users", { ...rest, role: role.value, ...(system_user ? { system_user } : {}) }).then(() => { notify(words.added(form.value.username)); close(); again(); }).catch((error: ApiError) => (problem.value = error));
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

/** Role, tenant, system account, and whether the user may log in. */
function ChangeDialog({ user, close, again }: { user: User; close: () => void; again: () => void }) {
  const words = t.value.access;
  const role = useSignal(user.role);
  const form = useSignal({ tenant_id: user.tenant_id, system_user: user.system_user });
  const disabled = useSignal(user.disabled ?? false);
  const problem = useSignal<ApiError | null>(null);
  const fields = ["tenant_id", "system_user"] as const;
  const labels = { tenant_id: words.tenant, system_user: words.systemUser };
  const save = (): void => {
    const before: Record<string, unknown> = { role: user.role, tenant_id: user.tenant_id, system_user: user.system_user, disabled: user.disabled ?? false };
    const after: Record<string, unknown> = { role: role.value, tenant_id: form.value.tenant_id.trim(), system_user: form.value.system_user.trim(), disabled: disabled.value };
    const change = Object.fromEntries(Object.entries(after).filter(([name, value]) => value !== before[name]));
    if (Object.keys(change).length === 0) return close();
    patch(`users/${encodeURIComponent(user.username)}`, change).then(() => { notify(words.userChanged(user.username)); close(); again(); }).catch((error: ApiError) => (problem.value = error));
  };
  return (
    <Dialog title={`${words.change} · ${user.username}`} onClose={close} onSubmit={save}>
      <Field label={words.role} wrong={wrongOf(problem.value, "role")}>
        {(ids) => (
          <select {...ids} value={role.value} onChange={(event) => (role.value = event.currentTarget.value)}>
            {ROLES.map((one) => <option key={one} value={one}>{roleWord(one)}</option>)}
          </select>
        )}
      </Field>
      {fields.map((name) => (
        <Field key={name} label={labels[name]} wrong={wrongOf(problem.value, name)}>
          {(ids) => <input {...ids} autocomplete="off" value={form.value[name]} onInput={(event) => (form.value = { ...form.value, [name]: event.currentTarget.value })} />}
        </Field>
      ))}
      <label class="check">
        <input type="checkbox" checked={disabled.value} onChange={(event) => (disabled.value = event.currentTarget.checked)} />
        <span>{words.disable}</span>
      </label>
      <Rest problem={problem.value} fields={["role", ...fields]} />
    </Dialog>
  );
}

function PasswordDialog({ username, close }: { username: string; close: () => void }) {
  const words = t.value.access;
  const password = useSignal("");
  const present = useSignal("");
  const problem = useSignal<ApiError | null>(null);
  const own = username === session.value?.username;
  const save = async (): Promise<void> => {
    try {
      await patch(`users/${encodeURIComponent(username)}`, { password: password.value, ...(own ? { old_password: present.value } : {}) });
      notify(own ? words.ownChanged : words.changed);
      close();
      if (own) await askSession(); // logins with the old password have ended
    } catch (error) {
      problem.value = error as ApiError;
    }
  };
  return (
    <Dialog title={`${words.changePassword} · ${username}`} onClose={close} busy={!password.value || (own && !present.value)} onSubmit={() => void save()}>
      {own && (
        <Field label={words.presentPassword} wrong={problem.value?.code === "WrongLogin" ? words.wrongPassword : wrongOf(problem.value, "old_password")}>
          {(ids) => <input {...ids} type="password" autocomplete="current-password" value={present.value} onInput={(event) => (present.value = event.currentTarget.value)} />}
        </Field>
      )}
      <Field label={own ? words.newPassword : words.password} wrong={wrongOf(problem.value, "password")}>
        {(ids) => <input {...ids} type="password" autocomplete="new-password" value={password.value} onInput={(event) => (password.value = event.currentTarget.value)} />}
      </Field>
      {problem.value?.code !== "WrongLogin" && <Rest problem={problem.value} fields={["password", "old_password"]} />}
    </Dialog>
  );
}

function TokenDialog({ close, again }: { close: () => void; again: () => void }) {
  const words = t.value.access;
  const name = useSignal("");
  // without a login there is no user whom the token could belong to, and with one the password is needed to outlive it
  const local = session.value?.via === "local" || !session.value?.username;
  const days = useSignal(local ? "30" : "");
  const username = useSignal("");
  const password = useSignal("");
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
    post<{ token: string }>("tokens", { name: name.value, ...(local ? { username: username.value.trim() } : {}), ...(password.value ? { password: password.value } : {}), ...(days.value.trim() ? { lifetime: Number(days.value) * 86_400 } : {}) })
      .then((told) => { made.value = told.token; again(); })
      .catch((error: ApiError) => (problem.value = error));
  };
  const wrongDays = days.value.trim() !== "" && !(Number(days.value) > 0);
  return (
    <Dialog title={words.newToken} onClose={close} onSubmit={save} send={words.create} busy={wrongDays || (local && !username.value.trim())}>
      {local && <Field label={words.username} wrong={wrongOf(problem.value, "username")}>{(ids) => <input {...ids} autocomplete="off" value={username.value} onInput={(event) => (username.value = event.currentTarget.value)} />}</Field>}
      <Field label={words.tokenName} wrong={wrongOf(problem.value, "name")}>{(ids) => <input {...ids} value={name.value} onInput={(event) => (name.value = event.currentTarget.value)} />}</Field>
      <Field label={words.lifetime} hint={local ? words.lifetimeLocal : words.lifetimeHint} wrong={wrongDays ? words.wrongDays : wrongOf(problem.value, "lifetime")}>{(ids) => <input {...ids} inputMode="decimal" value={days.value} onInput={(event) => (days.value = event.currentTarget.value)} />}</Field>
      {!local && (
        <Field label={words.ownPassword} hint={words.ownPasswordHint} wrong={problem.value?.code === "WrongLogin" ? words.wrongPassword : wrongOf(problem.value, "password")}>
          {(ids) => <input {...ids} type="password" autocomplete="current-password" value={password.value} onInput={(event) => (password.value = event.currentTarget.value)} />}
        </Field>
      )}
      {problem.value?.code !== "WrongLogin" && <Rest problem={problem.value} fields={["name", "lifetime", "username", "password"]} />}
    </Dialog>
  );
}
