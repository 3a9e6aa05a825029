// SPDX-License-Identifier: Apache-2.0
// The tab Profile: where the time of a call goes, on the host and on each engine of the NPU. All numbers are of one call.
"use strict";

// What the driver's events say of an op: they name the variable of a composite's last op.
const AT = new Map(OPS.map((item) => [`${item.region} ${item.name}`, item.index]));
const opOf = (entry) => AT.get(`${entry.region} ${entry.variable}`);
const UNIT = (DATA.profile && DATA.profile.unit) || "";
const CALLS = Math.max(1, DATA.profile ? DATA.profile.calls.length : 1);
const perCall = (value) => Math.round(value / CALLS);
// The part of the whole time that is an op's, if the profile tells it, else the sum of its events, which overlap.
const IS_EXACT = Boolean(DATA.profile && DATA.profile.ops.some((entry) => entry.attributed));
const costOf = (entry) => (IS_EXACT ? entry.attributed : entry.span);
DATA.cyclesOf = new Map(((DATA.profile && DATA.profile.ops) || [])
  .filter((entry) => opOf(entry) !== undefined).map((entry) => [opOf(entry), perCall(costOf(entry))]));

const micros = (value) => `${value.toLocaleString("en-US", { maximumFractionDigits: value < 100 ? 1 : 0 })} µs`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const nameOf = (entry) => (OPS[opOf(entry)] ? titleOf(OPS[opOf(entry)]) : entry.origin || entry.label || "no op of the model");
// A function of the host, by the op that it computes if that is known.
const hostName = (item) => item.origin || item.name;

function profileTab(panel, page) {
  const { totals, ops, events, regions, host } = DATA.profile;
  panel.append(make("h2", {}, "Where the time of a call goes"), whole(totals));
  const shown = make("div");
  const showCall = (call) => shown.replaceChildren(...timelines(call, page));
  panel.append(shown);
  const usual = usualCall();
  if (CALLS > 1) {
    const choose = make("select", { "aria-label": "Call", onchange: () => showCall(Number(choose.value)) },
      DATA.profile.calls.map((call, index) =>
        make("option", { value: index, selected: index === usual }, `call ${index + 1} of ${CALLS}: ${micros(lengthOf(call))}`)));
    shown.before(make("div", { class: "tools" }, make("label", {}, "Timelines of ", choose)));
  }
  showCall(usual);
  if (regions.length) panel.append(make("h2", {}, "Regions"), regionsOfCall(regions));
  if (events.length) panel.append(make("h2", {}, "Engines"), enginesOfCall(events, totals));
  const known = ops.filter((entry) => entry.span);
  if (known.length) panel.append(make("h2", {}, "The ops that take the longest"), longest(known, page));
  const kernels = DATA.profile.kernels || [];
  if (kernels.length) panel.append(make("h2", {}, "Kernels of instructions"), kernelsOfCall(kernels, ops));
  if (host.length) panel.append(make("h2", {}, "Functions of the host"), hostFunctions(host, totals));
  if (events.length)
    panel.append(make("h2", {}, "Roofline: how fast each op is, and could be"), picture("roofline", page),
      make("h2", {}, "What lies in the memories"), picture("memory", page));
  panel.append(make("details", {}, make("summary", {}, `Sums of ${plural(CALLS, "call")}`), sums(totals)));
}

const lengthOf = (call) => call.end_us - call.begin_us;

// The call of the median length.
function usualCall() {
  const { calls } = DATA.profile;
  const order = calls.map((call, index) => index).sort((one, other) => lengthOf(calls[one]) - lengthOf(calls[other]));
  return order.length ? order[Math.floor((order.length - 1) / 2)] : 0;
}

