// SPDX-License-Identifier: Apache-2.0
// The tab Graph: the picture, moved with the mouse, the wheel or the keys.
"use strict";

const READABLE = 1;

function graphTab(panel, page) {
  const functions = [...new Set(OPS.map((op) => op.function))];
  const view = { x: 0, y: 0, scale: 1 };
  const drawn = { ops: new Map(), regions: new Map(), edges: [], size: { width: 1, height: 1 } };
  const layer = draw("g");
  const canvas = draw("svg", { id: "canvas", role: "application", tabindex: 0,
    "aria-label": "The partitioned model. Enter goes to an op. From there, up goes to what it reads, down to what reads it, left and right to its neighbours, and Enter opens it. Plus and minus zoom, 0 shows all, arrows with Shift move the picture, N goes to the next op on the host, Shift and N to the one before." }, marker(), layer);
  const choose = make("select", { id: "function", "aria-label": "Function", onchange: () => { rebuild(); fit(READABLE); } },
    functions.map((name) => make("option", { value: name }, name)));
  const collapse = make("input", { type: "checkbox", id: "collapse", onchange: () => { rebuild(); fit(READABLE); } });
  const find = make("input", { type: "search", id: "find", placeholder: "Find an op, press Enter",
    "aria-label": "Find in the graph. Enter goes from one to the next, arrow down into the picture.",
    onkeydown: (event) => {
      if (event.key === "Enter") findNext();
      else if (event.key === "ArrowDown") { event.preventDefault(); enter(); }
    } });
  const found = make("span", { class: "dim", role: "status" });
  const button = (text, label, action) => make("button", { type: "button", "aria-label": label, onclick: action }, text);
  const host = OPS.filter((op) => stateOf(op) === "host").map((op) => op.index);
  const nextHost = host.length ? make("button", { type: "button", id: "next-host", onclick: () => goToHost(1) }) : null;
  const map = minimap((x, y) => {
    view.x = canvas.clientWidth / 2 - x * view.scale;
    view.y = canvas.clientHeight / 2 - y * view.scale;
    apply();
  });
  panel.append(make("div", { class: "tools" }, functions.length > 1 ? choose : null, find,
    button("+", "Larger", () => zoom(1.3)), button("−", "Smaller", () => zoom(1 / 1.3)),
    button("Fit", "Show all", () => fit()), nextHost, make("label", {}, collapse, " collapse regions"), found),
  make("div", { class: "graph" }, canvas, map.element, legend()));

  function rebuild() {
    const picture = layOutFunction(choose.value || functions[0], collapse.checked);
    Object.assign(drawn, { ops: new Map(), regions: new Map(), edges: [], size: picture.size });
    // Edges pass behind the titles of regions.
    const [back, lines, titles, front] = [draw("g"), draw("g"), draw("g", { class: "titles" }), draw("g")];
    for (const node of picture.nodes) {
      if (node.region) back.append(regionBox(node));
      if (node.region) titles.append(...regionTitle(node));
      if (node.region && collapse.checked) {
        for (const box of node.members) drawn.ops.set(box.id, { box, group: drawn.regions.get(node.region).group });
        continue;
      }
      front.append(...node.members.map(opBox));
    }
    for (const edge of picture.edges) {
      const path = draw("path", { class: edge.border ? "edge border" : "edge", d: edge.way ? smooth(edge.way) : curve(edge.from, edge.to), "marker-end": "url(#arrow)" });
      drawn.edges.push({ ...edge, path });
      lines.append(path);
    }
    layer.replaceChildren(back, lines, titles, front);
    map.fill(picture);
    canvas.dataset.nodes = picture.nodes.reduce((total, node) => total + node.members.length, 0);
    mark();
  }

  function opBox(box) {
    const { op } = box;
    const fusion = fusionOf(op);
    const lines = [`${kindOf(op)} · ${op.result}`, op.code ? `⚑ ${op.code}` : fusion && `in ${fusion}`].filter(Boolean);
    const top = lines.length > 1 ? 16 : 22;
    const group = draw("g", { class: `op ${stateOf(op)}`, tabindex: -1, role: "button", "data-op": op.index,
      "aria-label": `${kindOf(op)} ${titleOf(op)}, ${op.placement}${op.code ? ", " + op.code : ""}`,
      transform: `translate(${box.x - box.width / 2} ${box.y - box.height / 2})`,
      onclick: () => page.select({ op: op.index }), onkeydown: (event) => walk(event, { op: op.index }, [op]) },
      draw("title", {}, `${titleOf(op)}\n${lines.join("\n")}${op.reason ? `\n${op.code}: ${op.reason}` : ""}`),
      draw("rect", { class: "box", width: box.width, height: box.height }),
      draw("text", { x: 8, y: top }, tail(titleOf(op), 29)),
      lines.map((line, row) => draw("text", { x: 8, y: top + 15 + 14 * row, class: "small" }, cut(line, 38))));
    drawn.ops.set(op.index, { box, group });
    return group;
  }

  function regionBox(node) {
    const group = draw("g", { class: "region", tabindex: -1, role: "button", "data-region": node.region, "aria-label": `Region ${node.region}`,
      transform: `translate(${node.x - node.width / 2} ${node.y - node.height / 2})`,
      onclick: () => page.select({ region: node.region }),
      onkeydown: (event) => walk(event, { region: node.region }, node.members.map(({ op }) => op)) },
      draw("title", {}, `${node.region}: ${plural(node.members.length, "op")}`),
      draw("rect", { class: "box", width: node.width, height: node.height }));
    drawn.regions.set(node.region, { box: node, group });
    return group;
  }

  function regionTitle(node) {
    const region = REGIONS.get(node.region);
    const at = (y, kind, text) => draw("text", { x: node.x - node.width / 2 + 8, y: node.y - node.height / 2 + y, class: kind }, text);
    const title = at(17, null, cut(regionName(node.region), Math.max(26, Math.floor(node.width / 8))));
    if (!collapse.checked) return [title];
    return [title, at(32, "small", plural(node.members.length, "op")), at(46, "small", `${region ? short(region.macs || 0) : "?"} MACs`)];
  }

  // Enter goes into the pane, arrows to what a box of ops reads, what reads it, and its neighbours in the order.
  function walk(event, what, ops) {
    const isPan = event.shiftKey && event.key.startsWith("Arrow");
    if (isPan || event.ctrlKey || event.altKey || event.metaKey) return;
    const inside = new Set(ops.map((op) => op.index));
    const outer = (indices) => indices.find((index) => !inside.has(index) && drawn.ops.has(index));
    const next = { ArrowUp: () => outer(ops.flatMap((op) => op.reads)), ArrowDown: () => outer(ops.flatMap((op) => op.readers)),
      ArrowLeft: () => ops[0].index - 1, ArrowRight: () => ops.at(-1).index + 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") page.follow(what);
    else if (event.key === "Escape" && !page.selected) canvas.focus();
    else if (!next) return;
    else go(next());
    event.preventDefault();
    event.stopPropagation();
  }

  // To the box of an op: the op, or the region that is drawn instead of it.
  function go(index) {
    const op = OPS[index];
    if (!op) return;
    if (!collapse.checked || !op.region) { page.showInGraph(index); return; }
    show(index);
    page.select({ region: op.region });
  }

  // The ops on the host, one after the other.
  function goToHost(step) {
    if (!host.length) return;
    const now = page.selected && page.selected.op !== undefined ? page.selected.op : recent;
    const before = host.filter((index) => (step > 0 ? index <= now : index < now)).length;
    const next = host.at((before + (step > 0 ? 0 : -1)) % host.length);
    page.showInGraph(next, document.activeElement === nextHost);
  }
  function tellHost() {
    const at = page.selected ? host.indexOf(page.selected.op) + 1 : 0;
    if (nextHost) nextHost.textContent = `next on the host (${at || "–"}/${host.length})`;
  }

  // The keys go to what is selected, else to where they were, else to the first op.
  function enter() {
    const place = chosen();
    if (place) place.focus({ preventScroll: true });
    else if (drawn.ops.has(recent)) go(recent);
    else if (drawn.ops.size) go([...drawn.ops.keys()][0]);
  }

  function findNext() {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const last = page.selected && page.selected.op !== undefined ? page.selected.op : -1;
    const matches = OPS.filter((op) => words.length && words.every((word) =>
      `${op.op} ${op.name} ${titleOf(op)} ${op.code || ""} ${op.region || ""}`.toLowerCase().includes(word)));
    found.textContent = words.length ? plural(matches.length, "match").replace("matchs", "matches") : "";
    const next = matches.find((op) => op.index > last) || matches[0];
    if (next) page.showInGraph(next.index, true);
  }

  // ---- The view ----

  let width = 0;
  function apply() {
    width = canvas.clientWidth;
    layer.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
    map.move(view, canvas.clientWidth, canvas.clientHeight);
  }
  function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const scale = Math.min(3, Math.max(0.01, view.scale * factor));
    view.x = x - (x - view.x) * (scale / view.scale);
    view.y = y - (y - view.y) * (scale / view.scale);
    view.scale = scale;
    apply();
  }
  // All of it, unless that is too small to be recognized: then its top.
  function fit(least = 0.5) {
    const { width, height } = drawn.size;
    const [wide, high] = [canvas.clientWidth - 40, canvas.clientHeight - 40];
    view.scale = Math.max(least, Math.min(1.2, wide / width, high / height));
    const isWide = width * view.scale > wide;
    // The first op, where all of them do not fit.
    const start = drawn.ops.size ? [...drawn.ops.values()][0].box.x : 0;
    view.x = isWide ? canvas.clientWidth / 2 - start * view.scale : (canvas.clientWidth - width * view.scale) / 2;
    view.y = Math.max(20, (canvas.clientHeight - height * view.scale) / 2);
    apply();
  }
  function centre(box) {
    view.scale = Math.max(view.scale, 0.8);
    view.x = canvas.clientWidth / 2 - box.x * view.scale;
    view.y = canvas.clientHeight / 2 - box.y * view.scale;
    apply();
  }
  // The details take a part of the width: what was in the middle, or is selected, stays seen.
  new ResizeObserver(() => {
    if (!width || !canvas.clientWidth || canvas.clientWidth === width) return;
    view.x += (canvas.clientWidth - width) / 2;
    const box = boxOf() && boxOf().box;
    const reach = box && box.width / 2 * view.scale;
    if (box) view.x = Math.max(reach - box.x * view.scale, Math.min(view.x, canvas.clientWidth - reach - box.x * view.scale));
    apply();
  }).observe(canvas);
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const place = canvas.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - place.left, event.clientY - place.top);
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX - view.x, y: event.clientY - view.y }; });
  addEventListener("pointermove", (event) => {
    if (!drag) return;
    if (!event.buttons) { drag = null; return; }
    view.x = event.clientX - drag.x;
    view.y = event.clientY - drag.y;
    apply();
  });
  addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [0, 80], ArrowDown: [0, -80], ArrowLeft: [80, 0], ArrowRight: [-80, 0] }[event.key];
    if (event.key === "+" || event.key === "=") zoom(1.3);
    else if (event.key === "-") zoom(1 / 1.3);
    else if (event.key === "0") fit();
    else if (event.key === "n" || event.key === "N") goToHost(event.shiftKey ? -1 : 1);
    else if (event.key === "Enter" && event.target === canvas) enter();
    else if (step) { view.x += step[0]; view.y += step[1]; apply(); }
    else return;
    event.preventDefault();
  });

  // What is drawn of the selection.
  function boxOf() {
    const { op, region } = page.selected || {};
    return op !== undefined ? drawn.ops.get(op) : drawn.regions.get(region);
  }
  const chosen = () => boxOf() && boxOf().group;

  function mark() {
    tellHost();
    layer.querySelectorAll(".selected, .near").forEach((node) => node.classList.remove("selected", "near"));
    const { op } = page.selected || {};
    const box = boxOf();
    if (box) box.group.classList.add("selected");
    if (op !== undefined)
      for (const edge of drawn.edges) edge.path.classList.toggle("near", edge.from.id === op || edge.to.id === op);
  }

  let ready = false;
  let recent = -1;
  function opened() {
    if (ready || !OPS.length) return;
    ready = true;
    rebuild();
    fit(READABLE);
  }
  function show(index, keep) {
    opened();
    if (choose.value !== OPS[index].function) {
      choose.value = OPS[index].function;
      rebuild();
    }
    recent = index;
    const { box, group } = drawn.ops.get(index);
    centre(box);
    mark();
    if (!keep) group.focus({ preventScroll: true });
  }
  // The selection, in the middle; the keys stay where they are.
  function reveal() {
    const { op } = page.selected;
    if (op !== undefined) show(op, true);
    else if (boxOf()) centre(boxOf().box);
  }
  return { opened, show, mark, chosen, reveal };
}

