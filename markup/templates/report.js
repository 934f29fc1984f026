"use strict";

// A click on a step shows its detail beside the graph, and marks the tensors that it reads and writes.
// What equal steps share (kernels, search) is in the page once, and moves to the one that is open.
const byId = (id) => document.getElementById(id);

function show(name, scroll) {
  const detail = byId(name);
  if (!detail || !detail.classList.contains("detail")) return false;
  const graph = detail.closest(".graph");
  for (const other of graph.querySelectorAll(".detail")) other.hidden = other !== detail;
  for (const slot of detail.querySelectorAll("[data-same]")) slot.append(byId(slot.dataset.same));
  const touched = new Set((detail.dataset.touches || "").split(" "));
  for (const mark of graph.querySelectorAll("[data-tensor]"))
    mark.classList.toggle("touched", touched.has(mark.dataset.tensor));
  for (const box of graph.querySelectorAll("[data-open]"))
    box.setAttribute("aria-current", String(box.dataset.open === name));
  graph.dataset.place = name.split("-").pop();
  for (const plot of graph.querySelectorAll(".plot[id].js-plotly-plot")) draw(plot);
  if (scroll && matchMedia("(max-width: 60rem)").matches) detail.scrollIntoView();
  return true;
}

function choose(name) {
  if (show(name, true)) history.replaceState(null, "", "#" + name);
}

document.addEventListener("click", (event) => {
  const box = event.target.closest("[data-open]");
  if (box) choose(box.dataset.open);
});

document.addEventListener("keydown", (event) => {
  const box = event.target.closest && event.target.closest("button[data-open]");
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!box || !step) return;
  const boxes = [...box.closest(".graph").querySelectorAll("button[data-open]")];
  const next = boxes[boxes.indexOf(box) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
  next.click();
});

// --- plots ---

// Plotly is in the page, packed: it is unpacked when the rest of the page can be read. A plot is drawn
// when it comes near the window, and again when the colours change: light, dark, print.
const FONT = "system-ui, sans-serif";
const PRINTED_WIDTH = 640; // pixels; fits A4 and Letter
let printing = false;

// A function from the name of a colour of the page to its value now. What prints is light.
function colours() {
  const probe = document.createElement("i");
  probe.hidden = true;
  if (printing) probe.style.colorScheme = "light";
  document.body.append(probe);
  const found = {};
  return {
    of(name) {
      probe.style.color = `var(${name})`;
      found[name] ??= getComputedStyle(probe).color;
      return found[name];
    },
    done: () => probe.remove(),
  };
}

function coloured(value, colour) {
  if (typeof value === "string") return value.startsWith("--") ? colour(value) : value;
  if (Array.isArray(value)) return value.map((each) => coloured(each, colour));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, coloured(each, colour)]));
}

const axis = (given) => ({
  gridcolor: "--rule", linecolor: "--rule", zeroline: false, automargin: true,
  fixedrange: matchMedia("(pointer: coarse)").matches, // a finger scrolls the page
  ...given,
});

function completed(layout, width) {
  return {
    width, margin: { l: 56, r: 16, t: 12, b: 40 }, showlegend: false, hovermode: "closest",
    paper_bgcolor: "rgba(0, 0, 0, 0)", plot_bgcolor: "rgba(0, 0, 0, 0)",
    font: { family: FONT, size: 11, color: "--dim" },
    hoverlabel: {
      bgcolor: "--shade", bordercolor: "--rule", align: "left", font: { family: FONT, color: "--ink" },
    },
    ...layout, xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
  };
}

// Of the trace of all steps the one that is open: stressed, or alone.
function stressed(trace, place, alone) {
  const at = trace.customdata ? trace.customdata.indexOf(Number(place)) : -1;
  if (at < 0) return trace;
  if (!alone) return { ...trace, selectedpoints: [at] };
  const marker = { ...trace.marker, color: trace.marker.color[at], line: { color: "--ink", width: 2.5 } };
  return { ...trace, x: [trace.x[at]], y: [trace.y[at]], text: [trace.text[at]], customdata: [place], marker };
}

function draw(plot) {
  const { again, place } = plot.dataset;
  const graph = plot.closest(".graph");
  const { data, layout } = JSON.parse((again ? byId(again) : plot).dataset.figure);
  const traces = data.map((trace) => stressed(trace, place || graph.dataset.place, Boolean(again)));
  const width = printing ? Math.min(plot.clientWidth, PRINTED_WIDTH) : plot.clientWidth;
  const palette = colours();
  const figure = coloured({ data: traces, layout: completed(layout, width) }, palette.of);
  palette.done();
  const drawn = plot.classList.contains("js-plotly-plot");
  Plotly.react(plot, figure.data, figure.layout, { displayModeBar: false });
  if (drawn) return;
  plot.on("plotly_click", ({ points: [point] }) => {
    if (point.customdata !== undefined) choose(graph.id.replace("graph", "step") + "-" + point.customdata);
  });
}

const plots = (selector) =>
  [...document.querySelectorAll(selector)].filter((plot) => plot.clientWidth > 0);

function drawForPrint(begins) {
  printing = begins;
  plots(begins ? ".plot" : ".js-plotly-plot").forEach(draw);
}

async function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const text = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(text).text();
  document.head.append(script);
}

async function drawPlots() {
  await unpacked(byId("plotly").content.textContent);
  const near = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      draw(target);
    }
  }, { rootMargin: "300px" });
  for (const plot of document.querySelectorAll(".plot")) near.observe(plot);
  addEventListener("beforeprint", () => drawForPrint(true));
  addEventListener("afterprint", () => drawForPrint(false));
  const again = () => plots(".js-plotly-plot").forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  addEventListener("resize", again);
}

for (const graph of document.querySelectorAll(".graph")) show(graph.dataset.first, false);
show(location.hash.slice(1), true);
if (byId("plotly")) drawPlots();
