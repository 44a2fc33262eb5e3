// The panel beside the graph: the details of the selected node.

const panel = document.getElementById("panel");

function html(tag, attributes = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...inside.flat(Infinity).filter((x) => x !== null && x !== undefined && x !== ""));
  return element;
}
const section = (title, ...inside) => (inside.flat().length ? html("section", {}, html("h3", {}, title), ...inside) : "");
const goTo = (i, content) => html("button", { class: "link", onclick: () => reveal(i) }, content ?? nodes[i].name);
function facts(rows) {
  const there = rows.filter(([, value]) => value !== undefined && value !== "");
  return there.length ? [html("dl", {}, there.map(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]))] : [];
}

function showPanel() {
  const i = state.selected;
  panel.replaceChildren(...(i === 0 ? overview() : details(i)));
  panel.scrollTop = 0;
}

function overview() {
  const { totals } = data;
  return [
    html("h2", {}, data.name),
    html("p", { class: "muted" }, [data.file, data.dialect].filter(Boolean).join(" · ")),
    facts([
      ["Operations", count(totals.operations)],
      ["Parameters", count(totals.parameters)],
      ["Unused", totals.unused_parameters ? count(totals.unused_parameters) : ""],
      ["State", totals.state ? count(totals.state) : ""],
      ["Multiply-adds", count(totals.multiply_adds) + (totals.open_extents ? ", open extents 1" : "")],
    ]),
    ...["input", "output", "state"].map((type) => section(
      `${type[0].toUpperCase()}${type.slice(1)}s`,
      portsOf(type).slice(0, 100).map((i) => html("p", { class: "row" },
        goTo(i, nodes[i].label ?? nodes[i].name), html("span", {}, typed(nodes[i].reads[0]?.[1] ?? nodes[i].writes[0])))),
    )),
    legend(),
    heaviest(0),
    kinds(0),
    section("Largest parameters", largestParameters()),
    data.trimmed ? html("p", { class: "muted" }, "The network is large: attributes and text of some operations are left out.") : "",
  ].flat().filter((x) => x !== "");
}

// The ports of the network, not those of a body within it.
function portsOf(type) {
  const inside = (i) => (nodes[i].by === "ports" ? members[i].flatMap(inside) : [i]);
  return members[0].flatMap(inside).filter((i) => nodes[i].type === type);
}

function largestParameters() {
  const size = (p) => tensors[p.tensor].shape.reduce((a, b) => a * (b ?? 1), 1);
  return [...data.parameters].sort((a, b) => size(b) - size(a)).slice(0, 5).map((p) => parameterCard(p));
}

function legend() {
  const present = new Set(nodes.map((node) => node.family).filter(Boolean));
  return section("Colours", html("ul", { class: "legend" },
    FAMILIES.filter((family) => present.has(family)).map((family) => html("li", { class: family }, html("i"), family))));
}
const FAMILIES = ["product", "activation", "normalization", "pooling", "recurrence", "arithmetic",
  "shape", "quantization", "constant", "other"];

// The members of a group with the largest shares of the measure that colours boxes.
function heaviest(i) {
  const measure = state.colour !== "kind" ? state.colour : measured(0, "multiply_adds") ? "multiply_adds" : "parameters";
  const [title, write] = MEASURES[measure];
  const rows = members[i].filter((j) => measured(j, measure) > 0)
    .sort((a, b) => measured(b, measure) - measured(a, measure)).slice(0, 8);
  const whole = measure === "error" ? largest.error : measured(0, measure);
  return section(title, rows.map((j) => {
    const bar = html("i", { class: "bar" });
    bar.style.setProperty("--part", `${100 * measured(j, measure) / (whole || 1)}%`);
    return html("p", { class: "row barred" }, goTo(j, called(j)),
      html("span", {}, write(measured(j, measure))), bar);
  }));
}

function kinds(i) {
  const found = kindsIn(i);
  const rest = found.slice(10).reduce((sum, [, n]) => sum + n, 0);
  return section("Kinds", facts([...found.slice(0, 10).map(([kind, n]) => [kind, count(n)]), ["others", rest ? count(rest) : ""]]));
}