// The host's clock: regions of the NPU, functions of the host, and what is between them.
function whole(totals) {
  const [wall, npu, host] = [totals.wall_us, totals.npu_us, totals.host_us].map((value) => (value || 0) / CALLS);
  const parts = [["npu", "regions of the NPU", npu], ["host", "functions of the host", host],
    ["rest", "unaccounted: TVM's virtual machine, and the recording", Math.max(0, wall - npu - host)]];
  const all = parts.reduce((total, [, , value]) => total + value, 0) || 1;
  const lengths = DATA.profile.calls.map(lengthOf).sort((one, other) => one - other);
  const range = CALLS > 1 ? ` on average; ${micros(lengths[0])} to ${micros(lengths.at(-1))} in ${CALLS} calls` : "";
  const own = UNIT ? [make("p", { class: "dim" }, `On its own clock, the NPU takes ${number(perCall(totals.span))} ${UNIT}`
    + (DATA.profile.ticks_per_us ? ` (${micros(totals.span / CALLS / DATA.profile.ticks_per_us)})` : "")
    + (totals.of_peak ? `, at ${percent(totals.of_peak)} of its peak` : "")
    + (totals.scalar_share === null || totals.scalar_share === undefined ? "." : `; scalar code: ${percent(totals.scalar_share)} of ${UNIT}.`))] : [];
  return make("div", { class: "whole" },
    make("p", {}, make("b", {}, micros(wall)), ` on the host's clock${range}`),
    make("div", { class: "stack", "aria-hidden": true }, parts.map(([kind, , value]) => make("i", { class: kind, style: `width:${100 * value / all}%` }))),
    make("ul", { class: "parts" }, parts.map(([kind, name, value]) =>
      make("li", {}, make("i", { class: kind }), make("b", {}, `${micros(value)}, ${percent(value / all)}`), ` ${name}`))), own);
}

// Which call of the model something belongs to.
function callOf(item) {
  const at = DATA.profile.calls.findIndex((call) => item.begin_us <= call.end_us);
  return at < 0 ? CALLS - 1 : at;
}

// Of one call: the host's clock, and then the engines, the regions one after the other.
function timelines(call, page) {
  const { events, regions, host, calls } = DATA.profile;
  const begin = calls[call] ? calls[call].begin_us : 0;
  const runs = regions.flatMap((region) => region.runs.map((run, at) => ({ ...run, symbol: region.symbol, key: `${region.symbol} ${at}` })))
    .filter((run) => callOf(run) === call).sort((one, other) => one.begin_us - other.begin_us);
  const timed = (item, lane, title, colour) => ({ lane, title, colour, start: item.begin_us - begin, end: item.end_us - begin,
    about: `${lane}: ${title}, ${number(rounded(item.begin_us - begin))} to ${number(rounded(item.end_us - begin))} µs (${micros(item.end_us - item.begin_us)})` });
  const clock = [...host.filter((item) => callOf(item) === call).map((item) => timed(item, "host", hostName(item).replace(/^vm\.builtin\./, ""), "var(--host-line)")),
    ...runs.map((run) => timed(run, "NPU", regionName(run.symbol), "var(--npu-line)"))];
  const found = clock.length ? [make("h3", {}, "On the host's clock, in µs"),
    timeline(clock, { id: "clock", end: calls[call] && calls[call].end_us - begin, lanes: host.length ? ["host", "NPU"] : ["NPU"], name: "The host and the regions over time.", page })] : [];
  if (events.length)
    found.push(make("h3", {}, `The engines of the NPU, in ${UNIT}, region after region`),
      timeline(inTurn(events, runs), { id: "engines", lanes: enginesOf(events), name: "The work of each engine over time.", help: true, page }));
  return found;
}

const rounded = (value) => Math.round(10 * value) / 10;
const enginesOf = (events) => [...new Set(events.map((event) => event.engine))];

// How long an engine did nothing before an event that had to wait.
function waitsOf(events) {
  const [waits, last] = [new Map(), new Map()];
  for (const event of events) {
    const lane = `${event.region} ${event.call} ${event.engine}`;
    if (event.waits_for) waits.set(event, Math.max(0, event.begin - (last.get(lane) || 0)));
    last.set(lane, Math.max(last.get(lane) || 0, event.end));
  }
  return waits;
}

// Events of some runs on one axis.
function inTurn(events, runs) {
  const offsets = new Map();
  let end = 0;
  for (const run of runs) {
    offsets.set(run.key, end);
    end += run.span || 0;
  }
  const ops = new Map(DATA.profile.ops.map((entry, index) => [`${entry.region} ${entry.label}`, { entry, index }]));
  const waits = waitsOf(events);
  return events.filter((event) => offsets.has(`${event.region} ${event.call}`)).map((event) => {
    const offset = offsets.get(`${event.region} ${event.call}`);
    const [start, stop, wait] = [offset + event.begin, offset + event.end, waits.get(event)];
    const { entry, index } = ops.get(`${event.region} ${event.label}`) || { entry: event, index: 0 };
    const title = nameOf(entry);
    return { lane: event.engine, title, start, end: stop, waits: wait, index: opOf(entry), colour: DATA.palette[index % DATA.palette.length],
      about: `${event.engine}: ${event.name || ""}, ${number(start)} to ${number(stop)} (${number(stop - start)} ${UNIT}), ${title}`
        + (event.waits_for ? `, waited ${wait ? `${number(wait)} ${UNIT} ` : ""}for ${event.waits_for}` : "") };
  });
}

