// Computes the places of boxes and edges. Each open group is laid out by itself, with ports where
// edges enter and leave it. It is then a box among the members of the group around it. The layout
// goes down. For one that goes across, boxes have width and height swapped, and so have the results.

const HEAD = 34;    // of an open group, above its members
const PAD = 18;
const canvas = document.createElement("canvas").getContext("2d");
const SANS = getComputedStyle(document.body).fontFamily;
const FONTS = { title: `600 13px ${SANS}`, text: `11px ${SANS}` };
const FAR = 24 / 13;  // how much larger titles are from afar
const widths = new Map();

function widthOf(text, font) {
  const key = font + text;
  if (!widths.has(key)) {
    canvas.font = FONTS[font];
    widths.set(key, canvas.measureText(text).width);
  }
  return widths.get(key);
}

// The start of a text that fits into a width.
function fitted(text, font, most) {
  text = [...text.slice(0, 400)].map((c) => (c < " " ? " " : c)).join("");
  if (widthOf(text, font) <= most) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (widthOf(`${text.slice(0, middle)}…`, font) <= most) low = middle; else high = middle - 1;
  }
  return `${text.slice(0, low)}…`;
}

// The lines of a box, and its size.
const boxes = new Map();
function boxOf(i) {
  if (!boxes.has(i)) boxes.set(i, measure(i));
  return boxes.get(i);
}
function measure(i) {
  const node = nodes[i];
  const most = 230;
  const plain = node.type === "group" && node.by !== "operation";
  const port = !["group", "operation"].includes(node.type);
  const title = fitted(plain ? called(i) : port ? node.label ?? node.name : node.kind, "title", most);
  const lines = [];
  if (plain) {
    lines.push(node.by === "ports" ? node.name : `${count(node.operations)} operations`);
  } else if (port) {
    lines.push(typed(node.reads[0]?.[1] ?? node.writes[0]));
  } else {
    lines.push(called(i));
    const read = parametersIn(i).map(([, t]) => shape(t)).filter((s) => s !== "scalar");
    if (read.length) lines.push([...new Set(read)].join(", "));
  }
  const texts = lines.map((line) => fitted(line, "text", most));
  const badge = node.repeats ? `×${node.repeats}` : isGroup(i) ? String(members[i].length) : "";
  const extra = badge ? widthOf(badge, "text") + 22 : 0;
  const needed = Math.max(widthOf(title, "title") + extra, ...texts.map((t) => widthOf(t, "text"))) + 35;
  const width = Math.max(Math.ceil(needed), port ? 70 : 112);
  return {
    title, texts, badge, plain, port, width,
    // Zoomed out, only the start of the title is shown, in larger type.
    short: fitted(plain && /^\d+$/.test(node.label) ? node.label : title, "title", (width - (port ? 16 : 26)) / FAR),
    height: 30 + 15 * texts.length + (plain ? 5 : 0),
  };
}
// The parameters that an operation reads, and those that its preparing operations read.
function parametersIn(i) {
  const inside = nodes[i].type === "group" ? members[i] : [i];
  return inside.flatMap((j) => (nodes[j].reads ?? []).filter(([, t]) => parameterOf.has(t)));
}

// Returns the layout of the root: members with x, y, width, height, and for open groups their own
// layout; edges with points. All coordinates are relative to the containing group.
function layout() {
  const drawn = drawnFor();
  const links = new Map();  // of each open group the edges between members and ports
  const link = (group, from, to, edge, source) => {
    if (!links.has(group)) links.set(group, new Map());
    const key = `${from}|${to}|${source}`;
    const known = links.get(group).get(key);
    if (known) known.tensors.add(edge.tensor);
    else links.get(group).set(key, { from, to, source, back: edge.back, tensors: new Set([edge.tensor]) });
  };
  for (const edge of edges) {
    // An edge back to a state is laid out as if it went forwards.
    const [first, last] = edge.back ? [edge.to, edge.from] : [edge.from, edge.to];
    const [u, v] = [drawn[first], drawn[last]];
    if (u === v) continue;
    const source = edge.back ? `back ${u}` : String(u);
    const around = new Set(ancestors(v));
    let [from, a] = [u, nodes[u].parent];
    for (; !around.has(a); [from, a] = [a, nodes[a].parent]) link(a, from, `out ${source}`, edge, source);
    let [to, b] = [v, nodes[v].parent];
    for (; b !== a; [to, b] = [b, nodes[b].parent]) link(b, `in ${source}`, to, edge, source);
    link(a, from, to, edge, source);
  }
  const found = laidOut(0, links);
  return state.across ? turned(found) : found;
}

const flip = ({ x, y }) => ({ x: y, y: x });
function turned(found) {
  return {
    ...found, width: found.height, height: found.width,
    boxes: found.boxes.map((box) => ({
      ...box, ...flip(box), width: box.height, height: box.width, inside: box.inside && turned(box.inside) })),
    lines: found.lines.map((line) => ({ ...line, points: line.points.map(flip) })),
  };
}

