// SPDX-License-Identifier: Apache-2.0
// The tab Profile: totals, the timeline of each engine, and the ops that take the longest.
"use strict";

// What the driver's events say of an op: they name the variable of a composite's last op.
const AT = new Map(OPS.map((item) => [`${item.region} ${item.name}`, item.index]));
const opOf = (entry) => AT.get(`${entry.region} ${entry.variable}`);
const UNIT = (DATA.profile && DATA.profile.unit) || "";
DATA.cyclesOf = new Map(((DATA.profile && DATA.profile.ops) || [])
  .filter((entry) => opOf(entry) !== undefined).map((entry) => [opOf(entry), entry.span]));

function profileTab(panel, page) {
  const { totals = {}, ops = [], events = [], regions = [] } = DATA.profile;
  const amounts = { ...totals };
  for (const [engine, busy] of Object.entries(totals.busy || {})) amounts[`busy: ${engine}`] = busy;
  for (const [memory, [read, written]] of Object.entries(totals.traffic || {})) {
    amounts[`${memory}: bytes read`] = read;
    amounts[`${memory}: bytes written`] = written;
  }
  for (const [memory, most] of Object.entries(totals.memory || {})) amounts[`${memory}: bytes in use at most`] = most;
  panel.append(make("h2", {}, "Totals"), pairsTable(amounts));
  if (events.length) panel.append(make("h2", {}, `Timeline of the NPU, in ${UNIT}`), timeline(inTurn(events, regions), page));
  if (events.length)
    panel.append(make("h2", {}, "Roofline: how fast each op is, and could be"), picture("roofline", page),
      make("h2", {}, "What lies in the memories"), picture("memory", page));
  const known = ops.filter((entry) => entry.span);
  const most = Math.max(1, ...known.map((entry) => entry.span));
  const rows = known.sort((one, other) => other.span - one.span).slice(0, 50);
  if (rows.length)
    panel.append(make("h2", {}, "The ops that take the longest"), table([
      { name: "op", text: true, cell: (entry) => entry.origin || entry.label || "no op of the model" },
      { name: "composite", cell: (entry) => entry.composite || "" },
      { name: UNIT, number: true, cell: (entry) => number(entry.span), value: (entry) => entry.span },
      { name: "%", number: true, cell: (entry) => (100 * entry.share).toFixed(1), value: (entry) => entry.share },
      { name: "", cell: (entry) => make("span", { class: "bar", style: `width:${300 * entry.span / most}px` }) },
    ], rows, (entry, enter) => opOf(entry) !== undefined && page.select({ op: opOf(entry) }, enter)).element);
}

// A picture of the profile. Its texts are escaped, and it has marks for the ops that it shows.
function picture(name, page) {
  const parsed = new DOMParser().parseFromString(DATA.pictures[name], "image/svg+xml");
  const svg = document.importNode(parsed.documentElement, true);
  svg.setAttribute("class", "picture");
  svg.setAttribute("role", "group");
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
  return svg;
}

// Events on one axis: the runs of all regions one after the other, as they began.
function inTurn(events, regions) {
  const runs = regions.flatMap((region) => region.runs.map((run, call) => ({ ...run, key: `${region.symbol} ${call}` })));
  const offsets = new Map();
  let end = 0;
  for (const run of runs.sort((one, other) => one.begin_us - other.begin_us)) {
    offsets.set(run.key, end);
    end += run.span || 0;
  }
  const ops = new Map(DATA.profile.ops.map((entry) => [`${entry.region} ${entry.label}`, opOf(entry)]));
  return events.map((event) => {
    const offset = offsets.get(`${event.region} ${event.call}`) || 0;
    return { ...event, index: ops.get(`${event.region} ${event.label}`), start: offset + event.begin, end: offset + event.end };
  });
}

function pairsTable(values) {
  return table([{ name: "counter", cell: ([name]) => name.replaceAll("_", " ") },
    { name: "amount", number: true, cell: ([, value]) => number(value) }],
  Object.entries(values).filter(([, value]) => typeof value !== "object")).element;
}

