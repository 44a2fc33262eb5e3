// The network: nodes in a tree of groups, and edges between nodes that are not groups. Nodes and
// tensors are indices. A parent comes before its members.

const data = JSON.parse(document.getElementById("data").textContent);
const { nodes, tensors } = data;

const members = nodes.map(() => []);
nodes.forEach((node, i) => { if (i) members[node.parent].push(i); });
const parameterOf = new Map(data.parameters.map((parameter) => [parameter.tensor, parameter]));
const producerOf = new Map();
nodes.forEach((node, i) => { for (const t of node.writes ?? []) producerOf.set(t, i); });

// Edges from producer to reader; `back` is set for the update of a state.
const edges = [];
nodes.forEach((node, i) => {
  if (!isGroup(i)) {
    const read = new Set((node.reads ?? []).map(([, t]) => t));
    for (const t of read) {
      if (producerOf.has(t)) edges.push({ from: producerOf.get(t), to: i, tensor: t, back: false });
    }
  }
  if (node.update !== undefined && producerOf.has(node.update)) {
    edges.push({ from: producerOf.get(node.update), to: i, tensor: node.update, back: true });
  }
});
const readersOf = new Map();
for (const edge of edges) {
  if (!readersOf.has(edge.tensor)) readersOf.set(edge.tensor, []);
  readersOf.get(edge.tensor).push(edge.to);
}

// The state of the page: open groups, the selected node, the measure that colours boxes.
const state = { open: new Set([0, ...data.open]), selected: 0, colour: "kind", across: false };

function isGroup(i) {
  return members[i].length > 0 || nodes[i].type === "group";
}

function ancestors(i) {
  const found = [];
  for (let p = nodes[i].parent; p !== null; p = nodes[p].parent) found.push(p);
  return found;
}

// For each node the one that is drawn for it: itself, or the outermost closed group around it.
function drawnFor() {
  const drawn = new Array(nodes.length);
  drawn[0] = 0;
  for (let i = 1; i < nodes.length; i++) {
    const p = nodes[i].parent;
    drawn[i] = drawn[p] === p && state.open.has(p) ? i : drawn[p];
  }
  return drawn;
}

// Names in links: the first node of several with one name has the bare name.
const named = new Map();
nodes.forEach((node, i) => { if (!named.has(node.name)) named.set(node.name, i); });
function linkOf(i) {
  return i === 0 ? "" : encodeURIComponent(named.get(nodes[i].name) === i ? nodes[i].name : `@${i}`);
}
function linked(link) {
  let name = "";
  try { name = decodeURIComponent(link); } catch { return undefined; }
  if (named.has(name)) return named.get(name);
  const i = /^@\d+$/.test(name) ? Number(name.slice(1)) : NaN;
  return i < nodes.length ? i : undefined;
}

// The short name of a node, which is more than a number.
function called(i) {
  const node = nodes[i];
  if (node.label === undefined || node.by === "operation") {
    return node.module || (node.label ?? node.name).split(/\/|__/).findLast(Boolean) || node.name;
  }
  const outer = nodes[node.parent]?.label;
  return /^\d+$/.test(node.label) && node.parent ? `${outer}.${node.label}` : node.label;
}

// Numbers and shapes as text.
const count = (n) => n.toLocaleString("en");
function short(n) {
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (n >= size) return `${Number((n / size).toPrecision(3))} ${unit}`;
  }
  return String(n);
}
function duration(s) {
  if (s === 0) return "0 s";
  if (s >= 1) return `${s.toPrecision(3)} s`;
  return s >= 1e-3 ? `${(s * 1e3).toPrecision(3)} ms` : `${(s * 1e6).toPrecision(3)} µs`;
}
const number = (x) => (x === null || x === undefined ? "–" : Number(x.toPrecision(4)).toString());
const shape = (t) => (tensors[t].shape ? tensors[t].shape.map((n) => n ?? "?").join("×") || "scalar" : "?");
const typed = (t) => `${tensors[t].dtype} ${shape(t)}`;

// Measures that can colour boxes: for each its name, whether it is present, and its text.
const MEASURES = {
  multiply_adds: ["Multiply-adds", short],
  parameters: ["Parameters", short],
  seconds: ["Time", duration],
  error: ["Error", number],
};
const measured = (i, measure) => nodes[i][measure] ?? 0;
const largest = {};
for (const measure of Object.keys(MEASURES)) {
  largest[measure] = nodes.reduce((most, node, i) =>
    (node.type === "operation" ? Math.max(most, measured(i, measure)) : most), 0);
}

function kindsIn(i) {
  const found = new Map();
  const pending = [i];
  while (pending.length) {
    const j = pending.pop();
    if (nodes[j].type === "operation") found.set(nodes[j].kind, (found.get(nodes[j].kind) ?? 0) + 1);
    if (nodes[j].type === "group") pending.push(...members[j]);
  }
  return [...found].sort((a, b) => b[1] - a[1]);
}
