// SPDX-License-Identifier: Apache-2.0
// What the pane at the side says of an op or a region.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const { report: REPORT, meanings: MEANINGS } = DATA;
const OPS = REPORT.ops.map((op, index) => ({ ...op, index, readers: [] }));
for (const op of OPS) for (const source of op.reads) OPS[source].readers.push(op.index);
const REGIONS = new Map(REPORT.regions.map((region) => [region.symbol, region]));

function originOf(op) {
  const { origin } = op;
  if (!origin) return "";
  return origin.module ? `${origin.module} (${origin.name})` : origin.name;
}
const titleOf = (op) => originOf(op) || op.name;
const kindOf = (op) => op.op.replace(/^relax\./, "");
// The composite that fuses an op with others, or has another name than the op.
const fusionOf = (op) => (op.composite && op.composite !== kindOf(op).split(".").at(-1) ? op.composite : "");
// A region's symbol without the backend's name, which all of them begin with.
const regionName = (symbol) => (symbol.startsWith(`${REPORT.backend}_`) ? symbol.slice(REPORT.backend.length + 1) : symbol);
const RESULTS = new Map(OPS.map((op) => [`${op.function} ${op.name}`, op]));
const INPUTS = new Set(OPS.flatMap((op) => (op.inputs || []).map((name) => `${op.function} ${name}`)));
// A tensor at the border of a region: the author's name of the op that computes it, else the variable.
function tensorName(region, item) {
  const op = RESULTS.get(`${region.function} ${item.name}`);
  return (op ? originOf(op) : partOf(region, item)) || item.name;
}
// A part of a tuple is no op of the report: it is known by its type, if only one tuple has such a part.
function partOf(region, item) {
  if (INPUTS.has(`${region.function} ${item.name}`)) return "";
  const isLeaving = region.outputs.includes(item);
  const makers = OPS.filter((op) => op.function === region.function && isLeaving === (op.region === region.symbol)
    && partsOf(op).includes(item.type));
  if (makers.length !== 1 || !originOf(makers[0])) return "";
  const parts = partsOf(makers[0]);
  const at = parts.indexOf(item.type);
  return originOf(makers[0]) + (at === parts.lastIndexOf(item.type) ? `[${at}]` : ` (${item.name})`);
}
const partsOf = (op) => (op.result.startsWith("(") ? op.result.slice(1, -1).split(/(?<=\]), /) : []);
const stateOf = (op) => (op.bookkeeping ? "bookkeeping" : op.placement);
const sum = (items, field) => items.reduce((total, item) => total + (item[field] || 0), 0);

function pairs(entries) {
  return make("dl", {}, entries.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

function linkTo(index, page) {
  const op = OPS[index];
  return make("div", {}, make("button", { class: "link", type: "button",
    onclick: () => page.follow({ op: index }) }, titleOf(op)), make("span", { class: "dim" }, ` ${kindOf(op)}`));
}

function whyBoxes(op) {
  const boxes = [];
  if (op.code)
    boxes.push(make("div", { class: "why" }, make("b", {}, op.code), ` ${op.reason || ""}`,
      op.remedy ? make("div", {}, make("b", {}, "To change it: "), op.remedy) : null));
  for (const [driver, reason] of Object.entries(op.left_by || {}))
    boxes.push(make("div", { class: "why" }, make("b", {}, `The driver '${driver}' left it:`), ` ${reason}`));
  if (op.wider)
    boxes.push(make("div", { class: "why wide" }, make("b", {}, `Wider than asked (${op.asked}): ${op.wider_code}`),
      ` ${op.wider}`,
      op.wider_remedy ? make("div", {}, make("b", {}, "To change it: "), op.wider_remedy) : null));
  return boxes;
}

function opDetails(op, page) {
  const links = (title, indices) => indices.length
    ? [make("h3", {}, title), ...indices.slice(0, 30).map((index) => linkTo(index, page)),
      indices.length > 30 ? make("div", { class: "dim" }, `and ${indices.length - 30} more`) : null]
    : [];
  const region = op.region && make("button", { class: "link", type: "button",
    onclick: () => page.follow({ region: op.region }) }, regionName(op.region));
  const attributes = Object.entries(op.attributes);
  const cycles = DATA.cyclesOf.get(op.index);
  return [
    make("h2", {}, breakable(titleOf(op))),
    make("div", { class: "dim" }, kindOf(op)),
    make("span", { class: `chip ${op.placement}` }, op.placement === "npu" ? "NPU" : "host"),
    op.bookkeeping ? make("span", { class: "chip" }, "bookkeeping") : null,
    ...whyBoxes(op),
    pairs([["stands for", op.origin && (op.origin.others || []).join(", ")], ["module", op.origin && op.origin.module],
      ["location", op.origin && op.origin.location],
      ["variable", op.name], ["function", op.function], ["region", region || null],
      ["composite", op.composite], ["runs in", op.runs_in],
      ["result", make("code", {}, op.result)],
      ["MACs", number(op.macs)], ["reads", bytes(op.bytes_read)], ["writes", bytes(op.bytes_written)],
      [`${UNIT} per call`, cycles === undefined ? null : number(cycles)]]),
    make("h3", {}, "Arguments"),
    ...op.arguments.map((text) => make("div", {}, make("code", {}, text))),
    ...(attributes.length ? [make("h3", {}, "Attributes"), pairs(attributes)] : []),
    ...links("Reads the results of", op.reads),
    ...links("Read by", op.readers),
    make("p", {}, make("button", { type: "button", onclick: () => page.showInGraph(op.index) }, "Show in the graph")),
  ].filter(Boolean);
}

function regionDetails(region, page) {
  const border = (title, items) => [make("h3", {}, `${title} (${bytes(sum(items, "bytes"))})`),
    ...items.map((item) => make("div", {}, `${tensorName(region, item)} `, make("code", {}, item.type), ` ${bytes(item.bytes)}`))];
  const ops = OPS.filter((op) => op.region === region.symbol);
  return [
    make("h2", {}, regionName(region.symbol)),
    pairs([["symbol", region.symbol], ["function", region.function], ["driver", region.driver], ["ops", number(region.ops)], ["composites", number(region.composites.length)],
      ["MACs", number(region.macs)], ["reads", bytes(region.bytes_read)], ["writes", bytes(region.bytes_written)]]),
    ...region.warnings.map((text) => make("div", { class: "why" }, make("b", {}, "The driver warns:"), ` ${text}`)),
    ...(region.notes || []).map((text) => make("div", { class: "why" }, text)),
    ...border("Enters", region.inputs),
    ...border("Leaves", region.outputs),
    make("h3", {}, "Ops"),
    ...ops.slice(0, 100).map((op) => linkTo(op.index, page)),
    ops.length > 100 ? make("div", { class: "dim" }, `and ${ops.length - 100} more`) : null,
  ].filter(Boolean);
}
