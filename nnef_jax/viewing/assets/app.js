// Handles the user's actions: selecting, folding, moving, keys, dark mode, links.

const $ = (id) => document.getElementById(id);
let found = null;                            // the layout
const sight = { x: 0, y: 0, scale: 1 };      // where the scene is in the window

// --- what is drawn ---

function redraw() {
  found = layout();
  draw(found);
  mark();
}

function mark() {
  for (const [i, { element }] of drawnBoxes) {
    const on = i === state.selected;
    element.classList.toggle("selected", on);
    element.setAttribute("tabindex", on ? 0 : -1);
  }
  const at = state.selected && drawnFor()[state.selected];
  for (const line of drawnLines) {
    const ends = [line.from, line.to, Number(line.source.replace("back ", ""))];
    const on = at !== 0 && ends.includes(at);
    line.path.classList.toggle("on", on);
    for (const end of ["marker-start", "marker-end"]) {
      if (line.path.hasAttribute(end)) line.path.setAttribute(end, on ? "url(#arrow-on)" : "url(#arrow)");
    }
  }
}

function select(i, { focus = true } = {}) {
  state.selected = i;
  mark();
  showPanel();
  // A notebook's frame has no address of its own.
  if (location.protocol !== "about:") history.replaceState(null, "", i ? `#${linkOf(i)}` : location.pathname + location.search);
  $("said").textContent = i ? described(i) : data.name;
  const box = drawnBoxes.get(i);
  drawMap();
  if (focus) (box?.element ?? svg).focus({ preventScroll: true });
}

// Unfolds the groups around a node, selects it and moves it into view.
function reveal(i) {
  const around = ancestors(i).filter((j) => !state.open.has(j));
  for (const j of around) state.open.add(j);
  if (around.length) redraw();
  select(i);
  if (i) bringIntoSight(i);
}

function toggle(i) {
  if (!isGroup(i) || i === 0) return;
  const before = drawnBoxes.get(i);
  const place = before && [before.left * sight.scale + sight.x, before.top * sight.scale + sight.y];
  if (!state.open.delete(i)) state.open.add(i);
  redraw();
  const after = drawnBoxes.get(i);
  if (place && after) {  // the group stays where it was
    [sight.x, sight.y] = [place[0] - after.left * sight.scale, place[1] - after.top * sight.scale];
    look();
  }
  select(i);
  if (after) bringIntoSight(i);
}

function foldAll() {
  state.open = new Set([0]);
  redraw();
  select(0);
  fit();
}

// Unfolds groups level by level, while the page stays fast.
const MOST_DRAWN = 500;
function unfoldMore() {
  const closed = [...drawnBoxes.keys()].filter((i) => isGroup(i) && !state.open.has(i) && nodes[i].by !== "operation");
  const depth = Math.min(...closed.map((i) => ancestors(i).length));
  let drawn = drawnBoxes.size;
  for (const i of closed.filter((j) => ancestors(j).length === depth)) {
    drawn += members[i].length;
    if (drawn > MOST_DRAWN) break;
    state.open.add(i);
  }
  redraw();
  fit();
}

// --- where the scene is ---

// Text of less than 7.5 pixels is not drawn; titles are drawn larger instead.
const READABLE = 7.5;
const FARTHEST = READABLE / 24;
function look() {
  const { x, y, scale } = sight;
  scene.setAttribute("transform", `translate(${x},${y}) scale(${scale})`);
  svg.classList.toggle("far", 10.5 * scale < READABLE);
  svg.classList.toggle("farthest", scale < FARTHEST);
  drawMap();
}

// The overview: all boxes, and the part that is in view.
const map = $("map").getContext("2d");
function drawMap() {
  const { width, height } = svg.getBoundingClientRect();
  const all = found.width * sight.scale <= width && found.height * sight.scale <= height;
  $("map").hidden = all && sight.x >= 0 && sight.y >= 0;
  if ($("map").hidden) return;
  const { width: w, height: h } = $("map");
  const part = Math.min(w / found.width, h / found.height);
  const { color, caretColor } = getComputedStyle($("map"));
  map.clearRect(0, 0, w, h);
  map.setTransform(part, 0, 0, part, (w - found.width * part) / 2, (h - found.height * part) / 2);
  for (const [i, box] of drawnBoxes) {
    map.fillStyle = i === state.selected ? caretColor : color;
    map.globalAlpha = state.open.has(i) ? 0.25 : 1;
    map.fillRect(box.left, box.top, Math.max(box.width, 2 / part), Math.max(box.height, 2 / part));
  }
  map.globalAlpha = 1;
  map.strokeStyle = caretColor;
  map.lineWidth = 2 / part;
  map.strokeRect(-sight.x / sight.scale, -sight.y / sight.scale, width / sight.scale, height / sight.scale);
  map.setTransform(1, 0, 0, 1, 0, 0);
}
function goThere({ clientX, clientY, buttons }) {
  if (!buttons) return;
  const { width, height } = svg.getBoundingClientRect();
  const { left, top, width: w, height: h } = $("map").getBoundingClientRect();
  const part = Math.min(w / found.width, h / found.height);
  sight.x = width / 2 - sight.scale * (clientX - left - (w - found.width * part) / 2) / part;
  sight.y = height / 2 - sight.scale * (clientY - top - (h - found.height * part) / 2) / part;
  look();
}
for (const kind of ["pointerdown", "pointermove"]) $("map").addEventListener(kind, goThere);
addEventListener("resize", look);

