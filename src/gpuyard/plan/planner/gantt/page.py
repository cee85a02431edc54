"""Writes a chart as one self-contained HTML file: zoom with the wheel, drag, hover for details of a bar."""

from typing import Any, Final

import msgspec
import numpy as np

from gpuyard.plan.planner.gantt.bars import Bars, Chart, Panel
from gpuyard.plan.planner.gantt.colors import color

TICKS: Final = 1_000_000
"""Instants are written as integers in this fraction of the chart's width, to keep the file short."""
MOST_NAMED: Final = 40_000
"""With more calls than this, bars show how many they contain instead of which."""


def page(chart: Chart) -> str:
    """Return the HTML file."""
    said = msgspec.json.encode(_said(chart)).decode().replace("</", "<\\/")
    return _PAGE.replace("__SAID__", said)


def _said(chart: Chart) -> dict[str, Any]:
    problem = chart.problem
    named = len(problem.calls) <= MOST_NAMED
    return {
        "problem": problem.name,
        "preload": problem.preload,
        "until": chart.until,
        "bound": chart.lower_bound_s,
        "gpus": [f"{g.id} {g.type}".strip() for g in problem.gpus],
        "models": [{"name": m.name, "color": color(i)} for i, m in enumerate(problem.models)],
        "workflows": [w.nodes for w in problem.workflows] if named else [],
        "requests": problem.requests.ids if named else [],
        "workflow": problem.requests.workflow.tolist() if named else [],
        "first": problem.first_call.tolist() if named else [],
        "panels": [_panel(chart, panel) for panel in chart.panels],
    }


def _panel(chart: Chart, panel: Panel) -> dict[str, Any]:
    scale = TICKS / chart.until
    return {
        "title": chart.title(panel),
        "path": [[s.gpu, round(s.begin * scale), round(s.end * scale)] for s in panel.path],
        **_columns(panel.bars, scale),
    }


def _columns(bars: Bars, scale: float) -> dict[str, Any]:
    begin, end = np.rint(bars.begin * scale).astype(np.int64), np.rint(bars.end * scale).astype(np.int64)
    return {
        "gpu": bars.gpu.tolist(),
        "begin": begin.tolist(),
        "length": (end - begin).tolist(),
        "model": bars.model.tolist(),
        "switch": bars.switch.astype(np.int8).tolist(),
        "level": bars.level.tolist() if bars.level.any() else [],
        "calls": bars.calls.tolist(),
        "call": bars.first.tolist(),
    }


