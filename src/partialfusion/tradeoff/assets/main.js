// What is selected and what is shown; everything on the page follows from it.
const fusedPoints = measured.filter((point) => point.kind === "fused");
const state = { chosen: 0, hidden: new Set(), space: "", zoom: true, axis: axisOf(data.axis).key };
if (measured.length) state.chosen = opening().number;
const networks = [...methods.map((name) => ({ name, kind: "fused" })),
  ...[...new Set(data.points.filter((p) => p.kind !== "fused").map((p) => p.method))].map((name) => ({ name, kind: data.points.find((p) => p.method === name).kind }))];

// The page opens on a network that shows something: of those in which channels were matched, the smallest whose score is
// near the best one's, within a tenth of what the best gains on the worst parent.
function opening() {
  const matched = fusedPoints.filter((p) => p.detail !== null && data.details[p.detail].all.alike.length && place(p) !== null);
  const among = matched.length ? matched : fusedPoints.length ? fusedPoints : measured;
  const best = Math.max(...among.map((p) => p.score));
  const worst = Math.min(...measured.filter((p) => p.kind === "parent").map((p) => p.score));
  const near = among.filter((p) => p.score >= best - 0.1 * Math.max(best - worst, 0));
  return near.sort((a, b) => place(a) - place(b) || b.score - a.score)[0];
}

// The sizes of a network's fusions, as they were asked for, from small to large.
function stepsOf(network) {
  const own = data.points.filter((p) => p.method === network && p.kind === "fused");
  return [...new Set(own.sort((a, b) => (a.dense ?? 0) - (b.dense ?? 0) || (a.alpha ?? 0) - (b.alpha ?? 0)).map(stepText))];
}

// The point of a network at a step and a mix, or the nearest there is.
function find(network, step, mix, size) {
  const own = data.points.map((point, number) => ({ ...point, number })).filter((p) => p.method === network);
  const far = (p) => (p.mix === mix || p.mix === null ? 0 : 100) + (stepText(p) === step ? 0 : 1 + Math.abs((p.dense ?? 0) - (size ?? 0)) / (size || 1));
  return own.sort((a, b) => far(a) - far(b))[0].number;
}

const tip = element("div", { class: "tip", role: "tooltip", id: "tip", hidden: "" });

function show(point, mark) {
  const lines = [element("b", {}, point.method), `${data.metric} ${score(point.score)}`, element("br")];
  if (stepText(point)) lines.push(element("span", {}, point.budget === null ? `alpha ${point.alpha}` : stepText(point)), element("br"));
  if (point.mix !== null) lines.push(element("span", {}, `mix ${mixText(point)}`), element("br"));
  const shown = data.axes.filter((axis) => (["dense", "effective"].includes(axis.key) || axis.key === state.axis) && point.sizes[axis.key] !== null);
  lines.push(element("span", {}, ...shown.flatMap((axis, k) => [...(k ? [element("br")] : []), `${axis.name}: ${sized(point.sizes[axis.key], axis)}`])));
  if (onFront(point)) lines.push(element("br"), element("span", {}, "on the Pareto front"));
  tip.replaceChildren(...lines);
  tip.hidden = false;
  $("chart").append(tip);
  const frame = $("chart").getBoundingClientRect(), at = mark.getBoundingClientRect();
  const middle = at.left + at.width / 2 - frame.left;
  tip.style.left = `${Math.min(Math.max(middle - tip.offsetWidth / 2, 0), frame.width - tip.offsetWidth)}px`;
  const above = at.top - frame.top - tip.offsetHeight - 4;
  tip.style.top = `${above > 0 ? above : at.bottom - frame.top + 4}px`;
}

const hide = () => { tip.hidden = true; };

function choose(number) {
  state.chosen = number;
  state.hidden.delete(group(data.points[number]));
  draw();
}

function draw() {
  const point = data.points[state.chosen], detail = point.detail === null ? null : data.details[point.detail];
  if (state.space && !detail?.spaces.some((s) => s.name === state.space)) state.space = "";
  hide();
  drawChart($("chart"), state, { show, hide, choose });
  drawToggles();
  drawControls(point);
  drawReadout($("readout"), point);
  const pickSpace = (name) => { state.space = name; draw(); [...document.querySelectorAll(".bar")].find((bar) => bar.querySelector(".name").textContent === name)?.focus(); };
  drawBars($("bars"), $("bars-legend"), detail, state.space, pickSpace);
  drawSpaces(detail);
  drawHistograms($("histograms"), detail, point.method, state.space);
  for (const row of document.querySelectorAll("tr[data-point]")) {
    row.classList.toggle("chosen", +row.dataset.point === state.chosen);
    row.setAttribute("aria-current", +row.dataset.point === state.chosen);
  }
}

