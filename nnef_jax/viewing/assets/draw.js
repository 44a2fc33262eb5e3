// Draws a layout as SVG, and stores the elements of each node.

const svg = document.getElementById("graph");
const scene = make("g", { class: "scene" });
const drawnBoxes = new Map();  // of each node that is drawn: its element, and where it is
const drawnLines = [];
svg.append(make("defs", {}, arrow("arrow"), arrow("arrow-on")), scene);

function make(tag, attributes = {}, ...inside) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...inside.filter((x) => x !== null));
  return element;
}
function text(content, attributes) {
  const element = make("text", attributes);
  element.textContent = content;
  return element;
}
function arrow(id) {
  const shape = make("path", { d: "M1,1 L7,4 L1,7", class: id });
  const size = { viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8 };
  return make("marker", { id, ...size, orient: "auto-start-reverse", markerUnits: "userSpaceOnUse" }, shape);
}

function draw(found) {
  drawnBoxes.clear();
  drawnLines.length = 0;
  scene.replaceChildren();
  drawInto(scene, found, 0, 0, 0);
  scene.dataset.width = found.width;
  scene.dataset.height = found.height;
}

function drawInto(parent, found, left, top, depth) {
  const [under, over, labels] = [make("g"), make("g"), make("g", { class: "extents" })];
  parent.append(under, over, labels);
  for (const line of found.lines) {
    const path = make("path", { d: curve(line.points), class: line.back ? "edge back" : "edge" });
    if (line.back && ends(line.from)) path.setAttribute("marker-start", "url(#arrow)");
    if (!line.back && ends(line.to)) path.setAttribute("marker-end", "url(#arrow)");
    under.append(path);
    drawnLines.push({ ...line, path });
  }
  drawShapes(labels, found);
  for (const box of found.boxes) {
    const at = { left: left + box.x - box.width / 2, top: top + box.y - box.height / 2 };
    const element = box.inside ? openGroup(box) : closedBox(box);
    element.setAttribute("transform", `translate(${box.x - box.width / 2},${box.y - box.height / 2})`);
    over.append(element);
    drawnBoxes.set(box.i, { element, ...at, width: box.width, height: box.height });
    if (box.inside) drawInto(element, box.inside, at.left, at.top, depth + 1);
  }
}

// Whether an edge ends at this node: at a port or an open group another edge continues it.
const ends = (end) => typeof end !== "string" && !state.open.has(end);

// The shape of each tensor that leaves a box, once, below the box.
function drawShapes(parent, found) {
  const seen = new Set();
  for (const { from, to, points, tensors: carried, back } of found.lines) {
    const key = `${from}|${Math.round(state.across ? points[0].y : points[0].x)}`;
    if (typeof from === "string" || typeof to === "string" || seen.has(key) || back) continue;
    seen.add(key);
    const shapes = new Set([...carried].map(shape));
    const label = shapes.size === 1 ? [...shapes][0] : `${carried.size} tensors`;
    const at = state.across ? { x: points[0].x + 8, y: points[0].y - 5 } : { x: points[0].x + 7, y: points[0].y + 15 };
    parent.append(text(fitted(label, "text", state.across ? 98 : 150), { ...at, class: "extent" }));
  }
}

// A smooth curve down (or across) through points, monotonic between two of them.
function curve(points) {
  if (state.across) points = points.map(flip);
  const at = (x, y) => (state.across ? `${round(y)},${round(x)}` : `${round(x)},${round(y)}`);
  const slopes = points.map((p, i) => {
    if (i === 0 || i === points.length - 1) return 0;
    const [a, b] = [points[i - 1], points[i + 1]];
    return (p.x - a.x) * (b.x - p.x) <= 0 ? 0 : (b.x - a.x) / (b.y - a.y || 1);
  });
  let path = `M${at(points[0].x, points[0].y)}`;
  for (let i = 1; i < points.length; i++) {
    const [p, q] = [points[i - 1], points[i]];
    const third = (q.y - p.y) / (slopes[i - 1] || slopes[i] ? 3 : 2);
    path += `C${at(p.x + slopes[i - 1] * third, p.y + third)} ${at(q.x - slopes[i] * third, q.y - third)} ${at(q.x, q.y)}`;
  }
  return path;
}
const round = (x) => Math.round(x * 10) / 10;

