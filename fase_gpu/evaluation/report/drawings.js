// Distances, spanning tree and merge tree of one task as SVG.

const CLASS_COLOURS = ["--blue", "--gold", "--green", "--pink", "--red", "--sky"].map((name) => `var(${name})`);
const MANY = 24;
// Dark to light and even in brightness, for every kind of colour vision (the idea of viridis).
const SCALE = [[32, 18, 77], [58, 62, 138], [40, 110, 142], [32, 155, 132], [110, 198, 92], [245, 230, 60]];

function className(place) {
  return (place >= 26 ? className(Math.floor(place / 26) - 1) : "") + String.fromCharCode(65 + (place % 26));
}

// Classes of one sample have no colour: there are few colours that everyone can tell apart.
function classColour(detail, place) {
  return detail.classes[place].length > 1 && place < CLASS_COLOURS.length ? CLASS_COLOURS[place] : "var(--paper)";
}

function classOf(detail) {
  const found = [];
  detail.classes.forEach((members, place) => members.forEach((i) => { found[i] = place; }));
  return found;
}

function outcome(detail, i) {
  return detail.passed === null ? "" : detail.passed[i] ? "passed" : "failed";
}

function sampleName(detail, i) {
  return [`sample ${i}`, `class ${className(classOf(detail)[i])}`, outcome(detail, i)].filter(Boolean).join(", ");
}

function pairDistance(detail, i, j) {
  if (i === j) return 0;
  const n = detail.text.length, low = Math.min(i, j), high = Math.max(i, j);
  return detail.distance[low * n - (low * (low + 1)) / 2 + high - low - 1];
}

function scaleColour(share) {
  const at = Math.min(Math.max(share, 0), 1) * (SCALE.length - 1), k = Math.min(Math.floor(at), SCALE.length - 2);
  return SCALE[k].map((low, c) => Math.round(low + (at - k) * (SCALE[k + 1][c] - low)));
}

function mark(detail, i, size, attributes = {}) {
  const place = classOf(detail)[i];
  const look = { fill: classColour(detail, place), stroke: "var(--ink)", "stroke-width": 1.3, ...attributes };
  return outcome(detail, i) === "failed"
    ? drawn("rect", { x: -size * 0.88, y: -size * 0.88, width: size * 1.76, height: size * 1.76, ...look })
    : drawn("circle", { r: size, ...look });
}

// A drawing of many samples has the whole width, and in a narrow window scrolls before it gets too small to read.
function drawing(id, title, svg, width, broad, ...below) {
  if (!broad) return element("div", { class: "drawing", id }, element("h3", {}, title), svg, ...below);
  svg.style.maxWidth = `${width}px`;
  svg.style.minWidth = `${Math.min(width, 900)}px`;
  return element("div", { class: "drawing broad", id }, element("h3", {}, title),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, svg), ...below);
}