function drawToggles() {
  const focused = document.activeElement?.dataset?.group;
  const front = { shape: "M-8,0H-3M1,0H6", colour: "none" };
  const shown = methods.filter((method) => measured.some((p) => p.method === method));
  const kinds = [...shown.map((m) => [m, m, look({ kind: "fused", method: m })]), ["parent", "parents", look({ kind: "parent" })], ["ensemble", "ensemble", look({ kind: "ensemble" })], ["front", "Pareto front", front]];
  $("toggles").replaceChildren(...kinds.map(([key, name, drawn]) => {
    const picture = swatch(drawn);
    if (key === "front") picture.firstChild.setAttribute("style", "stroke:var(--front);stroke-width:2.4;fill:none");
    const button = element("button", { class: "toggle", type: "button", "aria-pressed": !state.hidden.has(key), "data-group": key }, picture, name);
    button.addEventListener("click", () => { if (!state.hidden.delete(key)) state.hidden.add(key); draw(); });
    return button;
  }));
  if (closeUp(shownPoints())) {
    const button = element("button", { class: "toggle", type: "button", "aria-pressed": state.zoom, "data-group": "zoom" }, "zoom in");
    button.addEventListener("click", () => { state.zoom = !state.zoom; draw(); });
    $("toggles").append(button);
  }
  if (focused) $("toggles").querySelector(`[data-group="${CSS.escape(focused)}"]`)?.focus();
}

function drawControls(point) {
  $("method").value = point.method;
  const steps = stepsOf(point.method), several = point.kind === "fused" && steps.length > 1;
  $("alpha").disabled = !several;
  $("alpha").max = Math.max(steps.length - 1, 1);
  $("alpha").value = several ? steps.indexOf(stepText(point)) : 0;
  $("alpha").setAttribute("aria-valuetext", stepText(point) || "none");
  $("alpha-out").textContent = stepText(point) || "–";
  const mixed = point.mix !== null, two = models.length === 2;
  $("mix-control").hidden = data.mixes.length < 2;
  $("mix").hidden = !two;
  $("mix-select").hidden = two;
  for (const control of [$("mix"), $("mix-select")]) control.disabled = !mixed;
  $("mix").value = mixed ? mixOrder.indexOf(point.mix) : 0;
  $("mix-select").value = mixed ? point.mix : 0;
  $("mix").setAttribute("aria-valuetext", mixText(point));
  $("mix-out").textContent = mixed ? mixText(point) : "–";
}

function drawSpaces(detail) {
  const names = detail ? detail.spaces.map((s) => s.name) : [];
  $("space").disabled = !detail;
  $("space").replaceChildren(element("option", { value: "" }, "all spaces"), ...names.map((name) => element("option", { value: name }, name)));
  $("space").value = state.space;
}

// Mixes in the order of the first model's share, so that a slider has a direction.
const mixOrder = data.mixes.map((_, k) => k).sort((a, b) => data.mixes[a].shares[0] - data.mixes[b].shares[0]);

// Headers that sort: numbers by size, largest first; names by letters. Empty cells come last.
function sortable(table) {
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = element("button", { type: "button" }, ...head.childNodes);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending" || (column === 0 && !head.hasAttribute("aria-sort"));
      table.querySelectorAll("[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.value;
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (!x || !y) return !x - !y;
        const before = column === 0 ? (x < y ? -1 : x > y ? 1 : 0) : x - y;
        return (up ? 1 : -1) * before;
      });
      table.tBodies[0].append(...rows);
    });
  });
}

function start() {
  const metric = data.metric[0].toUpperCase() + data.metric.slice(1);
  $("chart-title").textContent = `${metric} against`;
  $("method").append(...networks.map(({ name }) => element("option", { value: name }, name)));
  if (data.points.some((p) => p.budget !== null)) $("alpha-name").textContent = "Alpha or budget";
  $("mix").max = Math.max(data.mixes.length - 1, 1);
  $("mix-select").append(...data.mixes.map((mix, k) => element("option", { value: k }, mix.text)));
  const current = () => data.points[state.chosen];
  const pick = (network, step, mix) => choose(find(network, step, mix, current().dense));
  $("method").addEventListener("change", (event) => pick(event.target.value, stepText(current()), current().mix));
  $("alpha").addEventListener("input", (event) => pick(current().method, stepsOf(current().method)[+event.target.value], current().mix));
  $("mix").addEventListener("input", (event) => pick(current().method, stepText(current()), mixOrder[+event.target.value]));
  $("mix-select").addEventListener("change", (event) => pick(current().method, stepText(current()), +event.target.value));
  $("axis").append(...data.axes.map((axis) => element("option", { value: axis.key }, axis.name)));
  $("axis").value = state.axis;
  $("axis").addEventListener("change", (event) => { state.axis = event.target.value; draw(); });
  $("space").addEventListener("change", (event) => { state.space = event.target.value; draw(); });
  sortable(document.querySelector("table"));
  for (const row of document.querySelectorAll("tr[data-point]")) {
    row.tabIndex = 0;
    row.addEventListener("click", () => choose(+row.dataset.point));
    row.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(+row.dataset.point); } });
  }
  for (const section of document.querySelectorAll("[data-needs-script]")) section.hidden = false;
  draw();
  let width = $("chart").clientWidth;
  new ResizeObserver(() => {
    if ($("chart").clientWidth === width) return;
    width = $("chart").clientWidth;
    requestAnimationFrame(draw);
  }).observe($("chart"));
}

if (measured.length) start();