function details(i) {
  const node = nodes[i];
  const shown = node.type === "group" && node.by === "operation" ? members[i].at(-1) : i;
  const title = node.type === "group" ? (node.kind ?? called(i)) : node.kind ?? node.type;
  const path = ancestors(i).reverse();
  return [
    html("nav", { "aria-label": "Groups around it" }, path.flatMap((j) => [
      goTo(j, j ? called(j) : data.name), html("span", { class: "muted" }, " › ")])),
    html("h2", { class: node.family ?? "" }, node.family ? html("i") : "", title),
    html("p", { class: "name" }, nodes[shown].name),
    node.by === "call" ? html("p", { class: "muted" }, "a call of a fragment of the document") : "",
    node.repeats ? html("p", { class: "muted" }, `${node.repeats} members of the same structure`) : "",
    isGroup(i) ? html("p", {}, html("button", { onclick: () => toggle(i) }, state.open.has(i) ? "Fold" : "Unfold")) : "",
    ...operands(shown),
    shown === i ? "" : section("Parameters", prepared(i, shown)),
    section("Work", facts(work(i))),
    section("Attributes", facts(nodes[shown].attributes ?? [])),
    nodes[shown].place ? section("Document", html("p", { class: "muted" }, nodes[shown].place),
      html("pre", {}, nodes[shown].text),
      nodes[shown].calls?.length ? html("p", { class: "muted" }, `in ${nodes[shown].calls.join(" › ")}`) : "") : "",
    isGroup(i) ? heaviest(i) : "",
    node.type === "group" ? kinds(i) : "",
  ].flat().filter((x) => x !== "");
}

function work(i) {
  const node = nodes[i];
  const rows = [];
  for (const [measure, [title, write]] of Object.entries(MEASURES)) {
    if (node[measure] === undefined || (measure !== "error" && node[measure] === 0)) continue;
    const whole = measure === "error" ? 0 : measured(0, measure);
    const part = whole ? ` · ${(100 * node[measure] / whole).toPrecision(3)} %` : "";
    if (measure === "error" && node.reason) rows.push(["Differs", node.reason]);
    rows.push([title, (measure === "seconds" || measure === "error" ? write(node[measure]) : count(node[measure])) + part]);
  }
  return rows;
}

function operands(i) {
  const node = nodes[i];
  const read = (node.reads ?? []).slice(0, 200).map(([name, operand]) => {
    if (typeof operand === "string") return html("p", { class: "row" }, html("em", {}, name), html("code", {}, operand));
    if (parameterOf.has(operand)) return parameterCard(parameterOf.get(operand), name);
    return tensorRow(operand, name, producerOf.has(operand) ? [producerOf.get(operand)] : []);
  });
  const written = (node.writes ?? []).slice(0, 200).map((t) => tensorRow(t, "", readersOf.get(t) ?? []));
  return [section("Inputs", read), section("Outputs", written)];
}

// The parameters that a group of one operation prepares for it.
function prepared(i, main) {
  const read = new Set((nodes[main].reads ?? []).map(([, t]) => t));
  const behind = new Set(parametersIn(i).map(([, t]) => t).filter((t) => !read.has(t)));
  return [...behind].map((t) => parameterCard(parameterOf.get(t)));
}

function tensorRow(t, name, others) {
  return html("div", { class: "row" },
    name ? html("em", {}, name) : "",
    name && others.length ? goTo(others[0], tensors[t].name) : html("b", {}, tensors[t].name),
    html("span", {}, typed(t)),
    name ? "" : html("small", {}, others.length ? ["read by ", others.slice(0, 8).flatMap((j, n) => [n ? ", " : "", goTo(j, nodes[j].label ?? nodes[j].name)]),
      others.length > 8 ? ` and ${others.length - 8} more` : ""].flat() : ""));
}

function parameterCard(parameter, name) {
  const reader = name ? undefined : nodes.findIndex((node) => node.reads?.some(([, t]) => t === parameter.tensor));
  return html("div", { class: "row" },
    name ? html("em", {}, name) : "",
    reader > 0 ? goTo(reader, parameter.label) : html("b", {}, parameter.label),
    html("span", {}, typed(parameter.tensor)),
    parameter.statistics ? statistics(parameter.statistics) : "",
    values(parameter));
}

function statistics(s) {
  const rows = [["mean", number(s.mean)], ["std", number(s.std)], ["zeros", percent(s.zeros, s.sampled)]];
  if (s.nonfinite) rows.push(["not finite", count(s.nonfinite)]);
  if (s.count === 1) rows.splice(0, 2);
  return html("div", { class: "statistics" },
    s.histogram && s.count > 1 ? histogram(s) : "",
    s.count === 1 ? html("code", {}, number(s.min)) : html("div", { class: "ends" }, html("span", {}, number(s.min)), html("span", {}, number(s.max))),
    s.count > 1 ? html("p", { class: "muted" }, rows.map(([k, v]) => `${k} ${v}`).join(" · "),
      s.sampled < s.count ? ` · of ${short(s.sampled)} sampled` : "") : "");
}
const percent = (n, all) => (all ? `${(100 * n / all).toFixed(n && n < all ? 1 : 0)} %` : "–");

function histogram(s) {
  const most = Math.max(...s.histogram);
  const [width, height] = [288, 36];
  const step = width / s.histogram.length;
  const bars = s.histogram.map((n, k) => {
    const tall = n ? Math.max(1, height * n / most) : 0;
    return make("rect", { x: k * step + 0.5, y: height - tall, width: Math.max(1, step - 1), height: tall });
  });
  return make("svg", { class: "histogram", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none",
    role: "img", "aria-label": `histogram from ${number(s.min)} to ${number(s.max)}` }, ...bars);
}
