// What is selected and what is shown; everything on the page follows from it.
const fusedPoints = measured.filter((point) => point.kind === "fused");
const first = [...fusedPoints].filter((p) => p.pareto).sort((a, b) => b.score - a.score)[0] ?? fusedPoints[0] ?? measured[0];
const state = { chosen: first.number, hidden: new Set(), space: "", zoom: true };
const networks = [...methods.map((name) => ({ name, kind: "fused" })),
  ...[...new Set(data.points.filter((p) => p.kind !== "fused").map((p) => p.method))].map((name) => ({ name, kind: data.points.find((p) => p.method === name).kind }))];

const alphasOf = (network) => [...new Set(data.points.filter((p) => p.method === network && p.kind === "fused").map((p) => p.alpha))].sort((a, b) => a - b);

// The point of a network at an alpha and a mix, or the nearest there is.
function find(network, alpha, mix) {
  const own = data.points.map((point, number) => ({ ...point, number })).filter((p) => p.method === network);
  const far = (p) => (p.mix === mix || p.mix === null ? 0 : 10) + Math.abs((p.alpha ?? alpha ?? 0) - (alpha ?? 0));
  return own.sort((a, b) => far(a) - far(b))[0].number;
}

const tip = element("div", { class: "tip", role: "tooltip", id: "tip", hidden: "" });

function show(point, mark) {
  const lines = [element("b", {}, point.method), `${data.metric} ${score(point.score)}`, element("br")];
  if (point.alpha !== null) lines.push(element("span", {}, `alpha ${point.alpha}`), element("br"));
  if (point.mix !== null) lines.push(element("span", {}, `mix ${mixText(point)}`), element("br"));
  lines.push(element("span", {}, `${whole(point.parameters)} parameters, ${point.ratio.toFixed(2)}×`));
  if (point.pareto) lines.push(element("br"), element("span", {}, "on the Pareto front"));
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
  if (closeUp(measured.filter((point) => !state.hidden.has(group(point))))) {
    const button = element("button", { class: "toggle", type: "button", "aria-pressed": state.zoom, "data-group": "zoom" }, "zoom in");
    button.addEventListener("click", () => { state.zoom = !state.zoom; draw(); });
    $("toggles").append(button);
  }
  if (focused) $("toggles").querySelector(`[data-group="${CSS.escape(focused)}"]`)?.focus();
}

function drawControls(point) {
  $("method").value = point.method;
  const alphas = alphasOf(point.method), sized = point.kind === "fused" && alphas.length > 1 && alphas[0] !== null;
  $("alpha").disabled = !sized;
  $("alpha").max = Math.max(alphas.length - 1, 1);
  $("alpha").value = sized ? alphas.indexOf(point.alpha) : 0;
  $("alpha").setAttribute("aria-valuetext", point.alpha === null ? "none" : `${point.alpha}`);
  $("alpha-out").textContent = point.alpha === null ? "–" : `${point.alpha}`;
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
  const fields = [(p) => p.method, (p) => p.score, (p) => p.ratio, (p) => p.alpha, (p) => (p.mix === null ? null : mixOrder.indexOf(p.mix)),
    (p) => p.parameters, (p) => (p.kind === "fused" ? p.seconds : null), (p) => (p.pareto ? 1 : null)];
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = element("button", { type: "button" }, ...head.childNodes);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending" || (column === 0 && !head.hasAttribute("aria-sort"));
      table.querySelectorAll("[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => fields[column](data.points[row.dataset.point]) ?? null;
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === null || y === null) return (x === null) - (y === null);
        return (up ? 1 : -1) * (x < y ? -1 : x > y ? 1 : 0);
      });
      table.tBodies[0].append(...rows);
    });
  });
}

function start() {
  const metric = data.metric[0].toUpperCase() + data.metric.slice(1);
  $("chart-title").textContent = `${metric} against size`;
  $("method").append(...networks.map(({ name }) => element("option", { value: name }, name)));
  $("mix").max = Math.max(data.mixes.length - 1, 1);
  $("mix-select").append(...data.mixes.map((mix, k) => element("option", { value: k }, mix.text)));
  const current = () => data.points[state.chosen];
  $("method").addEventListener("change", (event) => choose(find(event.target.value, current().alpha, current().mix)));
  $("alpha").addEventListener("input", (event) => choose(find(current().method, alphasOf(current().method)[+event.target.value], current().mix)));
  $("mix").addEventListener("input", (event) => choose(find(current().method, current().alpha, mixOrder[+event.target.value])));
  $("mix-select").addEventListener("change", (event) => choose(find(current().method, current().alpha, +event.target.value)));
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