// Events have start and end on one axis, and perhaps the index of an op.
function timeline(events, page) {
  const engines = [...new Set(events.map((event) => event.engine))];
  const [first, last] = events.reduce(([low, high], event) =>
    [Math.min(low, event.start), Math.max(high, event.end)], [Infinity, -Infinity]);
  const view = { from: first, to: Math.max(last, first + 1) };
  const [left, wide, row] = [110, 1000, 26];
  const svg = draw("svg", { class: "timeline", viewBox: `0 0 ${left + wide} ${row * engines.length + 24}`, tabindex: 0, role: "application",
    "aria-label": "The work of each engine over time. Plus and minus zoom, left and right move, 0 shows all, down and up go from one piece of work to the next, Enter opens its op." });
  const told = make("p", { class: "dim", role: "status" }, "Wheel or plus and minus zoom, left and right move, 0 shows all, down and up go through the work, Enter opens its op.");
  const turns = [...events].sort((one, other) => one.start - other.start);
  let chosen = null;
  function show() {
    const scale = wide / (view.to - view.from);
    const parts = engines.map((name, index) => draw("text", { x: 4, y: index * row + 17 }, cut(String(name), 16)));
    for (let tick = 0; tick <= 5; tick++) {
      const x = left + wide * tick / 5;
      parts.push(draw("path", { class: "grid", d: `M${x} 0V${row * engines.length}` }),
        draw("text", { x: x - 4, y: row * engines.length + 16, "text-anchor": tick ? "end" : "start" }, number(Math.round(view.from + (view.to - view.from) * tick / 5))));
    }
    for (const event of events) {
      if (event.end < view.from || event.start > view.to) continue;
      const start = Math.max(0, (event.start - view.from) * scale);
      const width = Math.min(wide, (event.end - view.from) * scale) - start;
      const about = aboutOf(event);
      parts.push(draw("rect", { class: event === chosen ? "chosen" : null, x: left + start, y: engines.indexOf(event.engine) * row + 4, width: Math.max(width, 0.4), height: row - 8,
        onclick: () => { choose(event); if (OPS[event.index]) page.select({ op: event.index }); } }, draw("title", {}, about)));
    }
    svg.replaceChildren(...parts);
  }
  function aboutOf(event) {
    return `${event.engine}: ${event.name || ""}, ${number(event.start)} to ${number(event.end)} (${number(event.end - event.start)} ${UNIT}), ${event.label || "no op of the model"}${event.waits_for ? `, waited for ${event.waits_for}` : ""}`;
  }
  function choose(event) {
    if (!event) return;
    chosen = event;
    told.textContent = aboutOf(event);
    const span = view.to - view.from;
    if (event.end > view.to || event.start < view.from) move(event.start - span / 2, span);
    else show();
  }
  function zoom(factor, share = 0.5) {
    const span = Math.max(1, Math.min(last - first || 1, (view.to - view.from) * factor));
    move(view.from + share * (view.to - view.from) - share * span, span);
  }
  function move(from, span = view.to - view.from) {
    view.from = Math.max(first, Math.min(from, Math.max(last, first + 1) - span));
    view.to = view.from + span;
    show();
  }
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const place = svg.getBoundingClientRect();
    const x = (event.clientX - place.left) / place.width * (left + wide) - left;
    zoom(Math.exp(event.deltaY * 0.002), Math.min(1, Math.max(0, x / wide)));
  }, { passive: false });
  svg.addEventListener("keydown", (event) => {
    const step = (view.to - view.from) / 5;
    const action = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.6), 0: () => zoom(1e9),
      ArrowLeft: () => move(view.from - step), ArrowRight: () => move(view.from + step),
      ArrowDown: () => choose(turns[turns.indexOf(chosen) + 1]), ArrowUp: () => choose(turns[turns.indexOf(chosen) - 1]),
      Enter: () => chosen && OPS[chosen.index] && page.select({ op: chosen.index }, true) }[event.key];
    if (action) { action(); event.preventDefault(); }
  });
  show();
  return make("div", {}, svg, told);
}
