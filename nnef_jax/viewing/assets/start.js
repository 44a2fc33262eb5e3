// The start: what is drawn first, and what the address names.

redraw();
fit(0.75);
if (data.coloured_by.length) {
  $("colours").value = data.coloured_by[0];
  colourBy(data.coloured_by[0]);
}
// What the address names, or else the first operation that differs from what it is compared with.
const differs = nodes.findIndex((node) => node.type === "operation" && node.reason);
const wanted = (location.hash && linked(location.hash.slice(1))) || Math.max(differs, 0);
if (wanted) reveal(wanted); else showPanel();
// When the graph was drawn, in milliseconds since the page was asked for.
requestAnimationFrame(() => setTimeout(() => { document.documentElement.dataset.drawn = performance.now().toFixed(); }));
