// Line icons of 24 units, drawn with the color of the text.
const PATHS = {
  overview: "M4 13h6V4H4zM14 20h6V4h-6zM4 20h6v-4H4z",
  gpus: "M4 7h16v10H4zM8 10h3v4H8zM14 10h3v4h-3zM7 17v3M12 17v3M17 17v3M7 4v3M12 4v3M17 4v3",
  tasks: "M4 6h16M4 12h16M4 18h10",
  timeline: "M4 6h8M9 12h10M6 18h7M4 3v18",
  plans: "M5 5h6v5H5zM13 14h6v5h-6zM8 10v6h5",
  policies: "M5 4v16M12 4v16M19 4v16M3 9h4M10 15h4M17 7h4",
  usage: "M5 20V11M12 20V4M19 20v-6M3 20h18",
  alerts: "M12 4a5 5 0 0 1 5 5v4l2 3H5l2-3V9a5 5 0 0 1 5-5zM10 19h4",
  nodes: "M4 5h16v5H4zM4 14h16v5H4zM8 7.5h.01M8 16.5h.01",
  tenants: "M4 20v-2a4 4 0 0 1 4-4h3a4 4 0 0 1 4 4v2M9.5 4a3.5 3.5 0 1 1 0 7 3.5 3.5 0 0 1 0-7M16 5a3 3 0 0 1 0 6M18 14a4 4 0 0 1 3 4v2",
  access: "M14 10a4 4 0 1 0-4 4M12.5 12.5 20 20M17 17l2-2M14.5 14.5l1.5-1.5",
  predictions: "M4 19 10 12l4 3 6-9M20 10V6h-4",
  search: "M10.5 4a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13M15.5 15.5 20 20",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6 6 18",
  plus: "M12 5v14M5 12h14",
  back: "M14 6l-6 6 6 6",
  next: "M10 6l6 6-6 6",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5",
  user: "M12 4a4 4 0 1 1 0 8 4 4 0 0 1 0-8M5 20a7 7 0 0 1 14 0",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  up: "M12 19V6M6 11l6-6 6 6",
  down: "M12 5v13M6 13l6 6 6-6",
  play: "M8 5l11 7-11 7z",
  pause: "M8 5v14M16 5v14",
  stop: "M6 6h12v12H6z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  clock: "M12 4a8 8 0 1 1 0 16 8 8 0 0 1 0-16M12 8v4l3 2",
  refresh: "M20 11a8 8 0 1 0-2 6M20 5v6h-6",
  empty: "M4 13l3-8h10l3 8v6H4zM4 13h5l1 3h4l1-3h5",
  warning: "M12 4 21 20H3zM12 10v4M12 17h.01",
  check: "M5 13l4 4L19 7",
  flag: "M6 21V4M6 5h11l-2 4 2 4H6",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Logo() {
  return (
    <svg viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="#0d7f68" />
      <rect x="7" y="7" width="8" height="8" rx="2" fill="#fff" />
      <rect x="17" y="7" width="8" height="8" rx="2" fill="#fff" fill-opacity=".55" />
      <rect x="7" y="17" width="8" height="8" rx="2" fill="#fff" fill-opacity=".55" />
      <rect x="17" y="17" width="8" height="8" rx="2" fill="#fff" />
    </svg>
  );
}
