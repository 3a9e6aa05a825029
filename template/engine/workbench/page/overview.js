// SPDX-License-Identifier: Apache-2.0
// The tab Overview: how much is on the NPU, and what is not, by reason.
"use strict";

function overviewTab(panel, page) {
  panel.append(make("div", { class: "cards" }, Object.entries(REPORT.totals).map(([name, share]) => card(name, share))));
  const found = REPORT.verification;
  if (found)
    panel.append(make("p", { class: found.passed ? "dim" : "why" }, found.summary));
  const sizes = Object.entries(REPORT.symbols || {}).map(([name, bound]) => `${name} = ${bound}`);
  if (sizes.length)
    panel.append(make("p", { class: "dim" }, `Open sizes count with their bounds: ${sizes.join(", ")}.`));
  const host = OPS.filter((op) => op.placement === "host" && !op.bookkeeping);
  panel.append(make("h2", {}, "What stays on the host"));
  panel.append(host.length ? reasons(host, "code", page) : make("p", {}, "No op that computes a tensor."));
  const wider = OPS.filter((op) => op.wider);
  if (wider.length)
    panel.append(make("h2", {}, "What runs in a wider type than the model asks"), reasons(wider, "wider_code", page));
  const small = OPS.filter((op) => op.bookkeeping).length;
  if (small)
    panel.append(make("p", { class: "dim" }, `${plural(small, "op")} of bookkeeping (shapes, tuples, memory) ${small === 1 ? "is" : "are"} not listed here.`));
  panel.append(make("h2", {}, "Regions"), regionTable(page));
}

// The part of an amount that is on the NPU. Where amounts of some ops are not known, there is no such part.
function card(name, share) {
  const title = { ops: "ops", macs: "operations (MACs)", bytes: "bytes read and written" }[name];
  const shown = name === "bytes" ? bytes : number;
  const fields = { macs: ["macs"], bytes: ["bytes_read", "bytes_written"] }[name] || [];
  const unknown = share.unknown ?? OPS.filter((op) => !op.bookkeeping && fields.some((field) => op[field] === null)).length;
  const told = unknown
    ? [make("b", {}, `at least ${name === "bytes" ? bytes(share.total) : short(share.total)}`),
      make("span", { class: "dim" }, `at least ${shown(share.npu)} on the NPU; those of ${plural(unknown, "op")} are not known`),
      make("div", { class: "meter unknown" })]
    : [make("b", {}, `${share.percent.toFixed(1)} %`), " on the NPU",
      make("span", { class: "dim" }, `${shown(share.npu)} of ${shown(share.total)}`),
      make("div", { class: "meter" }, make("i", { style: `width:${share.percent}%` }))];
  return make("div", { class: "card", "data-total": name }, make("span", { class: "dim" }, title), ...told);
}

// Ops by code, the one with the most bytes first.
function reasons(ops, field, page) {
  const groups = new Map();
  for (const op of ops) groups.set(op[field], [...(groups.get(op[field]) || []), op]);
  const moved = (group) => sum(group, "bytes_read") + sum(group, "bytes_written");
  const rows = [...groups].sort((one, other) => moved(other[1]) - moved(one[1]));
  const first = (items, most, shown) => [...items.slice(0, most).map(shown),
    items.length > most ? make("div", { class: "dim" }, `and ${number(items.length - most)} more`) : null];
  const columns = [
    { name: "reason", text: true, cell: ([code]) => [make("b", {}, code), make("div", { class: "dim" }, MEANINGS[code] || "")] },
    { name: "ops", number: true, cell: ([, group]) => number(group.length) },
    { name: "bytes", number: true, cell: ([, group]) => bytes(moved(group)) },
    { name: "which, and why", text: true, cell: ([, group]) =>
      first([...bySentence(group, field === "code" ? "reason" : "wider")], 4, ([sentence, same]) =>
        make("div", { class: "sentence" }, make("div", {}, namesOf(same)), make("div", { class: "dim" }, sentence))) },
  ];
  const remedy = field === "code" ? "remedy" : "wider_remedy";
  columns.push({ name: "what would change it", text: true, cell: ([, group]) =>
    first([...new Set(group.map((op) => op[remedy]).filter(Boolean))], 3, (text) => make("div", {}, text)) });
  return make("div", { class: "scroll" },
    table(columns, rows, ([code]) => page.searchOps(code)).element);
}

// Ops by what is said of them, apart from their own name.
function bySentence(ops, field) {
  const found = new Map();
  for (const op of ops) {
    const sentence = (op[field] || "").replace(` (${titleOf(op)})`, "");
    found.set(sentence, [...(found.get(sentence) || []), op]);
  }
  return found;
}

function namesOf(ops) {
  const names = [...new Set(ops.map((op) => originOf(op) || `${kindOf(op)} (${op.name})`))];
  return names.slice(0, 6).join(", ") + (names.length > 6 ? ` and ${number(names.length - 6)} more` : "");
}
