// The chart: score against size. It is drawn anew when the width or what is shown changes.
const measured = data.points.map((point, number) => ({ ...point, number })).filter((point) => point.score !== null);

function domain(values, room) {
  const low = Math.min(...values), high = Math.max(...values);
  const pad = (high - low || Math.abs(high) || 1) * room;
  return [low - pad, high + pad];
}

const place = (point) => point.sizes[state.axis];

function frontOf(points) {
  const found = [];
  let best = -Infinity, at = null;
  for (const point of [...points].sort((a, b) => place(a) - place(b) || b.score - a.score)) {
    if (!(point.score <= best + 1e-6 * Math.abs(best))) { found.push(point); best = point.score; at = place(point); }
    else if (point.score === best && place(point) === at) found.push(point);
  }
  return found;
}

// From the lowest parent up, where networks far below would press everything else together; otherwise nothing.
function closeUp(points) {
  const scores = points.map((p) => p.score), high = Math.max(...scores), low = Math.min(...scores);
  const floor = Math.min(...points.filter((p) => p.kind === "parent").map((p) => p.score), ...frontOf(points).map((p) => p.score));
  return high - floor < 0.6 * (high - low) && high > floor ? [floor - (high - floor) * 0.5, high] : null;
}

function drawChart(holder, state, on) {
  const width = Math.max(holder.clientWidth, 280), narrow = width < 560;
  const height = narrow ? 330 : Math.min(470, Math.max(380, width * 0.52));
  const room = { left: data.percent ? 50 : 62, right: 16, top: 14, bottom: 58 };
  const points = shownPoints();
  const axis = axisOf(state.axis);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${data.metric} against ${axis.name}; arrow keys go from network to network` });
  if (!points.length) {
    svg.append(element("text", { class: "axis", x: width / 2, y: height / 2, "text-anchor": "middle" }, "Nothing is shown: switch something on above."));
    holder.replaceChildren(svg);
    return;
  }
  const [x0, x1] = domain(points.map(place), 0.07), [y0, y1] = domain((state.zoom && closeUp(points)) || points.map((p) => p.score), 0.09);
  const x = (value) => room.left + ((value - x0) / (x1 - x0)) * (width - room.left - room.right);
  const down = (value) => height - room.bottom - ((value - y0) / (y1 - y0)) * (height - room.top - room.bottom);
  const y = (value) => Math.min(down(value), height - room.bottom - 16);
  drawSlower(svg, points, axis, x, width - room.right, room.top, height - room.bottom);
  drawAxes(svg, { axis, x, y: down, x0, x1, y0, y1, width, height, room, narrow });
  drawLines(svg, points, state, x, y);
  const isBelow = (p) => down(p.score) > height - room.bottom;
  drawMarks(svg, points, state, on, x, y, isBelow);
  drawLabels(svg, points, x, y, width, room);
  drawBelow(svg, points.filter(isBelow), x, height - room.bottom, width - room.right);
  const focused = holder.contains(document.activeElement) ? document.activeElement.dataset.number : null;
  holder.replaceChildren(svg);
  if (focused) svg.querySelector(`[data-number="${focused}"]`)?.focus({ preventScroll: true });
}

function drawAxes(svg, { axis, x, y, x0, x1, y0, y1, width, height, room, narrow }) {
  const bottom = height - room.bottom, steps = ticks(y0, y1, narrow ? 5 : 7);
  const digits = decimals(steps.map((value) => (data.percent ? 100 * value : value)));
  for (const value of steps) {
    svg.append(element("line", { class: "tick", x1: room.left, x2: width - room.right, y1: y(value), y2: y(value) }));
    svg.append(element("text", { class: "axis", x: room.left - 8, y: y(value) + 4, "text-anchor": "end" }, data.percent ? score(value, digits) : number(value, 6)));
  }
  for (const ratio of ticks(x0 / axis.single, x1 / axis.single, narrow ? 4 : 7)) {
    const at = x(ratio * axis.single);
    svg.append(element("line", { class: "tick", x1: at, x2: at, y1: room.top, y2: bottom }));
    svg.append(element("text", { class: "axis", x: at, y: bottom + 17, "text-anchor": "middle" }, `${ratio}×`));
    if (axis.counts) svg.append(element("text", { class: "axis", x: at, y: bottom + 32, "text-anchor": "middle" }, short(ratio * axis.single)));
  }
  svg.append(element("line", { class: "frame", x1: room.left, x2: width - room.right, y1: bottom, y2: bottom }));
  const name = narrow ? axis.name : `${axis.name}, relative to ${models[models.length - 1]}${axis.counts ? " and in numbers" : ""}`;
  svg.append(element("text", { class: "axis name", x: (room.left + width - room.right) / 2, y: height - 6, "text-anchor": "middle" }, name));
}

// Where networks take longer than the ensemble does: than that of the selected mix, where it has one.
function drawSlower(svg, points, axis, x, right, top, bottom) {
  const ensembles = axis.counts ? [] : points.filter((p) => p.kind === "ensemble"), mix = data.points[state.chosen].mix;
  const ensemble = ensembles.find((p) => p.mix === mix) ?? ensembles[0];
  if (!ensemble) return;
  const left = x(place(ensemble)) + 1;
  svg.append(element("rect", { class: "slower", x: left, y: top, width: Math.max(right - left, 0), height: bottom - top }));
  const text = "slower than the ensemble", fits = right - left > 6.2 * text.length;
  svg.append(element("text", { class: "slower-name", x: fits ? left + 5 : right, y: bottom - 6, "text-anchor": fits ? "start" : "end" }, text));
}

// The scores of networks below the scale, beside their marks; one label where marks lie on each other.
function drawBelow(svg, points, x, bottom, right) {
  const groups = [];
  for (const point of [...points].sort((a, b) => place(a) - place(b))) {
    const near = groups.find((other) => x(place(point)) - x(place(other.at(-1))) < 110);
    if (near) near.push(point);
    else groups.push([point]);
  }
  for (const found of groups) {
    const scores = found.map((p) => p.score), [low, high] = [Math.min(...scores), Math.max(...scores)];
    const digits = data.percent ? 1 : 4;
    const text = score(low, digits) === score(high, digits) ? score(low, digits) : `${score(low, digits).replace(" %", "")} to ${score(high, digits)}`;
    const end = Math.max(...found.map((p) => x(place(p)))), fits = end + 12 + 6.6 * text.length < right;
    svg.append(element("text", { class: "off-scale", x: fits ? end + 11 : x(place(found[0])) - 11, y: bottom - 5, "text-anchor": fits ? "start" : "end" }, text));
  }
}

function drawLines(svg, points, state, x, y) {
  if (!state.hidden.has("front")) {
    const front = frontOf(points);
    let d = "";
    front.forEach((p, k) => { d += k ? `H${x(place(p))}V${y(p.score)}` : `M${x(place(p))},${y(p.score)}`; });
    svg.append(element("path", { class: "front-line", d }));
  }
  const chosen = data.points[state.chosen];
  for (const method of methods) for (let mix = 0; mix < data.mixes.length; mix++) {
    const run = points.filter((p) => p.method === method && p.mix === mix && p.kind === "fused");
    if (run.length < 2) continue;
    const current = chosen.method === method && chosen.mix === mix ? " current" : "";
    const d = run.sort((a, b) => a.sizes.dense - b.sizes.dense).map((p, k) => `${k ? "L" : "M"}${x(place(p))},${y(p.score)}`).join("");
    svg.append(element("path", { class: `path${current}`, d, style: `stroke:${look(run[0]).colour}` }));
  }
}

function drawMarks(svg, points, state, on, x, y, isBelow) {
  const byPlace = [...points].sort((a, b) => place(a) - place(b) || a.score - b.score);
  const stop = byPlace.some((p) => p.number === state.chosen) ? state.chosen : byPlace[0].number;
  const mix = data.points[state.chosen].mix;
  const drawn = byPlace.map((point) => {
    const { shape, colour } = look(point), isChosen = point.number === state.chosen;
    const dim = point.kind !== "parent" && mix !== null && point.mix !== mix ? " dim" : "";
    const mark = element("g", {
      class: `mark${isChosen ? " chosen" : ""}${dim}`, transform: `translate(${x(place(point))},${y(point.score)})`, role: "button",
      tabindex: point.number === stop ? 0 : -1, "aria-pressed": isChosen, "data-number": point.number,
      "aria-label": `${called(point)}: ${data.metric} ${score(point.score)}, ${axisOf(state.axis).name} ${sized(place(point), axisOf(state.axis))}`,
    });
    mark.append(element("circle", { r: 15, fill: "transparent" }), element("circle", { class: "halo", r: 11 }), element("path", { class: "shape", d: shape, style: `fill:${colour}` }));
    if (isBelow(point)) mark.append(element("path", { class: "below", d: "M-4,9L0,13L4,9" }));
    mark.addEventListener("pointerenter", () => on.show(point, mark));
    mark.addEventListener("pointerleave", on.hide);
    mark.addEventListener("focus", () => on.show(point, mark));
    mark.addEventListener("blur", on.hide);
    mark.addEventListener("click", () => on.choose(point.number));
    return mark;
  });
  drawn.forEach((mark, k) => mark.addEventListener("keydown", (event) => {
    const next = { ArrowRight: k + 1, ArrowUp: k + 1, ArrowLeft: k - 1, ArrowDown: k - 1, Home: 0, End: drawn.length - 1 }[event.key];
    if (next !== undefined) { event.preventDefault(); drawn[Math.min(Math.max(next, 0), drawn.length - 1)].focus(); }
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); on.choose(byPlace[k].number); }
    if (event.key === "Escape") on.hide();
  }));
  const last = drawn.filter((mark) => mark.classList.contains("chosen"));
  svg.append(...drawn.filter((mark) => !last.includes(mark)), ...last);
}

// Names stand beside parents and the best ensemble, moved apart where they would meet.
function drawLabels(svg, points, x, y, width, room) {
  const best = points.filter((p) => p.kind === "ensemble").sort((a, b) => b.score - a.score).slice(0, 1);
  const parents = points.filter((p) => p.kind === "parent");
  const placed = [];
  for (const point of [...parents, ...best]) {
    const text = point.method, wide = text.length * 7.2, at = x(place(point));
    const right = at + 16 + wide < width - room.right;
    const left = right ? at + 14 : at - 14 - wide;
    const meets = (p) => Math.abs(y(p.score) - y(point.score)) < 14 && x(place(p)) > left - 9 && x(place(p)) < left + wide + 9;
    const above = points.some((p) => p !== point && meets(p));
    let line = y(point.score) + (above ? -12 : 4.5);
    while (placed.some((other) => Math.abs(other.line - line) < 15 && left < other.left + other.wide && other.left < left + wide)) line += 15;
    placed.push({ left, wide, line });
    svg.append(element("text", { class: "label", x: right ? left : at - 14, y: line, "text-anchor": right ? "start" : "end" }, text));
  }
}

// Whether no network beats this one, by the size that is chosen.
const onFront = (point) => frontOf(measured.filter((p) => place(p) !== null)).some((p) => p.number === (point.number ?? data.points.indexOf(point)));

// What the chart shows: networks whose size is known, of the groups that are switched on.
const shownPoints = () => measured.filter((point) => !state.hidden.has(group(point)) && place(point) !== null);
const group = (point) => (point.kind === "fused" ? point.method : point.kind);
