// Requests to the REST API. An error is a value with the code and the sentence of the server; a lost session opens the
// login page; a server that is away is asked again by itself.
import { signal } from "@preact/signals";
import type { ErrorBody, Session } from "./types";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly field: string | null = null,
    readonly retryAfter = 0,
  ) {
    super(message);
  }
  /** The server has no such endpoint: an older version, or a part that is switched off. */
  get missing(): boolean {
    return this.status === 404 && (this.code === "NotFound" || this.code === "MonitorOff");
  }
  /** The server cannot be reached, or says that it is starting or stopping. */
  get away(): boolean {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

const V1 = "/api/v1";
const PATIENCE_MS = 30_000;

/** Null: not known yet. */
export const session = signal<Session | null>(null);
export const loginNeeded = signal(false);
/** Whether the last request reached the server. */
export const reachable = signal(true);
/** The address of the leader if this scheduler is a standby, empty if no scheduler leads; null: this one leads. */
export const standbyOf = signal<string | null>(null);

/** A scheduler of several says with each answer which role it has. */
function noteRole(answer: Response): void {
  const role = answer.headers.get("x-gpuyard-role");
  if (role) standbyOf.value = role === "standby" ? (answer.headers.get("x-gpuyard-leader") ?? "") : null;
}

async function errorOf(answer: Response): Promise<ApiError> {
  let body: ErrorBody | null = null;
  try {
    body = (await answer.json()) as ErrorBody;
  } catch {
    // not from our server, or cut off
  }
  const told = body?.error;
  const wait = Number(answer.headers.get("retry-after") ?? 0);
  return new ApiError(answer.status, told?.code ?? `Http${answer.status}`, told?.message ?? answer.statusText, told?.field ?? null, wait);
}

interface Ask {
  body?: unknown;
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

/** Send a request and return the response; failures are `ApiError`, and `AbortError` if the caller gave up. */
export async function send(method: string, path: string, { body, signal: stop, headers }: Ask = {}): Promise<Response> {
  const late = AbortSignal.timeout(PATIENCE_MS);
  let answer: Response;
  try {
    answer = await fetch(path.startsWith("/") ? path : `${V1}/${path}`, {
      method,
      credentials: "same-origin",
      cache: "no-store",
      headers: { ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: stop ? AbortSignal.any([stop, late]) : late,
      redirect: "manual", // to the leader: another origin, which this page may not ask
    });
  } catch (problem) {
    if (stop?.aborted) throw problem;
    reachable.value = false;
    throw new ApiError(0, "Unreachable", "The scheduler does not answer.");
  }
  reachable.value = true;
  if (answer.type === "opaqueredirect") throw new ApiError(307, "NotLeading", "This scheduler is a standby. Use the page of the one that leads.");
  noteRole(answer);
  if (answer.ok) return answer;
  const error = await errorOf(answer);
  if (error.status === 401 && error.code !== "WrongLogin") loginNeeded.value = true;
  throw error;
}

export async function get<T>(path: string, stop?: AbortSignal): Promise<T> {
  return (await (await send("GET", path, { signal: stop })).json()) as T;
}

export async function post<T>(path: string, body?: unknown, headers?: Record<string, string>): Promise<T> {
  return (await (await send("POST", path, { body: body ?? {}, headers })).json()) as T;
}

export async function put<T>(path: string, body: unknown): Promise<T> {
  return (await (await send("PUT", path, { body })).json()) as T;
}

export async function patch<T>(path: string, body: unknown): Promise<T> {
  return (await (await send("PATCH", path, { body })).json()) as T;
}

export async function remove<T>(path: string): Promise<T | null> {
  const text = await (await send("DELETE", path)).text();
  return text ? (JSON.parse(text) as T) : null;
}

/** Ask who we are. A server without sessions lets its owner in without a login. */
export async function askSession(): Promise<void> {
  try {
    const told = await get<Session>("session");
    session.value = told;
    loginNeeded.value = told.login_required && !told.username;
  } catch (problem) {
    if (problem instanceof ApiError && problem.missing) {
      session.value = { login_required: false, username: "", tenant_id: null, role: "admin", actions: [] };
      loginNeeded.value = false;
    } else if (!(problem instanceof ApiError && problem.away) && !loginNeeded.value) {
      throw problem;
    }
  }
}

/** Whether tasks, usage and history of one tenant only are shown. */
export function seesOneTenant(): boolean {
  const role = session.value?.role;
  return role === "member" || role === "viewer";
}

export function may(action: string): boolean {
  const told = session.value;
  return !told || told.actions.length === 0 || told.actions.includes(action);
}
