// Searches names, kinds, labels of parameters, shapes and attributes for all words of a query.

const MOST_FOUND = 60;
let texts = null;  // of each node what it is called, then what else is known of it; made when first needed

const plainText = (s) => s.toLowerCase().replace(/(?<=\d)\s*[x,]\s*(?=[\d?])/g, "×");
const labelled = (t) => [parameterOf.get(t)?.label ?? tensors[t].name, typed(t)];

function searchable(i) {
  const main = nodes[i].by === "operation" ? members[i].at(-1) : i;
  const node = { ...nodes[main], ...nodes[i] };
  const own = [node.label, node.kind, node.module, node.name].filter(Boolean);
  const more = [
    ...(node.reads ?? []).flatMap(([name, x]) => (typeof x === "string" ? [`${name}=${x}`] : labelled(x).map((s) => `${name} ${s}`))),
    ...(node.writes ?? []).map((t) => labelled(t).join(" ")),
    ...(node.attributes ?? []).map(([name, value]) => `${name}=${value}`),
    node.family ?? "",
  ];
  return { own: own.map(plainText), more, all: plainText([...own, ...more].join("\n")) };
}

// Nodes that match all words, the best first, each with the text that matches.
function hits(query) {
  texts ??= nodes.map((_, i) => searchable(i));
  const whole = plainText(query);
  const words = whole.split(/\s+/);
  const ranked = [[], [], [], []];
  for (let i = 1; i < nodes.length; i++) {
    // An operation stands for the operations that prepare its operands, as its box does.
    const { parent } = nodes[i];
    if (nodes[parent].by === "operation" && members[parent].at(-1) === i) continue;
    const { own, all } = texts[i];
    if (!words.every((word) => all.includes(word))) continue;
    const rank = own.includes(whole) ? 0 : own.some((s) => s.startsWith(whole)) ? 1
      : words.every((word) => own.some((s) => s.includes(word))) ? 2 : 3;
    ranked[rank].push(i);
  }
  return ranked.flatMap((found, rank) => found.map((i) => ({
    i, by: rank === 3 ? texts[i].more.find((s) => words.some((word) => plainText(s).includes(word))) : "" })));
}

function search() {
  const query = $("query").value.trim();
  const found = query ? hits(query) : [];
  $("found").replaceChildren(...found.slice(0, MOST_FOUND).map(({ i, by }, n) => html("li",
    { role: "option", id: `hit-${n}`, "data-i": i, "aria-selected": n === 0, class: nodes[i].family ?? "", onpointerdown: () => choose(i) },
    html("i"), html("b", {}, nodes[i].kind ?? nodes[i].label ?? nodes[i].type), html("span", {}, nodes[i].name),
    by ? html("small", {}, by) : "")));
  if (query && !found.length) $("found").append(html("li", { class: "none" }, "nothing"));
  if (found.length > MOST_FOUND) $("found").append(html("li", { class: "none" }, `and ${count(found.length - MOST_FOUND)} more: a further word finds fewer`));
  pointTo(0);
  $("found").hidden = !query;
  $("query").setAttribute("aria-expanded", String(Boolean(query)));
  if (query) $("said").textContent = `${count(found.length)} found`;
}
function pointTo(n) {
  const options = [...$("found").querySelectorAll("[role=option]")];
  options.forEach((option, k) => option.setAttribute("aria-selected", k === n));
  options[n]?.scrollIntoView({ block: "nearest" });
  if (options[n]) $("query").setAttribute("aria-activedescendant", options[n].id);
  else $("query").removeAttribute("aria-activedescendant");
}
function choose(i) {
  $("query").value = "";
  search();
  reveal(i);
}
$("query").addEventListener("input", search);
$("query").addEventListener("blur", () => { $("found").hidden = true; });
$("query").addEventListener("keydown", (event) => {
  const options = [...$("found").querySelectorAll("[role=option]")];
  const at = options.findIndex((option) => option.getAttribute("aria-selected") === "true");
  if (event.key === "ArrowDown") pointTo(Math.min(at + 1, options.length - 1));
  else if (event.key === "ArrowUp") pointTo(Math.max(at - 1, 0));
  else if (event.key === "Enter" && options[at]) choose(Number(options[at].dataset.i));
  else if (event.key === "Escape") { $("query").value = ""; search(); svg.focus(); }
  else return;
  event.preventDefault();
});
