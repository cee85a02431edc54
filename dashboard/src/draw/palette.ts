// Colors of drawings. Canvas cannot read CSS variables, so they are read once per theme.
import { computed } from "@preact/signals";
import { dark } from "../core/settings";
import type { GpuState } from "../core/types";

export interface Palette {
  text: string;
  faint: string;
  line: string;
  surface: string;
  accent: string;
  blue: string;
  amber: string;
  red: string;
  focus: string;
  state: Record<GpuState, string>;
  onState: Record<GpuState, string>;
  unknown: string;
}

export const palette = computed<Palette>(() => {
  const isDark = dark.value; // read first: the variables change with it
  const style = getComputedStyle(document.documentElement);
  const of = (name: string): string => style.getPropertyValue(name).trim();
  return {
    text: of("--text"),
    faint: of("--text-3"),
    line: of("--line"),
    surface: of("--surface"),
    accent: of("--accent"),
    blue: of("--blue"),
    amber: of("--amber"),
    red: of("--red"),
    focus: of("--focus"),
    state: isDark
      ? { idle: "#26303a", busy: "#23745f", external: "#8a5c0c", offline: "#7e2a30" }
      : { idle: "#dbe1e8", busy: "#1f7f69", external: "#e8b04a", offline: "#d9888d" },
    onState: isDark
      ? { idle: "#a9b4c0", busy: "#f2fffb", external: "#fff6e3", offline: "#ffdfe1" }
      : { idle: "#4a5361", busy: "#ffffff", external: "#3d2800", offline: "#4c0b10" },
    unknown: isDark ? "#1b2129" : "#eceff3",
  };
});

/** A ramp that stays readable for every kind of color vision: dark blue over green to yellow (viridis). */
const STOPS: [number, number, number][] = [
  [68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37],
];

function rampColor(part: number): [number, number, number] {
  const at = Math.max(0, Math.min(1, part)) * (STOPS.length - 1);
  const low = STOPS[Math.floor(at)]!;
  const high = STOPS[Math.min(STOPS.length - 1, Math.floor(at) + 1)]!;
  const rest = at - Math.floor(at);
  return [0, 1, 2].map((i) => Math.round(low[i]! + (high[i]! - low[i]!) * rest)) as [number, number, number];
}

/** 101 colors and the color of text on each, looked up instead of computed. */
export const RAMP: string[] = [];
export const ON_RAMP: string[] = [];
for (let i = 0; i <= 100; i++) {
  const [r, g, b] = rampColor(i / 100);
  RAMP.push(`rgb(${r} ${g} ${b})`);
  ON_RAMP.push(0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10151b" : "#ffffff");
}
export const RAMP_CSS = `linear-gradient(90deg, ${[0, 25, 50, 75, 100].map((i) => RAMP[i]).join(", ")})`;

/** Colors of bars with white text on them: tenants, models. Red means failed and is not among them. */
const CATEGORIES = ["#1f7f69", "#3b67bf", "#a8620f", "#8a4cae", "#3d7a82", "#6e6b1f", "#5f54b8", "#a24f7d", "#3b7d37", "#735637"];

export function categoryColor(name: string): string {
  let hash = 0;
  for (let i = 0; i < name.length; i++) hash = (hash * 31 + name.charCodeAt(i)) | 0;
  return CATEGORIES[Math.abs(hash) % CATEGORIES.length]!;
}

/** Colors of lines, visible in both themes. */
export const SERIES = ["#2f9d83", "#4f7fd9", "#d98a2b", "#a766c9", "#5aa0a8", "#8d8a2e", "#7a6fd0", "#c06a9a", "#4f9c4a", "#8a6d4b"];
