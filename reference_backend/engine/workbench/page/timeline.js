// SPDX-License-Identifier: Apache-2.0
// A timeline: one row for each lane, moved and zoomed with the wheel or the keys.
"use strict";

const ROW = 28;
const LEFT = 110;
const HELP = "Wheel, or + and −, zoom; Left and Right move; 0 shows all; Down and Up go through the work; Enter opens its op. Dots are waits.";

// Events are {lane, start, end, title, about, index, colour, waits}: `index` is the op that it belongs to, if any.
// The axis reaches to `end`, if there is one. `name` is what screen readers are told, and `help` whether the keys are.
function timeline(events, { id, lanes, end, name, help, page }) {
  const first = Math.min(0, ...events.slice(0, 1).map((event) => event.start));
  const last = events.reduce((most, event) => Math.max(most, event.end), Math.max(end || 0, first + 1e-3));
  const view = { from: first, to: last };
  const turns = [...events].sort((one, other) => one.start - other.start);
  const high = ROW * lanes.length;
  const svg = draw("svg", { id, class: "timeline", height: high + 24, tabindex: 0, role: "application",
    "aria-label": `${name} Plus and minus zoom, left and right move, 0 shows all, down and up go from one piece of work to the next, Enter opens its op.` });
  const told = make("p", { class: "dim told", role: "status" }, help ? HELP : "");
  let chosen = null;
  let width = 0;
  const wide = () => Math.max(100, (width || 960) - LEFT - 8);

  function show() {
    const scale = wide() / (view.to - view.from);
    const place = (time) => LEFT + Math.max(0, Math.min(wide(), (time - view.from) * scale));
    const parts = lanes.map((lane, row) => draw("text", { x: 6, y: row * ROW + 18 }, cut(String(lane), 15)));
    for (const tick of ticks(view.from, view.to, wide() / 110)) {
      const x = place(tick);
      const anchor = x > LEFT + wide() - 40 ? "end" : x < LEFT + 20 ? "start" : "middle";
      parts.push(draw("path", { class: "grid", d: `M${x} 0V${high}` }),
        draw("text", { class: "tick", x, y: high + 16, "text-anchor": anchor }, number(Number(tick.toPrecision(12)))));
    }
    for (const event of events) if (event.end >= view.from && event.start <= view.to) parts.push(...marksOf(event, place));
    svg.replaceChildren(...parts);
  }
  function marksOf(event, place) {
    const top = lanes.indexOf(event.lane) * ROW + 4;
    const [start, end] = [place(event.start), place(event.end)];
    const size = Math.max(end - start, 0.5);
    const marks = [];
    const from = place(event.start - (event.waits || 0));
    if (start - from > 3)
      marks.push(draw("path", { class: "wait", d: `M${from} ${top + (ROW - 8) / 2}H${start}` }));
    const kind = `${event === chosen ? "chosen" : ""} ${size > 4 ? "" : "thin"}`.trim();
    marks.push(draw("rect", { class: kind || null, x: start, y: top, width: size, height: ROW - 8,
      style: event.colour ? `--own:${event.colour}` : null,
      onclick: () => { choose(event); if (OPS[event.index]) page.select({ op: event.index }); } }, draw("title", {}, event.about)));
    const room = Math.floor((size - 8) / 6.6);
    if (room > 5) marks.push(draw("text", { class: "name", x: start + 4, y: top + 14 }, brief(event.title, room)));
    return marks;
  }
  function choose(event) {
    if (!event) return;
    chosen = event;
    told.textContent = event.about;
    const span = view.to - view.from;
    if (event.end > view.to || event.start < view.from) move(event.start - span / 2, span);
    else show();
  }
  // Without a place, about the event that is chosen, if it is seen: it stays so.
  function zoom(factor, share) {
    const span = Math.max((last - first) / 1e5, Math.min(last - first, (view.to - view.from) * factor));
    const middle = chosen ? ((chosen.start + chosen.end) / 2 - view.from) / (view.to - view.from) : -1;
    const isKept = share === undefined && middle >= 0 && middle <= 1;
    const fixed = share ?? (isKept ? middle : 0.5);
    const from = view.from + fixed * (view.to - view.from - span);
    move(isKept ? Math.max(chosen.end - span, Math.min(chosen.start, from)) : from, span);
  }
  function move(from, span = view.to - view.from) {
    view.from = Math.max(first, Math.min(from, last - span));
    view.to = view.from + span;
    show();
  }
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const x = event.clientX - svg.getBoundingClientRect().left - LEFT;
    zoom(Math.exp(event.deltaY * 0.002), Math.min(1, Math.max(0, x / wide())));
  }, { passive: false });
  svg.addEventListener("keydown", (event) => {
    const step = (view.to - view.from) / 5;
    const action = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.6), 0: () => move(first, last - first),
      ArrowLeft: () => move(view.from - step), ArrowRight: () => move(view.from + step),
      ArrowDown: () => choose(turns[turns.indexOf(chosen) + 1]), ArrowUp: () => choose(turns[turns.indexOf(chosen) - 1]),
      Enter: () => chosen && OPS[chosen.index] && page.select({ op: chosen.index }, true) }[event.key];
    if (action) { action(); event.preventDefault(); }
  });
  // As wide as it is on the screen: its texts keep their size.
  new ResizeObserver(([entry]) => {
    if (!entry.contentRect.width || entry.contentRect.width === width) return;
    width = entry.contentRect.width;
    show();
  }).observe(svg);
  show();
  return make("div", {}, svg, told);
}

// The end of a name; that of a path is often the kind of the op, which says less than what is before.
function brief(title, room) {
  const parts = title.split("/").length;
  if (parts === 1) return cut(title, room);
  return tail(title.length > room && parts > 3 ? title.slice(0, title.lastIndexOf("/")) : title, room);
}

// Round numbers between two, at most `most` of them.
function ticks(from, to, most) {
  const rough = (to - from) / Math.max(2, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let index = Math.ceil(from / step - 1e-9); index * step <= to + step * 1e-9; index++) found.push(index * step);
  return found;
}