const share = (part) => make("div", { class: "share" }, make("span", { class: "bar", style: `width:${Math.min(60, 60 * part)}px` }), percent(part));

function regionsOfCall(regions) {
  const engines = [...new Set(regions.flatMap((region) => Object.keys(region.busy)))];
  const traffic = (region, way) => perCall(Object.entries(region.traffic).reduce((total, [name, both]) => total + (name === "dram" ? both[way] : 0), 0));
  const amount = (name, value, shown = number, minor = false) => ({ name, number: true, minor, value, cell: (region) => shown(value(region)) });
  const hasDram = regions.some((region) => region.traffic.dram);
  return make("div", { class: "scroll" }, table([
    { name: "region", cell: (region) => regionName(region.symbol), value: (region) => region.symbol },
    ...(regions.some((region) => region.calls !== CALLS) ? [amount("runs", (region) => region.calls / CALLS)] : []),
    amount("host's µs", (region) => rounded(region.wall_us / CALLS)),
    ...(UNIT ? [amount(UNIT, (region) => perCall(region.span))] : []),
    ...engines.map((engine) => ({ name: engine, number: true, value: (region) => region.utilisation[engine] || 0,
      cell: (region) => share(region.utilisation[engine] || 0) })),
    ...(hasDram ? [amount("DRAM read", (region) => traffic(region, 0), bytes, true), amount("written", (region) => traffic(region, 1), bytes, true)] : []),
  ], regions).element);
}

function enginesOfCall(events, totals) {
  const waits = waitsOf(events);
  const rows = enginesOf(events).map((engine) => {
    const lost = new Map();
    for (const [event, wait] of waits)
      if (event.engine === engine && wait) lost.set(event.waits_for, (lost.get(event.waits_for) || 0) + wait);
    return { engine, busy: totals.busy[engine] || 0, lost: [...lost].sort((one, other) => other[1] - one[1]) };
  });
  const all = (row) => row.lost.reduce((total, [, wait]) => total + wait, 0);
  return make("div", { class: "scroll" }, table([
    { name: "engine", cell: (row) => row.engine },
    { name: `works, ${UNIT}`, number: true, cell: (row) => number(perCall(row.busy)) },
    { name: "of the time", number: true, cell: (row) => share(row.busy / (totals.span || 1)) },
    { name: `waits, ${UNIT}`, number: true, cell: (row) => number(perCall(all(row))) },
    { name: "for", text: true, cell: (row) => row.lost.map(([name, wait]) => `${name} ${number(perCall(wait))}`).join(", ") },
  ], rows).element);
}

function longest(known, page) {
  const most = Math.max(1, ...known.map(costOf));
  const total = known.reduce((all, entry) => all + costOf(entry), 0) || 1;
  const rows = known.sort((one, other) => costOf(other) - costOf(one)).slice(0, 50);
  const told = IS_EXACT ? "Each instant is that of one op: the numbers add up to the whole."
    : "The sum of an op's work on all engines: they work at the same time, so the numbers add up to more than the whole.";
  return make("div", {}, make("p", { class: "dim" }, told), table([
    { name: "op", text: true, cell: (entry) => breakable(nameOf(entry)) },
    { name: "composite", text: true, minor: true, cell: (entry) => entry.composite || "" },
    { name: UNIT, number: true, cell: (entry) => number(perCall(costOf(entry))) },
    { name: "%", number: true, cell: (entry) => (100 * costOf(entry) / total).toFixed(1) },
    ...(rows.some((entry) => entry.of_peak) ? [ofPeak] : []),
    { name: "", cell: (entry) => make("span", { class: "bar", style: `width:${200 * costOf(entry) / most}px` }) },
  ], rows, (entry, enter) => opOf(entry) !== undefined && page.select({ op: opOf(entry) }, enter)).element);
}

// The operations of an op or a kernel, as a share of what the NPU could do while it worked.
const ofPeak = { name: "of peak", number: true, minor: true, value: (entry) => entry.of_peak || 0, cell: (entry) => entry.of_peak ? percent(entry.of_peak) : "" };