function curve(from, to) {
  const [x1, y1, x2, y2] = [from.x, from.y + from.height / 2, to.x, to.y - to.height / 2];
  const bend = Math.max(16, Math.abs(y2 - y1) / 2);
  // A long edge passes next to the boxes in between.
  const aside = y2 - y1 > 150 ? Math.min(130, 60 + Math.abs(y2 - y1) / 20) : 0;
  return `M${x1} ${y1}C${x1 + 1.6 * aside} ${y1 + bend} ${x2 + 1.6 * aside} ${y2 - bend} ${x2} ${y2 - 3}`;
}

// Through the middles between the points, bent at the points.
function smooth(points) {
  const middle = (one, other) => `${(one.x + other.x) / 2} ${(one.y + other.y) / 2}`;
  const parts = points.slice(1, -1).map((point, index) => {
    const next = points[index + 2];
    return `Q${point.x} ${point.y} ${index + 3 === points.length ? `${next.x} ${next.y}` : middle(point, next)}`;
  });
  return `M${points[0].x} ${points[0].y}${parts.join("") || `L${points[1].x} ${points[1].y}`}`;
}

function marker() {
  return draw("defs", {}, draw("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 7, markerHeight: 7,
    markerUnits: "userSpaceOnUse", orient: "auto" }, draw("path", { d: "M0 0L8 4L0 8z", fill: "context-stroke" })));
}

function legend() {
  const item = (name, text) => make("span", {},
    make("i", { style: `background:var(--${name});border-color:var(--${name === "book" ? "dim" : name + "-line"})` }), text);
  return make("span", { class: "legend" }, item("npu", "NPU"), item("host", "host, with its reason"), item("book", "bookkeeping"));
}
