// Inside the selected network: the channels of every space, and how similar they are.
function drawReadout(holder, point) {
  if (point.score === null) {
    holder.replaceChildren(element("p", { class: "score" }, "failed"), element("p", { class: "empty" }, point.error));
    return;
  }
  const names = { dense: "Parameters", effective: "As blocks, in a file", flops: "Operations" };
  const rows = data.axes.filter((axis) => axis.counts && point.sizes[axis.key] !== null).map((axis) => {
    const value = point.sizes[axis.key];
    return [names[axis.key], axis.key === "flops" ? `${short(value)} (${ratio(value, axis)})` : sized(value, axis)];
  });
  if (point.latency !== null) {
    const times = ["dense", "blocks", "auto"].map((form) => `${point.latency[form].toFixed(2)}×`);
    rows.push(point.kind === "fused" ? ["Latency: module, blocks, auto", times.join(" / ")] : ["Latency", times[0]]);
    if (point.slower.length) rows.push(["Slower than the ensemble", point.slower.map((form) => (form === "dense" ? "module" : form)).join(", ")]);
  }
  const against = (kind, name) => {
    const others = measured.filter((p) => p.kind === kind && p.number !== point.number && (kind === "parent" || p.mix === point.mix || point.mix === null));
    if (others.length) rows.push([name, difference(point.score - Math.max(...others.map((p) => p.score)))]);
  };
  against("parent", point.kind === "parent" ? "Against the best other parent" : "Against the best parent");
  if (point.kind !== "ensemble") against("ensemble", "Against the ensemble");
  if (point.kind === "fused") {
    rows.push(["Channels compared by", point.features], ["Fused in", `${point.seconds.toFixed(1)} s`]);
    if (!point.converged) rows.push(["Alignment", "not converged"]);
  }
  const list = element("dl");
  for (const [name, value] of rows) list.append(element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  holder.replaceChildren(
    element("p", { class: "score" }, score(point.score), " ", element("small", {}, data.metric)),
    ...(onFront(point) ? [element("span", { class: "badge" }, "on the Pareto front")] : []), list);
}

const side = (k) => `var(--s${k % 6})`;
const models = data.models;

// Channels in the order in which they stand in the layer: isolated ones of the first models, fused, of the last.
function partsOf(space) {
  const alone = space.isolated.map((count, k) => ({ count, colour: side(k), name: `isolated, ${models[k]}` }));
  const last = alone.pop();
  return [...alone, { count: space.fused, colour: "var(--fused)", name: "fused" }, last];
}

function drawBars(holder, legend, detail, chosen, choose) {
  if (!detail) {
    legend.replaceChildren();
    holder.replaceChildren(element("p", { class: "empty" }, "This network was not fused. Select one that was to see its channels."));
    return;
  }
  const widest = Math.max(...data.details.flatMap((d) => d.spaces.map((s) => s.after)));
  legend.replaceChildren(...partsOf(detail.spaces[0]).map((part) => {
    const svg = element("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" });
    svg.append(element("rect", { width: 14, height: 14, rx: 3, style: `fill:${part.colour}` }));
    return element("span", {}, svg, part.name);
  }));
  holder.replaceChildren(...detail.spaces.map((space) => {
    const parts = partsOf(space).filter((part) => part.count);
    const made = [space.combined > space.fused ? `${space.combined} made of several` : "", space.deleted ? `${space.deleted} deleted` : ""].filter(Boolean);
    const summary = [...parts.map((part) => `${part.count} ${part.name}`), ...made].join(", ");
    const row = element("button", { class: "bar", type: "button", "aria-pressed": space.name === chosen, title: `${space.name}: ${summary}`, "aria-label": `${space.name}: ${space.after} channels, ${summary}` });
    const track = element("span", { class: "track" });
    track.append(...parts.map((part) => element("i", { style: `width:${(100 * part.count) / widest}%;background:${part.colour}` })));
    row.append(element("span", { class: "name" }, space.name), track, element("span", { class: "total" }, whole(space.after)));
    row.addEventListener("click", () => choose(space.name === chosen ? "" : space.name));
    return row;
  }));
}

function drawHistograms(holder, detail, method, chosen) {
  const found = detail && (chosen ? detail.spaces.find((s) => s.name === chosen) : detail.all);
  if (!found || !(found.costs.length || found.alike.length || found.apart.length)) {
    const why = detail ? "Nothing was matched here, so there is nothing to compare." : "This network was not fused.";
    holder.replaceChildren(element("p", { class: "empty" }, why));
    return;
  }
  const figures = [];
  if (found.alike.length || found.apart.length) {
    figures.push(histogram(holder, "Similarity of counterparts", "1 is the same, 0 unrelated", data.bins.similarity, [
      { counts: found.alike, colour: "var(--fused)", name: "fused" }, { counts: found.apart, colour: "var(--rest)", name: "isolated" }]));
  }
  if (found.costs.length) {
    figures.push(histogram(holder, "Matching cost of fused pairs", "what the alignment paid for each", data.bins.costs[method][chosen], [{ counts: found.costs, colour: "var(--fused)", name: "fused pairs" }]));
  }
  holder.replaceChildren(...figures);
}

function histogram(holder, title, note, [low, high], series) {
  const used = series.filter((one) => one.counts.length);
  const width = Math.max(holder.clientWidth, 260), height = 150, bottom = 24, left = 34;
  const bins = used[0].counts.length, step = (width - left) / bins;
  const totals = Array.from({ length: bins }, (_, k) => used.reduce((sum, one) => sum + one.counts[k], 0));
  const most = Math.max(...totals, 1), scale = (height - bottom - 8) / most;
  const all = used.map((one) => `${one.counts.reduce((a, b) => a + b, 0)} ${one.name}`).join(", ");
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}, from ${+low.toPrecision(3)} to ${+high.toPrecision(3)}: ${all}` });
  for (const value of ticks(0, most, 3).filter(Number.isInteger)) {
    const at = height - bottom - value * scale;
    svg.append(element("line", { class: "tick", x1: left, x2: width, y1: at, y2: at }), element("text", { class: "axis", x: left - 6, y: at + 4, "text-anchor": "end" }, `${value}`));
  }
  totals.forEach((_, k) => {
    let base = height - bottom;
    for (const one of used) {
      const tall = one.counts[k] * scale;
      base -= tall;
      if (!tall) continue;
      const from = low + (k * (high - low)) / bins, to = low + ((k + 1) * (high - low)) / bins;
      const bar = element("rect", { x: left + k * step + 0.5, y: base, width: Math.max(step - 1, 1), height: tall, style: `fill:${one.colour}` });
      bar.append(element("title", {}, `${one.counts[k]} ${one.name}, ${+from.toPrecision(3)} to ${+to.toPrecision(3)}`));
      svg.append(bar);
    }
  });
  for (const value of ticks(low, high, width < 420 ? 3 : 5)) {
    const at = left + ((value - low) / (high - low)) * (width - left);
    svg.append(element("text", { class: "axis", x: Math.min(at, width - 2), y: height - 6, "text-anchor": at > width - 14 ? "end" : "middle" }, number(value, 6)));
  }
  const legend = element("span", {}, ` – ${note}. `);
  const keys = element("div", { class: "legend" }, ...used.map((one) => {
    const key = element("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" });
    key.append(element("rect", { width: 14, height: 14, rx: 3, style: `fill:${one.colour}` }));
    return element("span", {}, key, one.name);
  }));
  return element("figure", { class: "histogram" }, element("figcaption", {}, element("b", {}, title), legend, keys), svg);
}