function fit(least = FARTHEST) {
  const { width, height } = svg.getBoundingClientRect();
  const whole = Math.min((width - 48) / found.width, (height - 48) / found.height, 1.25);
  const beside = state.across ? (height - 48) / found.height : (width - 48) / found.width;
  sight.scale = Math.max(whole, Math.min(least, beside));
  sight.x = state.across && whole < sight.scale ? 28 : (width - found.width * sight.scale) / 2;
  sight.y = !state.across && whole < sight.scale ? 28 : (height - found.height * sight.scale) / 2;
  look();
}

function zoom(factor, x, y) {
  const { width, height } = svg.getBoundingClientRect();
  [x, y] = [x ?? width / 2, y ?? height / 2];
  const scale = Math.min(4, Math.max(0.03, sight.scale * factor));
  sight.x = x - (x - sight.x) * scale / sight.scale;
  sight.y = y - (y - sight.y) * scale / sight.scale;
  sight.scale = scale;
  look();
}

function bringIntoSight(i) {
  const box = drawnBoxes.get(i);
  if (!box) return;
  const { width, height } = svg.getBoundingClientRect();
  if (sight.scale < 0.5 && box.height < 200) sight.scale = 0.8;
  const shift = (at, size, room) => {
    const [start, end] = [at * sight.scale, (at + size) * sight.scale];
    return end - start > room - 80 ? 40 - start : (room - start - end) / 2;
  };
  const [x, y] = [shift(box.left, box.width, width), shift(box.top, box.height, height)];
  const outside = (at, size, now, room) => at * sight.scale + now < 24 || (at + size) * sight.scale + now > room - 24;
  if (outside(box.left, box.width, sight.x, width)) sight.x = x;
  if (outside(box.top, box.height, sight.y, height)) sight.y = y;
  look();
}

svg.addEventListener("wheel", (event) => {
  event.preventDefault();
  const { left, top } = svg.getBoundingClientRect();
  if (event.ctrlKey || event.metaKey || !event.shiftKey && Math.abs(event.deltaX) < Math.abs(event.deltaY)) {
    zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), event.clientX - left, event.clientY - top);
  } else {
    sight.x -= event.deltaX || event.deltaY;
    look();
  }
}, { passive: false });

const fingers = new Map();
let moved = 0;
svg.addEventListener("pointerdown", (event) => {
  fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
  moved = 0;
});
svg.addEventListener("pointermove", (event) => {
  const last = fingers.get(event.pointerId);
  if (!last) return;
  const now = { x: event.clientX, y: event.clientY };
  const others = [...fingers].filter(([id]) => id !== event.pointerId).map(([, p]) => p);
  moved += Math.abs(now.x - last.x) + Math.abs(now.y - last.y);
  if (moved > 4 && !svg.hasPointerCapture(event.pointerId)) svg.setPointerCapture(event.pointerId);
  if (others.length) {
    const apart = (p) => Math.hypot(p.x - others[0].x, p.y - others[0].y) || 1;
    const { left, top } = svg.getBoundingClientRect();
    zoom(apart(now) / apart(last), others[0].x - left, others[0].y - top);
  } else {
    sight.x += now.x - last.x;
    sight.y += now.y - last.y;
    look();
  }
  fingers.set(event.pointerId, now);
});
for (const end of ["pointerup", "pointercancel"]) {
  svg.addEventListener(end, (event) => fingers.delete(event.pointerId));
}

const boxAt = (event) => {
  const element = event.target.closest(".box");
  return element ? Number(element.dataset.i) : 0;
};
svg.addEventListener("click", (event) => {
  if (moved > 4) return;
  const i = boxAt(event);
  if (event.target.closest(".fold")) toggle(i); else select(i);
});
svg.addEventListener("dblclick", (event) => { if (boxAt(event)) toggle(boxAt(event)); });

// --- keys ---

