// The answers of the REST API that the page reads; the server describes them fully at /openapi.json.

export interface ErrorBody {
  error: { code: string; message: string; field: string | null };
}

export interface Session {
  login_required: boolean;
  username: string | null;
  tenant_id: string | null;
  role: string | null;
  via?: "token" | "login" | "session" | "local" | null;
  actions: string[];
}

export type Status = "pending" | "running" | "suspended" | "success" | "failed" | "cancelled" | "timeout";
export const ENDED: readonly Status[] = ["success", "failed", "cancelled", "timeout"];
export const STATUSES: readonly Status[] = ["pending", "running", "suspended", ...ENDED];

export interface StartBand {
  earliest: string | null;
  likely: string | null;
  latest: string | null;
}

export interface TaskRow {
  id: string;
  name: string;
  status: Status;
  tenant_id: string;
  user: string;
  project: string;
  class: "online" | "batch";
  priority: string | number;
  gpu_count: number;
  gpu_model: string | string[] | null;
  node_id: string | null;
  created_at: string;
  started_at: string | null;
  finished_at: string | null;
  exit_code: number | null;
  reason: string | null;
  reason_code?: string | null;
  expected_start?: string | StartBand | null;
}

export interface Forecast {
  gpu_model: string;
  seconds: number;
  low_seconds: number;
  high_seconds: number;
  memory_mib: number | null;
  utilization: number | null;
}

export interface Task extends TaskRow {
  command: string | string[] | null;
  signal: number | null;
  attempts: number;
  allocated_gpus: string[];
  node_ids: string[];
  reason_code: string | null;
  description: string;
  created_by: string;
  env: Record<string, string>;
  secrets: string[];
  work_dir: string | null;
  labels: Record<string, string>;
  gpu_memory_mb: number | null;
  gpu_fraction: number | null;
  cpu_count: number;
  memory_mb: number;
  nodes: number;
  retries: number;
  timeout: number | null;
  grace: number | null;
  depends_on: string[];
  after_any: string[];
  array_index: number | null;
  preemption: string;
  on_lost: string;
  estimated_seconds: number | null;
  estimated_low_seconds: number | null;
  estimated_high_seconds: number | null;
  predicted_from: number | null;
  model: string | null;
  run_seconds: number | null;
  running_since?: string | null;
  ran_before_seconds?: number | null;
  gpu_memory_peak_mib: number | null;
  gpu_utilization: number | null;
  ran_on: string | null;
  forecasts: Forecast[];
  request_id: string | null;
}

export interface TaskPage {
  tasks: TaskRow[];
  total: number;
  next_cursor: string | null;
}

export interface Explain {
  task_id: string;
  status: Status;
  reason: string | null;
  reason_code: string | null;
  ahead: number;
  more_ahead: boolean;
  starts_at: string | null;
  starts_low: string | null;
  starts_high: string | null;
  guessed: boolean;
  nodes: string[];
  estimated_seconds: number | null;
}

export interface StoryEvent {
  at: string;
  event: string;
  text: string;
  cause: string | null;
  cause_code?: string | null;
  attempt: number | null;
  node_id: string | null;
  by?: string;
  data?: Record<string, unknown>;
}

export interface Gpu {
  id: string;
  node_id: string;
  device_index: number;
  model: string;
  memory: number;
  status: GpuState;
  current_task: string | null;
  tasks: string[];
  uuid: string | null;
  virtual: boolean;
  why: string | null;
  utilization: number | null;
  memory_used: number | null;
  temperature: number | null;
  power_usage: number | null;
}

export type GpuState = "idle" | "busy" | "external" | "offline";
export const GPU_STATES: readonly GpuState[] = ["idle", "busy", "external", "offline"];

export interface GpuList {
  total: number;
  idle: number;
  busy: number;
  external: number;
  offline: number;
  gpus: Gpu[];
}

export interface Node {
  id: string;
  status: "online" | "away" | "offline" | "cordoned" | "draining";
  gpus: number;
  gpus_idle: number;
  gpu_models: Record<string, number>;
  cpus: number;
  memory_mb: number;
  labels: Record<string, string>;
  tasks: string[];
  last_seen: string | null;
  version: string | null;
  address: string | null;
  cpu_percent: number | null;
  memory_used_mb: number | null;
  load: number | null;
  disk_free_mb: number | null;
  devices: Gpu[];
}

export interface Quota {
  total_gpus: number;
  online: { quota: number; used: number; available: number };
  batch: { quota: number; used: number; available: number };
  online_percent: number;
  batch_percent: number;
  mode: string;
}

export interface Counts {
  gpus: { total: number; idle: number; busy: number; external: number; offline: number };
  tasks: { pending: number; running: number; suspended: number };
  nodes: { total: number; online: number; away?: number; offline: number };
  alerts?: { firing: number; pending: number } | null;
}

export interface Overview extends Counts {
  now: string;
  can_plan: boolean;
  version: string;
  started_at: string;
  classes: { class: string; running: number; pending: number; gpus: number }[];
  tenants: { tenant_id: string; running: number; pending: number; gpus: number }[];
  quota: Quota | null;
  longest_wait_seconds: number | null;
  expected_wait_seconds: number | null;
  changes: { at: string; event: string; task_id: string | null; node_id: string | null; text: string }[];
}

export interface History {
  from: number;
  to: number;
  step: number;
  times: number[];
  series: Record<string, (number | null)[]>;
}

export interface Card {
  gpu_id: string;
  node_id: string;
  device_index: number;
  model: string;
  memory_mb: number;
}

export interface Snapshot extends Counts {
  at: number | string;
  build: string;
  generation: number;
  cards: Card[];
  samples: string;
  holders: (string | null)[];
  changed_tasks?: string[];
  changed_more?: boolean;
}

export interface Tenant {
  id: string;
  max_gpus: number | null;
  max_gpus_by_model: Record<string, number>;
  guaranteed_gpus: number | null;
  max_open_tasks: number | null;
  weight: number;
  gpu_hours: number | null;
  gpu_hours_period: number | null;
  used_gpus: number;
  pending_tasks: number;
  running_tasks: number;
}

export interface User {
  username: string;
  tenant_id: string;
  role: string;
  system_user: string;
  disabled?: boolean;
}

export interface Token {
  id: string;
  name: string;
  username: string;
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
}

export interface Alert {
  id: string;
  rule: string;
  severity: string;
  state: "pending" | "firing" | "resolved" | "no_data";
  labels: Record<string, string>;
  summary: string;
  value: number | null;
  since: string | null;
  fired_at: string | null;
  resolved_at: string | null;
  silenced_by: string | null;
}

export interface Silence {
  id: string;
  matchers: Record<string, string>;
  until: string;
  comment: string;
  created_by?: string;
}

export interface UsageRow {
  [key: string]: string | number | null;
}

export interface Lane {
  gpu_id: string;
  node_id: string;
  device_index: number;
  bars: LaneBar[];
}

export interface LaneBar {
  start: number;
  end: number | null;
  task_id: string | null;
  name?: string;
  tenant_id?: string;
  status?: Status;
  share?: number | null;
  count?: number;
}

export interface Timeline {
  from: number;
  to: number;
  lanes: Lane[];
  merged: number;
}
