// Draws the page for the first time, and selects the node in the address.

redraw();
fit(0.75);
if (data.coloured_by.length) {
  $("colours").value = data.coloured_by[0];
  colourBy(data.coloured_by[0]);
}
// The node in the address, or else the first operation that differs in the comparison.
const differs = nodes.findIndex((node) => node.type === "operation" && node.reason);
const wanted = (location.hash && linked(location.hash.slice(1))) || Math.max(differs, 0);
if (wanted) reveal(wanted); else showPanel();
// The time when the graph was drawn, in milliseconds since the page was requested.
requestAnimationFrame(() => setTimeout(() => { document.documentElement.dataset.drawn = performance.now().toFixed(); }));