function heatmap(detail) {
  const n = detail.order.length, cell = n <= 12 ? 34 : n <= 30 ? 18 : 9, margin = 30, size = n * cell;
  const largest = Math.max(...detail.distance), place = classOf(detail);
  const svg = drawn("svg", {
    viewBox: `0 0 ${margin + size + 2} ${margin + size + 2}`, tabindex: 0, role: "img",
    "aria-label": "Distances of all pairs of samples; arrow keys move over the pairs",
  });
  const readout = element("p", { class: "readout", role: "status" }, "Point at a cell, or move with the arrow keys.");
  const frame = drawn("rect", { width: cell, height: cell, fill: "none", stroke: "var(--ink)", "stroke-width": 2.5, visibility: "hidden" });
  detail.order.forEach((i, row) => {
    const label = n <= 30 ? [{ x: margin - 6, y: margin + (row + 0.5) * cell, "text-anchor": "end" }, { x: margin + (row + 0.5) * cell, y: margin - 11, "text-anchor": "middle" }] : [];
    for (const at of label) svg.append(drawn("text", { ...at, "dominant-baseline": "central", "font-size": 12 }, String(i)));
    detail.order.forEach((j, column) => {
      const value = pairDistance(detail, i, j), colour = scaleColour(value / largest);
      const x = margin + column * cell, y = margin + row * cell;
      svg.append(drawn("rect", { x, y, width: cell, height: cell, fill: `rgb(${colour})`, "shape-rendering": "crispEdges" }));
      if (n <= 12 && i !== j) {
        const light = 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2] > 115;
        svg.append(drawn("text", {
          x: x + cell / 2, y: y + cell / 2, "text-anchor": "middle", "dominant-baseline": "central", "font-size": 10.5,
          style: `fill: ${light ? "#000" : "#fff"}`,
        }, value < 0.0005 ? "0" : value.toFixed(value < 0.995 ? 2 : 1).replace(/^0/, "")));
      }
    });
  });
  // Every class is a run of the order, and so a square; those of one sample are left without a frame.
  let start = 0;
  for (let row = 1; row <= n; row++) {
    if (row < n && place[detail.order[row]] === place[detail.order[start]]) continue;
    const at = margin + start * cell, wide = (row - start) * cell;
    for (const look of row - start > 1 ? [{ stroke: "#fff", "stroke-width": 3.5 }, { stroke: "#000", "stroke-width": 1.2 }] : []) {
      svg.append(drawn("rect", { x: at, y: at, width: wide, height: wide, fill: "none", ...look }));
    }
    start = row;
  }
  svg.append(frame);
  let at = [0, 0];
  const select = (row, column) => {
    at = [row, column].map((k) => Math.min(Math.max(k, 0), n - 1));
    const [i, j] = at.map((k) => detail.order[k]);
    filled(frame, { x: margin + at[1] * cell, y: margin + at[0] * cell, visibility: "visible" }, []);
    readout.textContent = i === j ? sampleName(detail, i) : `${sampleName(detail, i)} – ${sampleName(detail, j)}: ${number(pairDistance(detail, i, j), 4)}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), unit = (margin + size + 2) / box.width;
    const row = Math.floor(((event.clientY - box.top) * unit - margin) / cell);
    const column = Math.floor(((event.clientX - box.left) * unit - margin) / cell);
    if (row >= 0 && column >= 0 && row < n && column < n) select(row, column);
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    select(at[0] + step[0], at[1] + step[1]);
  });
  const bar = element("i");
  bar.style.background = `linear-gradient(to right, ${SCALE.map((c) => `rgb(${c})`)})`;
  return drawing("heatmap", "Distances", svg, 0, false, element("p", { class: "scale" }, "0", bar, number(largest)), readout,
    element("p", { class: "note" }, "Samples in the order of the merge tree; frames are classes of several samples."));
}

function spanningTree(detail) {
  const unit = 24, xs = detail.at.map((p) => p[0] * unit), ys = detail.at.map((p) => p[1] * unit);
  const pad = 34, left = Math.min(...xs) - pad, top = Math.min(...ys) - pad;
  const width = Math.max(Math.max(...xs) - left + pad, 200), height = Math.max(...ys) - top + pad;
  const shift = (width - (Math.max(...xs) - Math.min(...xs))) / 2 - pad;
  const svg = drawn("svg", { viewBox: `${left - shift} ${top} ${width} ${height}`, role: "img", "aria-label": "Minimum spanning tree of the samples" });
  svg.style.maxWidth = `${Math.max(width * 1.4, 200)}px`;
  const labels = [];
  for (const [weight, i, j, within] of detail.edges) {
    const look = within ? { stroke: "var(--ink)", "stroke-width": 3 } : { stroke: "var(--muted)", "stroke-width": 1.2, "stroke-dasharray": "4 3" };
    svg.append(drawn("line", { x1: xs[i], y1: ys[i], x2: xs[j], y2: ys[j], class: within ? "within" : "beyond", ...look },
      drawn("title", {}, `${i} – ${j}: ${number(weight, 4)}${within ? ", within the radius" : ""}`)));
    if (detail.edges.length <= MANY) {
      labels.push(drawn("text", { x: (xs[i] + xs[j]) / 2, y: (ys[i] + ys[j]) / 2, "text-anchor": "middle", "dominant-baseline": "central", "font-size": 8.5, class: "halo" },
        weight < 0.0005 ? "≈0" : weight.toFixed(3).replace(/^0/, "")));
    }
  }
  svg.append(...labels);
  detail.at.forEach((_, i) => {
    const filledIn = classColour(detail, classOf(detail)[i]) !== "var(--paper)";
    svg.append(drawn("g", { class: "node", transform: `translate(${xs[i]} ${ys[i]})` },
      mark(detail, i, 10), drawn("title", {}, sampleName(detail, i)),
      drawn("text", { "text-anchor": "middle", "dominant-baseline": "central", "font-size": 10, style: filledIn ? "fill: var(--paper); font-weight: 600" : "" }, String(i))));
  });
  return drawing("tree", "Minimum spanning tree", svg, width, detail.edges.length > MANY, legend(detail),
    element("p", { class: "note" }, `Edges within the radius ${number(detail.eps, 4)} are thick and make the classes; the others are broken lines.`));
}

function legend(detail) {
  const items = [];
  const icon = (shape) => drawn("svg", { width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": "true" }, shape);
  const outline = { stroke: "var(--ink)", "stroke-width": 1.2 };
  if (detail.passed !== null) {
    items.push([icon(drawn("circle", { r: 5.5, fill: "none", ...outline })), "passed"]);
    items.push([icon(drawn("rect", { x: -5, y: -5, width: 10, height: 10, fill: "none", ...outline })), "failed"]);
  }
  detail.classes.forEach((members, place) => {
    if (classColour(detail, place) === "var(--paper)") return;
    items.push([icon(drawn("circle", { r: 6, fill: classColour(detail, place) })), `class ${className(place)} (${members.length})`]);
  });
  return element("ul", { class: "legend" }, ...items.map((parts) => element("li", {}, ...parts)));
}

// Single linkage: the height of a bar is the radius from which on its two sides are one class.
function mergeTree(detail) {
  const n = detail.order.length, step = Math.max(30, 300 / n), left = 46, top = 16, height = 230;
  const width = left + n * step + 8, weights = detail.merges.map((m) => m[2]);
  const low = Math.floor(Math.log10(Math.min(...weights, detail.eps, data.range[0])));
  const high = Math.ceil(Math.log10(Math.max(...weights, detail.eps, data.range[1])) - 1e-9);
  const y = (value) => top + height * (1 - (Math.log10(value) - low) / (high - low));
  const floor = top + height + 14;
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${floor + 30}`, role: "img", "aria-label": "Merge tree of the samples" });
  svg.append(drawn("rect", { x: left, y: y(data.range[1]), width: width - left, height: y(data.range[0]) - y(data.range[1]), fill: "var(--band)" }));
  for (let power = low; power <= high; power++) {
    svg.append(drawn("line", { x1: left, x2: width, y1: y(10 ** power), y2: y(10 ** power), stroke: "var(--grid)" }));
    svg.append(drawn("text", { x: left - 6, y: y(10 ** power), "text-anchor": "end", "dominant-baseline": "central", "font-size": 11, class: "muted" },
      power >= -3 ? String(Number((10 ** power).toFixed(3))) : `1e${power}`));
  }
  const xs = [], ys = [];
  detail.order.forEach((i, k) => { xs[i] = left + (k + 0.5) * step; ys[i] = floor; });
  detail.merges.forEach(([a, b, weight], k) => {
    const within = detail.edges[k][3], level = y(weight);
    svg.append(drawn("path", {
      d: `M${xs[a]} ${ys[a]}V${level}H${xs[b]}V${ys[b]}`, fill: "none", class: "merge",
      stroke: within ? "var(--ink)" : "var(--muted)", "stroke-width": within ? 2.4 : 1.3,
    }, drawn("title", {}, `merge at ${number(weight, 4)}`)));
    xs[n + k] = (xs[a] + xs[b]) / 2;
    ys[n + k] = level;
  });
  detail.order.forEach((i) => {
    svg.append(drawn("g", { transform: `translate(${xs[i]} ${floor})` }, mark(detail, i, 5), drawn("title", {}, sampleName(detail, i)),
      drawn("text", { y: 19, "text-anchor": "middle", "font-size": 12 }, String(i))));
  });
  svg.append(drawn("line", { x1: left, x2: width, y1: y(detail.eps), y2: y(detail.eps), stroke: "var(--red)", "stroke-width": 1.8, "stroke-dasharray": "6 3", class: "radius" }));
  svg.append(drawn("text", { x: width - 3, y: y(detail.eps) - 6, "text-anchor": "end", "font-size": 11.5, class: "halo", style: "fill: var(--red)" }, `radius ${number(detail.eps, 4)}`));
  return drawing("merges", "Merge tree", svg, width, n > MANY,
    element("p", { class: "note" }, `At which distance samples and groups of them join. Shaded: the radii over which multiscale averages, ${data.range[0]} to ${data.range[1]}.`));
}
