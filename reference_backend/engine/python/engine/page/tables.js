// SPDX-License-Identifier: Apache-2.0
// The tabs Overview, Ops and Regions.
"use strict";

function overviewTab(panel, page) {
  const names = { ops: "ops", macs: "operations (MACs)", bytes: "bytes read and written" };
  const cards = Object.entries(REPORT.totals).map(([name, share]) => {
    const shown = name === "bytes" ? bytes : number;
    return make("div", { class: "card" }, make("span", { class: "dim" }, names[name]),
      make("b", {}, `${share.percent.toFixed(1)} %`), " on the NPU",
      make("span", { class: "dim" }, `${shown(share.npu)} of ${shown(share.total)}`),
      make("div", { class: "meter" }, make("i", { style: `width:${share.percent}%` })));
  });
  const host = OPS.filter((op) => op.placement === "host" && !op.bookkeeping);
  panel.append(make("div", { class: "cards" }, cards), make("h2", {}, "What stays on the host"));
  panel.append(host.length ? reasons(host, "code", page) : make("p", {}, "No op that computes a tensor."));
  const wider = OPS.filter((op) => op.wider);
  if (wider.length)
    panel.append(make("h2", {}, "What runs in a wider type than the model asks"), reasons(wider, "wider_code", page));
  const small = OPS.filter((op) => op.bookkeeping).length;
  if (small)
    panel.append(make("p", { class: "dim" }, `${plural(small, "op")} of bookkeeping (shapes, tuples, memory) ${small === 1 ? "is" : "are"} not listed here.`));
  panel.append(make("h2", {}, "Regions"), regionTable(page));
}

// Ops by code, the one with the most bytes first.
function reasons(ops, field, page) {
  const groups = new Map();
  for (const op of ops) groups.set(op[field], [...(groups.get(op[field]) || []), op]);
  const moved = (group) => sum(group, "bytes_read") + sum(group, "bytes_written");
  const rows = [...groups].sort((one, other) => moved(other[1]) - moved(one[1]));
  const several = (items) => {
    const texts = [...new Set(items.filter(Boolean))];
    return [...texts.slice(0, 3).map((text) => make("div", {}, text)),
      texts.length > 3 ? make("div", { class: "dim" }, `and ${texts.length - 3} more`) : null];
  };
  const columns = [
    { name: "reason", text: true, cell: ([code]) => [make("b", {}, code), make("div", { class: "dim" }, MEANINGS[code] || "")] },
    { name: "ops", number: true, cell: ([, group]) => number(group.length) },
    { name: "bytes", number: true, cell: ([, group]) => bytes(moved(group)) },
    { name: "which", cell: ([, group]) => [...new Set(group.map(kindOf))].slice(0, 6).join(", ") },
    { name: "why", text: true, cell: ([, group]) => several(group.map((op) => (field === "code" ? op.reason : op.wider))) },
  ];
  if (field === "code")
    columns.push({ name: "what would change it", text: true, cell: ([, group]) => several(group.map((op) => op.remedy)) });
  return make("div", { class: "scroll" },
    table(columns, rows, ([code]) => page.searchOps(code)).element);
}

