// Shows the items of a small array, a .npy file in the page: a table, and a link to the file.

const MOST_ROWS = 64;
const MOST_COLUMNS = 32;

function npy(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const start = 10 + view.getUint16(8, true);
  const [, kind, size] = /'descr': '[<|>=]([a-z])(\d+)'/.exec(String.fromCharCode(...bytes.slice(10, start))) ?? [];
  const [big, at] = [size === "8", (k) => start + k * Number(size)];
  const readers = {
    f: { 2: (k) => half(view.getUint16(at(k), true)), 4: (k) => view.getFloat32(at(k), true), 8: (k) => view.getFloat64(at(k), true) },
    i: { 1: (k) => view.getInt8(at(k)), 2: (k) => view.getInt16(at(k), true), 4: (k) => view.getInt32(at(k), true) },
    u: { 1: (k) => view.getUint8(at(k)), 2: (k) => view.getUint16(at(k), true), 4: (k) => view.getUint32(at(k), true) },
    b: { 1: (k) => Boolean(view.getUint8(at(k))) },
    c: { 8: (k) => `${number(view.getFloat32(at(k), true))} + ${number(view.getFloat32(at(k) + 4, true))} i` },
  };
  const whole = { i: (k) => view.getBigInt64(at(k), true), u: (k) => view.getBigUint64(at(k), true) };
  return { bytes, item: (big && whole[kind]) || readers[kind]?.[size] };
}
function half(x) {
  const [sign, exponent, part] = [x & 0x8000 ? -1 : 1, (x >> 10) & 31, x & 1023];
  if (exponent === 31) return part ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + part / 1024) : 2 ** -14 * part / 1024);
}
const written = (x) => (typeof x === "number" && Number.isFinite(x) ? Number(x.toPrecision(6)).toString() : String(x));

// Rows run along the last axis; each starts with its indices along the other axes.
function values(parameter) {
  if (!parameter.npy) return "";
  const { bytes, item } = npy(parameter.npy);
  const extents = tensors[parameter.tensor].shape;
  const columns = extents.at(-1) ?? 1;
  const rows = columns ? extents.slice(0, -1).reduce((a, b) => a * b, 1) : 0;
  const place = (row) => extents.slice(0, -1).reduceRight(([rest, text], n) => [Math.floor(rest / n), [rest % n, ...text]], [row, []])[1];
  const table = () => html("table", {}, Array.from({ length: Math.min(rows, MOST_ROWS) }, (_, row) => html("tr", {},
    html("th", { scope: "row" }, place(row).join(",")),
    Array.from({ length: Math.min(columns, MOST_COLUMNS) }, (_, k) => html("td", {}, written(item(row * columns + k)))))));
  const more = rows > MOST_ROWS || columns > MOST_COLUMNS ? `${Math.min(rows, MOST_ROWS)} of ${count(rows)} rows, ${Math.min(columns, MOST_COLUMNS)} of ${count(columns)} columns` : "";
  const shown = html("div", { class: "values", tabindex: 0, role: "region", "aria-label": `values of ${parameter.label}` });
  return html("details", { ontoggle: () => { if (item && !shown.childNodes.length) shown.append(table(), html("small", {}, more)); } },
    html("summary", {}, "Values"), shown,
    html("button", { onclick: () => download(new Blob([bytes]), `.${safe(parameter.label)}.npy`) }, ".npy"));
}