function kernelsOfCall(kernels, ops) {
  const titles = new Map(ops.map((entry) => [`${entry.region} ${entry.label}`, nameOf(entry)]));
  const scalar = (kernel) => Object.entries(kernel.busy).reduce((all, [engine, busy]) => all + (engine.endsWith(".scalar") ? busy : 0), 0);
  const rows = [...kernels].sort((one, other) => other.attributed - one.attributed).slice(0, 50);
  return make("div", { class: "scroll" }, table([
    { name: "kernel", text: true, cell: (kernel) => breakable(kernel.name) },
    { name: "of", text: true, cell: (kernel) => breakable(titles.get(`${kernel.region} ${kernel.label}`) || "") },
    { name: UNIT, number: true, cell: (kernel) => number(perCall(kernel.attributed)) },
    { name: "%", number: true, cell: (kernel) => (100 * kernel.attributed_share).toFixed(1) },
    ofPeak,
    { name: "scalar code", number: true, cell: (kernel) => scalar(kernel) ? percent(scalar(kernel) / (kernel.active || 1)) : "" },
    ...enginesOf(DATA.profile.events).map((engine) => ({ name: engine, number: true, minor: true, cell: (kernel) => number(perCall(kernel.busy[engine] || 0)) })),
  ], rows).element);
}

function hostFunctions(host, totals) {
  const found = new Map();
  for (const item of host) {
    const name = hostName(item);
    const row = found.get(name) || { name, calls: 0, us: 0 };
    found.set(name, Object.assign(row, { calls: row.calls + 1, us: row.us + item.end_us - item.begin_us }));
  }
  const rows = [...found.values()].sort((one, other) => other.us - one.us);
  return make("div", {}, table([
    { name: "function", text: true, cell: (row) => row.name },
    { name: "times", number: true, cell: (row) => number(rounded(row.calls / CALLS)) },
    { name: "µs", number: true, cell: (row) => number(rounded(row.us / CALLS)) },
    { name: "of the call", number: true, cell: (row) => share(row.us / (totals.wall_us || 1)) },
  ], rows.slice(0, 12)).element,
  rows.length > 12 ? make("p", { class: "dim" }, `and ${rows.length - 12} more`) : null);
}

// A picture of the profile. Its texts are escaped, and it has marks for the ops that it shows.
function picture(name, page) {
  const parsed = new DOMParser().parseFromString(DATA.pictures[name], "image/svg+xml");
  const svg = document.importNode(parsed.documentElement, true);
  svg.setAttribute("class", "picture");
  svg.setAttribute("role", "group");
  // Texts keep their size where the picture is small.
  const drawn = svg.viewBox.baseVal.width;
  new ResizeObserver(([entry]) => {
    if (entry.contentRect.width) svg.style.setProperty("--text-size", `${12 * Math.max(1, drawn / entry.contentRect.width)}px`);
  }).observe(svg);
  const marks = [];
  const moveTo = roving();
  for (const mark of svg.querySelectorAll("[data-op]")) {
    const index = opOf(DATA.profile.ops[mark.getAttribute("data-op")]);
    if (!OPS[index]) continue;
    marks.push(mark);
    fill(mark, { class: "pick", role: "button", tabindex: -1, "aria-label": mark.textContent,
      onclick: () => page.select({ op: index }), onfocus: () => moveTo.stop(mark), onkeydown: (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); page.select({ op: index }, true); }
        else moveTo.key(event, marks);
      } }, []);
  }
  if (marks.length) moveTo.stop(marks[0]);
  return make("div", { class: "scroll" }, svg);
}

function sums(totals) {
  const amounts = { ...totals };
  for (const [engine, busy] of Object.entries(totals.busy || {})) amounts[`busy: ${engine}`] = busy;
  for (const [memory, [read, written]] of Object.entries(totals.traffic || {})) {
    amounts[`${memory}: bytes read`] = read;
    amounts[`${memory}: bytes written`] = written;
  }
  for (const [memory, most] of Object.entries(totals.memory || {})) amounts[`${memory}: bytes in use at most`] = most;
  return table([{ name: "counter", cell: ([name]) => name.replaceAll("_", " ") },
    { name: "amount", number: true, cell: ([, value]) => number(value) }],
  Object.entries(amounts).filter(([, value]) => typeof value !== "object")).element;
}
