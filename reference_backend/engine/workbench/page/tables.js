// SPDX-License-Identifier: Apache-2.0
// The tabs Ops and Regions.
"use strict";

function whyLines(op) {
  const line = (code, text, kind) => make("div", { class: `reason ${kind}` }, make("b", {}, code), ` ${cut(text || "", 120)}`);
  return [op.code ? line(op.code, op.reason, "host") : null, op.wider ? line(op.wider_code, op.wider, "wider") : null];
}

function opsTab(panel, page) {
  const alone = new Set(OPS.map((op) => op.function)).size === 1;
  const timed = DATA.cyclesOf.size > 0;
  const columns = [
    { name: "#", number: true, cell: (op) => op.index, value: (op) => op.index },
    { name: "op", cell: kindOf, value: kindOf },
    { name: "name, composite, and why", text: true, value: titleOf, cell: (op) => [make("div", {}, breakable(titleOf(op))),
      fusionOf(op) ? make("div", { class: "reason dim" }, "in ", breakable(fusionOf(op))) : null, ...whyLines(op)] },
    ...(alone ? [] : [{ name: "function", cell: (op) => op.function, value: (op) => op.function }]),
    // Those on the host by reason.
    { name: "placement", value: (op) => op.region || `${op.placement} ${op.code || ""}`,
      cell: (op) => make("span", { class: `chip ${op.placement}` }, op.region ? regionName(op.region) : op.placement) },
    { name: "runs in", minor: true, value: (op) => op.runs_in || "",
      cell: (op) => make("span", { class: op.wider ? "wider" : null }, op.runs_in || "") },
    { name: "result", minor: true, cell: (op) => make("code", { class: "clip", title: op.result }, op.result), value: (op) => op.result },
    { name: "MACs", number: true, minor: true, cell: (op) => (op.macs ? short(op.macs) : op.macs === null ? "?" : ""), value: (op) => op.macs },
    { name: "bytes", number: true, minor: true, cell: (op) => bytes(sum([op], "bytes_read") + sum([op], "bytes_written")),
      value: (op) => sum([op], "bytes_read") + sum([op], "bytes_written") },
    ...(timed ? [{ name: UNIT, hint: "of one call", number: true, value: (op) => DATA.cyclesOf.get(op.index) ?? -1,
      cell: (op) => (DATA.cyclesOf.has(op.index) ? number(DATA.cyclesOf.get(op.index)) : "") }] : []),
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
    { name: "region", cell: (region) => regionName(region.symbol), value: (region) => region.symbol },
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
    ...region.inputs.map((item) => ({ ...item, region, tensor: tensorName(region, item), way: "enters" })),
    ...region.outputs.map((item) => ({ ...item, region, tensor: tensorName(region, item), way: "leaves" })),
  ]);
  panel.append(table([
    { name: "region", cell: (row) => regionName(row.region.symbol), value: (row) => row.region.symbol },
    { name: "way", cell: (row) => row.way, value: (row) => row.way },
    { name: "tensor", text: true, cell: (row) => breakable(row.tensor), value: (row) => row.tensor },
    { name: "type", cell: (row) => make("code", {}, row.type), value: (row) => row.type },
    { name: "bytes", number: true, cell: (row) => number(row.bytes), value: (row) => row.bytes },
  ], rows, (row, enter) => page.select({ region: row.region.symbol }, enter)).element);
}
