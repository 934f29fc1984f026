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
  if (scroll && matchMedia("(max-width: 60rem)").matches) detail.scrollIntoView();
  return true;
}

document.addEventListener("click", (event) => {
  const box = event.target.closest("[data-open]");
  if (box && show(box.dataset.open, true)) history.replaceState(null, "", "#" + box.dataset.open);
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

for (const graph of document.querySelectorAll(".graph")) show(graph.dataset.first, false);
show(location.hash.slice(1), true);
