// Runs a page with a DOM just large enough for it: zooms in, points everywhere, and says what was drawn and told.
const html = require("fs").readFileSync(0, "utf8");
const text = pattern => html.match(pattern)[1];
const counts = {};
const outside = [];
const wide = words => 7 * words.length;
function within(words, x) {
  const left = x - wide(words) / (pen.textAlign === "right" ? 1 : 2);
  if (left < 0 || left + wide(words) > 1000) outside.push(words);
}
const pen = new Proxy({ measureText: words => ({ width: wide(words) }), fillText: within }, {
  get: (kept, name) => name in kept ? kept[name] : (...values) => {
    if (values.some(value => typeof value === "number" && !Number.isFinite(value))) throw new Error(`${name}(${values})`);
    counts[name] = (counts[name] || 0) + 1;
  },
});
const element = tag => ({
  tag, style: {}, children: [], listeners: {}, clientWidth: 1000, offsetWidth: 50,
  append(...more) { this.children.push(...more); },
  getContext: () => pen,
  addEventListener(name, hear) { this.listeners[name] = hear; },
});
const found = {
  said: { textContent: text(/<script id="said"[^>]*>([\s\S]*?)<\/script>/) },
  names: element("div"), panels: element("div"), what: element("div"), h1: element("h1"),
};
globalThis.document = { getElementById: id => found[id], querySelector: tag => found[tag], createElement: element };
globalThis.window = { addEventListener() {}, innerWidth: 1200, devicePixelRatio: 1 };
globalThis.requestAnimationFrame = draw => draw();
(0, eval)(text(/<script>([\s\S]*?)<\/script>/));
const canvases = found.panels.children.filter(one => one.tag === "canvas");
const told = new Set();
for (const deltaY of [0, -500, 900]) {
  canvases[0].listeners.wheel({ preventDefault() {}, offsetX: 500, deltaY });
  for (let x = 30; x < 1000; x += 5)
    for (let y = 2; y < 60; y += 6) {
      canvases[0].listeners.mousemove({ offsetX: x, offsetY: y, clientX: x, clientY: y });
      if (found.what.style.display === "block") told.add(found.what.textContent);
    }
}
const names = found.names.children.map(name => name.children[1]);
console.log(JSON.stringify({ outside, canvases: canvases.length, drawn: counts.fillRect, names, told: [...told], heading: found.h1.textContent }));