_PAGE: Final = r"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>gpuyard plan</title>
<style>
  body { font: 14px/1.4 system-ui, sans-serif; margin: 1.2em; color: #222; background: #fff; }
  h1 { font-size: 1.15em; margin: 0 0 .2em; }
  h2 { font-size: 1em; font-weight: 600; margin: .9em 0 .2em; }
  canvas { width: 100%; display: block; cursor: crosshair; border: 1px solid #ccc; }
  #names span { display: inline-block; margin: 0 1.1em .2em 0; white-space: nowrap; }
  #names i { display: inline-block; width: 1.1em; height: .8em; margin-right: .35em; border: 1px solid #999; }
  #what { position: fixed; pointer-events: none; background: #222; color: #fff; padding: .3em .6em; border-radius: 4px;
          font-size: 13px; white-space: pre; display: none; z-index: 9; }
  .quiet { color: #666; }
</style>
<h1></h1>
<p class="quiet">Wheel: zoom. Drag: move. Double click: everything. Point at a bar to see what it is.</p>
<div id="names"></div>
<div id="panels"></div>
<div id="what"></div>
<script id="said" type="application/json">__SAID__</script>
<script>
"use strict";
const said = JSON.parse(document.getElementById("said").textContent);
const TICKS = 1e6, AXIS = 22, ONE_SCREEN = 560, FONT = "11px system-ui, sans-serif", LONGEST = 24;
const gpus = said.gpus.map(name => name.length > LONGEST ? name.slice(0, LONGEST - 1) + "…" : name);
const LEFT = widest(gpus) + 12;   // the names of all GPUs end before the bars begin
const lanes = said.gpus.length, lane = Math.max(2, Math.min(20, Math.floor(ONE_SCREEN / lanes)));
const view = { from: 0, to: TICKS * 1.01 };
const what = document.getElementById("what");

function widest(names) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = FONT;
  return names.reduce((most, name) => Math.max(most, Math.ceil(pen.measureText(name).width)), 24);
}

const hatch = (() => {
  const tile = document.createElement("canvas"); tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.fillStyle = "#fff"; pen.fillRect(0, 0, 6, 6);
  pen.strokeStyle = "#666"; pen.beginPath();
  for (const x of [-3, 3, 9]) { pen.moveTo(x - 4, 7); pen.lineTo(x + 4, -1); }
  pen.stroke();
  return pen.createPattern(tile, "repeat");
})();

document.querySelector("h1").textContent = said.problem || "Plan";
function name_it(text, paint) {
  const span = document.createElement("span"), box = document.createElement("i");
  Object.assign(box.style, paint);
  span.append(box, text);
  document.getElementById("names").append(span);
}
for (const model of said.models) name_it(model.name, { background: model.color });
name_it("loading a model", { background: "repeating-linear-gradient(135deg, #fff 0 3px, #666 3px 4px)" });
name_it("idle", { background: "#f2f2f2" });
name_it("critical path", { height: "0", borderWidth: "2px 0 0", borderColor: "#000", verticalAlign: "middle" });
if (said.bound !== null) name_it("lower bound", { height: "0", borderWidth: "2px 0 0", borderStyle: "dashed", borderColor: "#c00000", verticalAlign: "middle" });

const seconds = ticks => ticks / TICKS * said.until;
const drawn = said.panels.map(panel => {
  const heading = document.createElement("h2"), canvas = document.createElement("canvas");
  heading.textContent = panel.title;
  document.getElementById("panels").append(heading, canvas);
  canvas.style.height = lanes * lane + AXIS + "px";
  const starts = new Array(lanes + 1).fill(panel.gpu.length);   // where each GPU's bars begin
  for (let i = panel.gpu.length - 1; i >= 0; i--) starts[panel.gpu[i]] = i;
  for (let g = lanes - 1; g >= 0; g--) starts[g] = Math.min(starts[g], starts[g + 1]);
  listen(canvas, panel, starts);
  return { canvas, panel };
});

function draw() {
  for (const { canvas, panel } of drawn) {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = lanes * lane;
    canvas.width = width * ratio; canvas.height = (height + AXIS) * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const scale = (width - LEFT) / (view.to - view.from), x = t => LEFT + (t - view.from) * scale;
    pen.fillStyle = "#f2f2f2"; pen.fillRect(LEFT, 0, width - LEFT, height);
    pen.save();
    pen.beginPath(); pen.rect(LEFT, 0, width - LEFT, height); pen.clip();
    bars(pen, panel, x, scale);
    route(pen, panel, x);
    if (said.bound !== null) {
      pen.strokeStyle = "#c00000"; pen.lineWidth = 1.5; pen.setLineDash([6, 4]); pen.beginPath();
      const at = x(said.bound / said.until * TICKS);
      pen.moveTo(at, 0); pen.lineTo(at, height); pen.stroke(); pen.setLineDash([]);
    }
    pen.restore();
    axis(pen, width, height, x);
  }
}

function bars(pen, panel, x, scale) {
  const gap = lane > 6 ? 1 : 0;
  for (let i = 0; i < panel.gpu.length; i++) {
    const begin = panel.begin[i], length = panel.length[i];
    if (begin > view.to || begin + length < view.from) continue;
    const left = x(begin), wide = length * scale;
    pen.globalAlpha = panel.level.length && !panel.switch[i] ? Math.pow(0.6, panel.level[i]) : 1;
    pen.fillStyle = panel.switch[i] ? hatch : said.models[panel.model[i]].color;
    const beside = said.preload && panel.switch[i] ? (lane - 2 * gap) * 2 / 3 : 0;   // a load may run beside calls: the lower third
    pen.fillRect(left, panel.gpu[i] * lane + gap + beside, Math.max(wide > 3 && !panel.switch[i] ? wide - 0.6 : wide, 0.4), lane - 2 * gap - beside);
  }
  pen.globalAlpha = 1;
}

function route(pen, panel, x) {
  pen.strokeStyle = "#000"; pen.lineWidth = lane > 6 ? 1.6 : 1; pen.lineJoin = "round"; pen.beginPath();
  panel.path.forEach(([gpu, begin, end], i) => {
    const y = gpu * lane + lane / 2;
    if (i) pen.lineTo(x(begin), y); else pen.moveTo(x(begin), y);
    pen.lineTo(x(end), y);
  });
  pen.stroke();
}

function axis(pen, width, height, x) {
  pen.fillStyle = "#444"; pen.font = FONT; pen.textAlign = "right"; pen.textBaseline = "middle";
  const every = Math.ceil(13 / lane);
  for (let g = 0; g < lanes; g += every) pen.fillText(gpus[g], LEFT - 6, g * lane + lane / 2);
  const span = seconds(view.to - view.from), rough = span / Math.max(2, width / 110);
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough);
  pen.textAlign = "center"; pen.strokeStyle = "#0002"; pen.lineWidth = 1;
  for (let t = Math.ceil(seconds(view.from) / step) * step; t <= seconds(view.to); t += step) {
    const at = x(t / said.until * TICKS);
    if (at < LEFT) continue;
    pen.beginPath(); pen.moveTo(at, 0); pen.lineTo(at, height + 4); pen.stroke();
    const words = step < 1 ? t.toFixed(Math.ceil(-Math.log10(step))) + " s" : t.toLocaleString("en") + " s";
    pen.fillText(words, Math.min(at, width - pen.measureText(words).width / 2 - 2), height + 13);
  }
}

