// SPDX-License-Identifier: Apache-2.0
// The tab Accuracy: each layer of a quantized model against the float model.
"use strict";

// A number that JSON does not have is text.
const real = (value) => ({ inf: Infinity, "-inf": -Infinity, nan: NaN }[value] ?? value);

function decibels(value) {
  const known = real(value);
  if (known === Infinity) return "exact";
  return Number.isFinite(known) ? known.toFixed(1) : String(value);
}

function accuracyTab(panel, page) {
  const { layers, outputs, differences } = DATA.accuracy;
  const full = 60; // decibels
  const error = (item) => (item.largest_error_steps === null || item.largest_error_steps === undefined
    ? Number(real(item.largest_error)).toPrecision(3) : `${Number(real(item.largest_error_steps)).toFixed(2)} steps`);
  const title = (item) => item.origin || item.name;
  const numbers = [
    { name: "SNR in dB", number: true, cell: (item) => decibels(item.snr_db), value: (item) => real(item.snr_db) },
    { name: "", cell: (item) => make("span", { class: "bar",
      style: `width:${Math.min(1, Math.max(0, real(item.snr_db) / full)) * 80}px` }) },
    { name: "cosine", number: true, cell: (item) => Number(real(item.cosine)).toFixed(6), value: (item) => real(item.cosine) },
    { name: "largest error", number: true, cell: error, value: (item) => real(item.largest_error) },
  ];
  panel.append(make("h2", {}, "Outputs of the whole model"),
    table([{ name: "output", cell: (item) => outputs.indexOf(item) }, ...numbers], outputs).element);
  panel.append(make("h2", {}, "Layers, each from the inputs that it has in the float model"), table([
    { name: "layer", text: true, cell: (item) => breakable(title(item)), value: title },
    { name: "ops, and composite", text: true, value: (item) => item.composites.join(),
      cell: (item) => [make("div", {}, item.ops.join(" + ")), make("div", { class: "dim" }, breakable(item.composites.join(", ")))] },
    // A type may have a comma of its own.
    { name: "runs as", value: (item) => item.runs_as.join(), cell: (item) => item.runs_as.map((type) => make("div", {}, type)) },
    ...numbers,
  ], layers, (item, enter) => {
    const op = OPS.find((one) => one.name === item.name) ||
      OPS.find((one) => item.origin && originOf(one) === item.origin);
    if (op) page.select({ op: op.index }, enter);
  }).element);
  if (differences.length)
    panel.append(make("h2", {}, "Not compared"), ...differences.map((text) => make("p", {}, text)));
}