function opsTab(panel, page) {
  const alone = new Set(OPS.map((op) => op.function)).size === 1;
  const timed = DATA.cyclesOf.size > 0;
  const columns = [
    { name: "#", number: true, cell: (op) => op.index, value: (op) => op.index },
    { name: "op", cell: kindOf, value: kindOf },
    { name: "name", text: true, cell: titleOf, value: titleOf },
    ...(alone ? [] : [{ name: "function", cell: (op) => op.function, value: (op) => op.function }]),
    { name: "placement", value: (op) => op.region || op.placement,
      cell: (op) => make("span", { class: `chip ${op.placement}` }, op.region || op.placement) },
    { name: "runs in", value: (op) => op.runs_in || "",
      cell: (op) => make("span", { class: op.wider ? "wider" : null }, op.runs_in || "") },
    { name: "result", cell: (op) => make("code", {}, op.result), value: (op) => op.result },
    { name: "MACs", number: true, cell: (op) => (op.macs ? short(op.macs) : op.macs === null ? "?" : ""), value: (op) => op.macs },
    { name: "bytes", number: true, cell: (op) => bytes(sum([op], "bytes_read") + sum([op], "bytes_written")),
      value: (op) => sum([op], "bytes_read") + sum([op], "bytes_written") },
    ...(timed ? [{ name: "cycles", number: true, value: (op) => DATA.cyclesOf.get(op.index) ?? -1,
      cell: (op) => (DATA.cyclesOf.has(op.index) ? number(DATA.cyclesOf.get(op.index)) : "") }] : []),
    { name: "why", text: true, value: (op) => op.code || op.wider_code || "", cell: (op) => {
      const why = [];
      if (op.code) why.push(make("div", {}, make("b", {}, op.code), ` ${cut(op.reason || "", 90)}`));
      if (op.wider) why.push(make("div", { class: "wider" }, make("b", {}, op.wider_code), ` ${cut(op.wider, 90)}`));
      return why;
    } },
  ];
  const list = table(columns, OPS, (op, enter) => page.select({ op: op.index }, enter));
  const found = make("span", { class: "dim", role: "status" });
  const search = make("input", { type: "search", id: "search", placeholder: "Search: name, op, reason, type, region",
    "aria-label": "Search the ops. Enter or arrow down goes to what is found.", oninput: () => filter(),
    onkeydown: (event) => {
      if (event.key !== "Enter" && event.key !== "ArrowDown") return;
      event.preventDefault();
      list.enter();
    } });
  const where = make("select", { "aria-label": "Placement", onchange: () => filter() },
    make("option", { value: "" }, "all placements"), make("option", { value: "npu" }, "on the NPU"),
    make("option", { value: "host" }, "on the host"), make("option", { value: "wider" }, "wider than asked"));
  const texts = OPS.map((op) => [op.op, op.name, titleOf(op), op.function, op.region, op.composite, op.code,
    op.reason, op.runs_in, op.wider_code, op.result].join(" ").toLowerCase());
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = OPS.filter((op) => words.every((word) => texts[op.index].includes(word))
      && (!where.value || (where.value === "wider" ? op.wider : op.placement === where.value)));
    list.show(shown);
    found.textContent = `${number(shown.length)} of ${plural(OPS.length, "op")}`;
  }
  filter();
  page.searchOps = (text) => {
    search.value = text;
    where.value = "";
    filter();
    page.open("ops");
    search.focus();
  };
  panel.append(make("div", { class: "tools" }, search, where, found), list.element);
}

function regionTable(page) {
  if (!REPORT.regions.length) return make("p", {}, "None.");
  const column = (name, field, shown) =>
    ({ name, number: true, cell: (region) => shown(region[field]), value: (region) => region[field] });
  const border = (name, field) => ({ name, number: true, value: (region) => sum(region[field], "bytes"),
    cell: (region) => bytes(sum(region[field], "bytes")) });
  const list = table([
    { name: "region", cell: (region) => region.symbol, value: (region) => region.symbol },
    column("ops", "ops", number),
    { name: "composites", number: true, cell: (region) => region.composites.length, value: (region) => region.composites.length },
    column("MACs", "macs", number), column("reads", "bytes_read", bytes), column("writes", "bytes_written", bytes),
    border("enters", "inputs"), border("leaves", "outputs"),
  ], REPORT.regions, (region, enter) => page.select({ region: region.symbol }, enter));
  return make("div", { class: "scroll" }, list.element);
}

function regionsTab(panel, page) {
  panel.append(regionTable(page), make("h2", {}, "What crosses the borders at each call"));
  const rows = REPORT.regions.flatMap((region) => [
    ...region.inputs.map((item) => ({ ...item, region, way: "enters" })),
    ...region.outputs.map((item) => ({ ...item, region, way: "leaves" })),
  ]);
  panel.append(table([
    { name: "region", cell: (row) => row.region.symbol, value: (row) => row.region.symbol },
    { name: "way", cell: (row) => row.way, value: (row) => row.way },
    { name: "tensor", text: true, cell: (row) => row.name, value: (row) => row.name },
    { name: "type", cell: (row) => make("code", {}, row.type), value: (row) => row.type },
    { name: "bytes", number: true, cell: (row) => number(row.bytes), value: (row) => row.bytes },
  ], rows, (row, enter) => page.select({ region: row.region.symbol }, enter)).element);
}