function laidOut(group, links) {
  const graph = new dagre.graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: "TB", nodesep: 30, edgesep: 16, ranksep: state.across ? 112 : 40, marginx: 0, marginy: 0 });
  const inner = new Map();
  for (const i of members[group]) {
    const inside = state.open.has(i) ? laidOut(i, links) : null;
    if (inside) inner.set(i, inside);
    const { width, height } = inside ?? boxOf(i);
    graph.setNode(String(i), !inside && state.across ? { width: height, height: width } : { width, height });
  }
  const here = [...(links.get(group)?.values() ?? [])];
  here.forEach((edge, n) => {
    for (const end of [edge.from, edge.to]) {
      if (typeof end === "string" && !graph.hasNode(end)) {
        // Ports are moved to the border of the group.
        graph.setNode(end, { width: 2, height: 2 });
        const rim = end.startsWith("in") ? "rim in" : "rim out";
        graph.setNode(rim, { width: 2, height: 2 });
        graph.setEdge(...(rim === "rim in" ? [rim, end] : [end, rim]), { weight: 8 }, "rim");
      }
    }
    graph.setEdge(String(edge.from), String(edge.to), { weight: edge.back ? 1 : 2 }, String(n));
  });
  dagre.layout(graph);
  return placed(group, graph, here, inner);
}

// Takes the places from dagre without its margins, which would make the group too large.
function placed(group, graph, here, inner) {
  const boxesHere = members[group].map((i) => ({ i, ...graph.node(String(i)), inside: inner.get(i) }));
  const lines = here.map((edge, n) => (
    { ...edge, points: graph.edge(String(edge.from), String(edge.to), String(n)).points }));
  // Dagre's points between ranks bend an edge. Within a rank it goes straight down beside the boxes,
  // however tall they are.
  const tall = new Map();
  for (const { y, height } of boxesHere) {
    tall.set(Math.round(y), Math.max(height, tall.get(Math.round(y)) ?? 0));
  }
  for (const line of lines) {
    line.points = line.points.slice(1, -1).flatMap(({ x, y }) => {
      const half = (tall.get(Math.round(y)) ?? 0) / 2;
      return half ? [{ x, y: y - half }, { x, y: y + half }] : [];
    });
  }
  let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const { x, y, width, height } of boxesHere) {
    [left, right] = [Math.min(left, x - width / 2), Math.max(right, x + width / 2)];
    [top, bottom] = [Math.min(top, y - height / 2), Math.max(bottom, y + height / 2)];
  }
  for (const { points } of lines) {
    for (const { x } of points) [left, right] = [Math.min(left, x - 8), Math.max(right, x + 8)];
  }
  const pad = group === 0 ? 0 : PAD;
  const head = group === 0 ? 0 : HEAD;
  const title = group === 0 ? 0 : Math.min(2 * widthOf(boxOf(group).title, "title") + 84, 300);
  const { across } = state;  // then the head is beside, before the group is turned
  const width = across ? right - left + 2 * pad + head : Math.max(right - left + 2 * pad, title);
  const height = across ? Math.max(bottom - top + 2 * pad, title) : bottom - top + 2 * pad + head;
  const dx = across ? pad + head - left : (width - (right - left)) / 2 - left;
  const dy = across ? (height - (bottom - top)) / 2 - top : pad + head - top;
  const move = (p) => ({ x: p.x + dx, y: p.y + dy });
  const ports = new Map();
  for (const line of lines) {
    line.points = line.points.map(move);
    if (typeof line.from === "string") ports.set(line.from, move(graph.node(line.from)).x);
    if (typeof line.to === "string") ports.set(line.to, move(graph.node(line.to)).x);
  }
  const found = boxesHere.map((box) => ({ ...box, ...move(box) }));
  const boxAt = new Map(found.map((box) => [box.i, box]));
  // The edges of a small box beside a tall one first pass the tall one.
  const beside = (it, { x }, side) => {
    const box = boxAt.get(it);
    const spare = box ? tall.get(Math.round(box.y - dy)) - box.height : 0;
    return spare > 40 ? [{ x, y: box.y + side * (box.height + spare) / 2 }] : [];
  };
  // An edge ends in the middle of a box, or at the port of an open group.
  const end = (it, y, port) => {
    if (typeof it === "string") return { x: ports.get(it), y: it.startsWith("in") ? 0 : height };
    const box = boxAt.get(it);
    const x = box.inside?.ports.get(port);
    return { x: x === undefined ? box.x : box.x - box.width / 2 + x, y: box.y - y * box.height / 2 };
  };
  for (const line of lines) {
    const [first, last] = [end(line.from, -1, `out ${line.source}`), end(line.to, 1, `in ${line.source}`)];
    line.points = [first, ...beside(line.from, first, 1), ...line.points, ...beside(line.to, last, -1), last];
  }
  return { boxes: found, lines, ports, width, height };
}