function call_name(call) {
  let low = 0, high = said.requests.length;
  while (high - low > 1) { const middle = (low + high) >> 1; if (said.first[middle] <= call) low = middle; else high = middle; }
  return said.requests[low] + " / " + said.workflows[said.workflow[low]][call - said.first[low]];
}

function tell(panel, i) {
  const from = seconds(panel.begin[i]), to = seconds(panel.begin[i] + panel.length[i]);
  const times = `${from.toFixed(2)} s to ${to.toFixed(2)} s (${(to - from).toFixed(2)} s)`;
  const model = said.models[panel.model[i]].name, gpu = "GPU " + said.gpus[panel.gpu[i]];
  if (panel.switch[i]) return `${gpu} loads ${model}\n${times}`;
  const level = panel.level.length && panel.level[i] ? `, power level ${panel.level[i]}` : "";
  const which = panel.calls[i] > 1 ? `${panel.calls[i]} calls` : said.requests.length ? call_name(panel.call[i]) : "1 call";
  return `${which}\n${model} on ${gpu}${level}\n${times}`;
}

function listen(canvas, panel, starts) {
  const tick = event => view.from + (event.offsetX - LEFT) / (canvas.clientWidth - LEFT) * (view.to - view.from);
  let held = null;
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const at = tick(event), factor = Math.pow(1.0015, event.deltaY);
    const span = Math.min(TICKS * 1.01, Math.max(20, (view.to - view.from) * factor));
    const part = (at - view.from) / (view.to - view.from);
    look(at - part * span, span);
  }, { passive: false });
  canvas.addEventListener("mousedown", event => { held = { x: event.offsetX, from: view.from }; });
  window.addEventListener("mouseup", () => { held = null; });
  canvas.addEventListener("dblclick", () => look(0, TICKS * 1.01));
  canvas.addEventListener("mouseleave", () => { what.style.display = "none"; });
  canvas.addEventListener("mousemove", event => {
    const span = view.to - view.from;
    if (held) return look(held.from - (event.offsetX - held.x) / (canvas.clientWidth - LEFT) * span, span);
    const gpu = Math.floor(event.offsetY / lane), at = tick(event);
    let found = -1;
    for (let i = starts[gpu]; gpu >= 0 && gpu < lanes && i < starts[gpu + 1]; i++)
      if (panel.begin[i] <= at && at <= panel.begin[i] + panel.length[i]) found = i;
    what.style.display = found < 0 || event.offsetX < LEFT ? "none" : "block";
    if (found < 0) return;
    what.textContent = tell(panel, found);
    what.style.left = Math.min(event.clientX + 14, window.innerWidth - what.offsetWidth - 8) + "px";
    what.style.top = event.clientY + 14 + "px";
  });
}

function look(from, span) {
  view.from = Math.max(0, Math.min(from, TICKS * 1.01 - span));
  view.to = view.from + span;
  requestAnimationFrame(draw);
}

window.addEventListener("resize", draw);
draw();
</script>
</html>
"""
