// Exports the drawing: an SVG with its styles inline, and a PNG.

const STYLES = ["display", "fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin",
  "paint-order", "opacity", "font-family", "font-size", "font-weight"];

function standalone() {
  const before = svg.getAttribute("class") ?? "";
  svg.setAttribute("class", "");  // all text, however far the view is away
  const copy = svg.cloneNode(true);
  const from = svg.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((element, k) => {
    const style = getComputedStyle(from[k]);
    for (const name of STYLES) {
      const value = style.getPropertyValue(name);
      if (value && value !== "none" || name === "fill" || name === "display") element.setAttribute(name, value);
    }
    element.removeAttribute("style");
    for (const name of ["class", "tabindex", "role", "data-i", "aria-label", "aria-expanded"]) element.removeAttribute(name);
  });
  svg.setAttribute("class", before);
  // Names may have characters that XML does not allow.
  for (const element of copy.querySelectorAll("text, title")) {
    element.textContent = element.textContent.replace(/[^\t\n\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, "\ufffd");
  }
  copy.querySelector(":scope > g").removeAttribute("transform");
  for (const name of ["id", "class", "role", "tabindex", "aria-label"]) copy.removeAttribute(name);
  const [width, height] = [Math.ceil(found.width) + 48, Math.ceil(found.height) + 48];
  const box = { x: -24, y: -24, width, height };
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("viewBox", Object.values(box).join(" "));
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.prepend(make("rect", { ...box, fill: getComputedStyle(document.body).backgroundColor }));
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}

function download(blob, suffix) {
  const link = html("a", { href: URL.createObjectURL(blob), download: `${safe(data.name)}${suffix}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
const safe = (name) => name.replace(/[^\w.-]+/g, "_").replace(/^[._]+/, "").slice(0, 80) || "network";

function saveSvg() {
  download(new Blob([standalone().text], { type: "image/svg+xml" }), ".svg");
}
function savePng() {
  const { text, width, height } = standalone();
  const image = new Image();
  image.addEventListener("load", () => {
    // Browsers draw no picture of more than some 16,000 pixels a side.
    const scale = Math.min(2, 16_000 / width, 16_000 / height, Math.sqrt(1e8 / (width * height)));
    const picture = html("canvas", { width: Math.floor(width * scale), height: Math.floor(height * scale) });
    picture.getContext("2d").drawImage(image, 0, 0, picture.width, picture.height);
    picture.toBlob((blob) => { if (blob) download(blob, ".png"); else $("said").textContent = "too large for a PNG"; });
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}
