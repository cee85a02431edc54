// What a viewer chose: language and theme. Browser storage may be forbidden; then a choice lasts as long as the tab.
import { effect, signal } from "@preact/signals";

export type Lang = "en" | "zh";
export type Theme = "light" | "dark" | "auto";

function kept(name: string): string | null {
  try {
    return localStorage.getItem(`gpuyard.${name}`);
  } catch {
    return null;
  }
}

function keep(name: string, value: string): void {
  try {
    localStorage.setItem(`gpuyard.${name}`, value);
  } catch {
    // not kept
  }
}

const MOST_NOTES = 50;

function notes(): [string, string][] {
  try {
    return JSON.parse(kept("notes") ?? "[]") as [string, string][];
  } catch {
    return [];
  }
}

/** A short text that this browser keeps about something of the server, such as what a computation compares; null if it has none. */
export function recall(name: string): string | null {
  return notes().find(([one]) => one === name)?.[1] ?? null;
}

export function remember(name: string, text: string): void {
  keep("notes", JSON.stringify([[name, text], ...notes().filter(([one]) => one !== name)].slice(0, MOST_NOTES)));
}

const preferred = navigator.languages?.some((one) => one.toLowerCase().startsWith("zh")) ? "zh" : "en";
const storedLang = kept("lang");
const storedTheme = kept("theme");

export const lang = signal<Lang>(storedLang === "zh" || storedLang === "en" ? storedLang : preferred);
export const theme = signal<Theme>(storedTheme === "light" || storedTheme === "dark" ? storedTheme : "auto");

const system = matchMedia("(prefers-color-scheme: dark)");
export const dark = signal(false);
const applyTheme = (): void => {
  dark.value = theme.value === "dark" || (theme.value === "auto" && system.matches);
  document.documentElement.dataset.theme = dark.value ? "dark" : "light";
};
system.addEventListener("change", applyTheme);
effect(applyTheme);
effect(() => {
  document.documentElement.lang = lang.value === "zh" ? "zh-CN" : "en";
});

export function chooseLang(value: Lang): void {
  lang.value = value;
  keep("lang", value);
}

export function chooseTheme(value: Theme): void {
  theme.value = value;
  keep("theme", value);
}