const TURNED = { ArrowDown: "ArrowRight", ArrowUp: "ArrowLeft", ArrowRight: "ArrowDown", ArrowLeft: "ArrowUp" };
function along(key) {
  // In a graph from left to right, the directions of keys are swapped like those of boxes.
  if (state.across) key = TURNED[key];
  const turn = (box) => (state.across ? { left: box.top, top: box.left, width: box.height, height: box.width } : box);
  const here = drawnBoxes.has(state.selected) && turn(drawnBoxes.get(state.selected));
  const boxes = [...drawnBoxes].filter(([i]) => i !== state.selected && !state.open.has(i)).map(([i, box]) => [i, turn(box)]);
  if (!here) return boxes.sort(([, a], [, b]) => a.top - b.top)[0]?.[0];
  const centre = (box) => [box.left + box.width / 2, box.top + box.height / 2];
  const [x, y] = centre(here);
  const away = ([, box]) => Math.hypot(centre(box)[0] - x, 2 * (centre(box)[1] - y));
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const side = key === "ArrowLeft" ? -1 : 1;
    return boxes.filter(([, box]) => (centre(box)[0] - x) * side > 8
      && box.top < here.top + here.height && box.top + box.height > here.top)
      .sort((a, b) => away(a) - away(b))[0]?.[0];
  }
  const drawn = drawnFor();
  const inside = (i) => i === state.selected || ancestors(i).includes(state.selected);
  const [near, far] = key === "ArrowDown" ? ["from", "to"] : ["to", "from"];
  const next = new Set(edges.filter((edge) => !edge.back && inside(edge[near]) && !inside(edge[far])).map((edge) => drawn[edge[far]]));
  return boxes.filter(([i]) => next.has(i)).sort((a, b) => away(a) - away(b))[0]?.[0];
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  const { key, target } = event;
  if (target.matches("input, select, dialog *")) return;
  const act = {
    "/": () => $("query").focus(),
    f: () => fit(),
    d: dark,
    h: across,
    p: () => panel.focus(),
    "?": () => $("keys").showModal(),
    "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8),
    Escape: () => select(panel.contains(target) || !state.selected ? state.selected : nodes[state.selected].parent),
  }[key];
  if (act) {
    event.preventDefault();
    act();
  } else if (!svg.contains(target) && target !== document.body) {
    return;  // what has the focus takes these keys itself
  } else if (key.startsWith("Arrow") && event.shiftKey) {
    event.preventDefault();
    const [dx, dy] = { ArrowLeft: [80, 0], ArrowRight: [-80, 0], ArrowUp: [0, 80], ArrowDown: [0, -80] }[key];
    sight.x += dx;
    sight.y += dy;
    look();
  } else if (key.startsWith("Arrow")) {
    event.preventDefault();
    const next = along(key);
    if (next !== undefined) { select(next); bringIntoSight(next); }
  } else if ((key === "Enter" || key === " ") && isGroup(state.selected)) {
    event.preventDefault();
    toggle(state.selected);
  }
});

// --- the bar ---

function dark() {
  const now = document.documentElement.dataset.theme
    ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  drawMap();
}

// Downwards, or from left to right.
function across() {
  state.across = !state.across;
  $("across").setAttribute("aria-pressed", state.across);
  redraw();
  fit(0.75);
  if (state.selected) bringIntoSight(state.selected);
}

function colourBy(measure) {
  state.colour = measure;
  redraw();
  showPanel();
  $("scale").hidden = measure === "kind";
  if (measure === "kind") return;
  const [, write] = MEASURES[measure];
  const [low, , high] = $("scale").children;
  low.textContent = write(0);
  high.textContent = write(Math.max(largest[measure], ...[...drawnBoxes.keys()].filter((i) => !state.open.has(i)).map((i) => measured(i, measure))));
}

$("name").textContent = data.name;
$("facts").textContent = [
  data.file,
  `${count(data.totals.operations)} operations`,
  data.totals.parameters ? `${short(data.totals.parameters)} parameters` : "",
  data.totals.multiply_adds ? `${short(data.totals.multiply_adds)} multiply-adds` : "",
].filter(Boolean).join(" · ");
$("colours").append(html("option", { value: "kind" }, "Kind"), ...Object.entries(MEASURES)
  .filter(([measure]) => largest[measure] > 0)
  .map(([measure, [title]]) => html("option", { value: measure }, title)));
$("colours").addEventListener("change", (event) => colourBy(event.target.value));
$("fold").addEventListener("click", foldAll);
$("unfold").addEventListener("click", unfoldMore);
$("fit").addEventListener("click", () => fit());
$("theme").addEventListener("click", dark);
$("help").addEventListener("click", () => $("keys").showModal());
$("across").addEventListener("click", across);
$("svg").addEventListener("click", saveSvg);
$("png").addEventListener("click", savePng);
addEventListener("hashchange", () => reveal(linked(location.hash.slice(1)) ?? 0));
addEventListener("beforeprint", () => {
  svg.setAttribute("viewBox", `-12 -12 ${found.width + 24} ${found.height + 24}`);
  scene.removeAttribute("transform");
});
addEventListener("afterprint", () => { svg.removeAttribute("viewBox"); look(); });