function described(i) {
  const node = nodes[i];
  const out = (node.writes ?? []).map((t) => `${tensors[t].name} ${typed(t)}`).join(", ");
  if (node.by === "ports") return `group ${node.label}`;
  if (node.type === "group") return `group ${node.label}, ${count(node.operations)} operations`;
  return `${node.kind ?? node.type} ${node.name}${out ? `, ${out}` : ""}`;
}

function element(i, name, box) {
  const node = nodes[i];
  const found = make("g", {
    class: `box ${name} ${node.family ?? ""}`, role: "button", tabindex: -1, "data-i": i,
    "aria-label": described(i),
  });
  if (isGroup(i)) found.setAttribute("aria-expanded", state.open.has(i));
  const hint = make("title");
  hint.textContent = node.type === "group" ? node.name : described(i);
  found.append(hint);
  if (!box.inside) colourBox(found, i);
  return found;
}

function colourBox(found, i) {
  const measure = state.colour;
  if (measure === "kind" || nodes[i][measure] === undefined) return;
  const most = Math.max(largest[measure], ...[...state.open].flatMap((g) => members[g])
    .filter((j) => !state.open.has(j)).map((j) => measured(j, measure)));
  found.classList.add("heat");
  found.style.setProperty("--heat", `${Math.round(85 * heat(measured(i, measure), most))}%`);
}
// Between 0 and 1. A square root separates small shares; errors need a logarithmic scale.
function heat(x, most) {
  if (!(most > 0 && x > 0)) return 0;
  return state.colour === "error" ? Math.max(0, 1 + Math.log10(x / most) / 6) : Math.sqrt(x / most);
}

function closedBox(box) {
  const { title, texts, badge, plain, port } = boxOf(box.i);
  const { width, height } = box;
  const name = port ? `port ${nodes[box.i].type}` : plain ? "group" : "operation";
  const found = element(box.i, name, box);
  if (isGroup(box.i)) {
    found.append(make("rect", { class: "behind", x: 4, y: 4, width, height, rx: 9 }));
  }
  const radius = port ? Math.min(22, height / 2) : 9;
  found.append(make("rect", { class: "card", width, height, rx: radius }));
  if (!plain && !port) found.append(make("rect", { class: "stripe", x: 8, y: 11, width: 3, height: height - 22, rx: 1.5 }));
  const middle = port ? { x: width / 2, "text-anchor": "middle" } : { x: plain ? 15 : 20 };
  found.append(text(title, { ...middle, y: 20, class: "title" }));
  found.append(text(boxOf(box.i).short, { ...middle, y: height / 2 + 8, class: "short" }));
  texts.forEach((line, n) => found.append(text(line, { ...middle, y: 36 + 15 * n, class: n ? "text faint" : "text" })));
  if (badge) found.append(...badged(badge, width, nodes[box.i].repeats));
  if (plain) found.append(...share(box.i, width, height));
  return found;
}

function badged(badge, width, repeats) {
  const size = widthOf(badge, "text") + 12;
  return [
    make("rect", { class: repeats ? "badge repeats" : "badge", x: width - size - 9, y: 8, width: size, height: 16, rx: 8 }),
    text(badge, { x: width - size / 2 - 9, y: 20, class: "badge-text", "text-anchor": "middle" }),
  ];
}

// The group's share of the multiply-adds, or of the parameters if there are no multiply-adds.
function share(i, width, height) {
  const by = state.colour !== "kind" && state.colour !== "error" ? state.colour
    : measured(0, "multiply_adds") ? "multiply_adds" : "parameters";
  const part = measured(0, by) ? measured(i, by) / measured(0, by) : 0;
  const bar = { x: 15, y: height - 9, height: 3, rx: 1.5 };
  return [
    make("rect", { class: "bar", ...bar, width: width - 30 }),
    make("rect", { class: "part", ...bar, width: Math.max(part > 0 ? 1.5 : 0, (width - 30) * part) }),
  ];
}

function openGroup(box) {
  const { width, height } = box;
  const node = nodes[box.i];
  const found = element(box.i, "open", box);
  const label = node.type === "group" && node.by !== "operation" ? called(box.i) : node.kind;
  found.append(
    make("rect", { class: "frame", width, height, rx: 12 }),
    text(fitted(label, "title", width - 60), { x: 30, y: 22, class: "title" }),
    text(fitted(label, "title", (width - 44) / FAR), { x: 30, y: 27, class: "short" }),
    make("path", { class: "fold", d: "M14,14 l5,5 l5,-5" }),
  );
  if (node.repeats) found.append(...badged(`×${node.repeats}`, width, true));
  return found;
}
