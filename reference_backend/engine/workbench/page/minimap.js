// SPDX-License-Identifier: Apache-2.0
// A map of the whole graph at its side: where the regions, the ops of the host and the view are.
"use strict";

const MAP = { width: 90, marker: 3, clear: 8 };

// `look(x, y)` moves the view to a point of the picture.
function minimap(look) {
  const marks = draw("g");
  const frame = draw("rect", { class: "frame" });
  const element = draw("svg", { id: "minimap", "aria-hidden": true, preserveAspectRatio: "none" }, marks, frame);
  let size = { width: 1, height: 1 };

  // Long pictures are squeezed: the map has all of them.
  function fillMap(picture) {
    size = { width: Math.max(1, picture.size.width), height: Math.max(1, picture.size.height) };
    element.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
    const natural = MAP.width * size.height / size.width;
    element.style.maxHeight = `${Math.max(40, natural)}px`;
    const scale = Math.min(natural, element.clientHeight || 600) / size.height;
    const least = MAP.marker / scale;
    const place = (node, kind, high = node.height) => draw("rect", { class: kind, x: node.x - node.width / 2,
      y: node.y - high / 2, width: node.width, height: high });
    const outer = picture.nodes.filter((node) => node.region || stateOf(node.members[0].op) !== "host");
    const host = picture.nodes.filter((node) => !outer.includes(node));
    marks.replaceChildren(
      ...outer.map((node) => place(node, node.region ? "region" : stateOf(node.members[0].op), Math.max(node.height, least))),
      ...outer.filter((node) => node.region).flatMap((node) => node.members.map((box) => place(box, "npu"))),
      // Those on the host are what one looks for: they reach across where boxes are small.
      ...host.map((node) => place(node.height * scale < MAP.clear ? { ...node, x: size.width / 2, width: size.width } : node,
        "host", Math.max(node.height, least))));
  }
  // The part that is seen; without a map if that is all.
  function move(view, wide, high) {
    const [x, y, width, height] = [-view.x / view.scale, -view.y / view.scale, wide / view.scale, high / view.scale];
    element.classList.toggle("needless", x <= 0 && y <= 0 && x + width >= size.width && y + height >= size.height);
    const [left, top] = [Math.max(0, x), Math.max(0, y)];
    for (const [name, value] of Object.entries({ x: left, y: top, width: Math.max(0, Math.min(size.width, x + width) - left),
      height: Math.max(size.height / 150, Math.min(size.height, y + height) - top) })) frame.setAttribute(name, value);
  }
  function point(event) {
    const place = element.getBoundingClientRect();
    look((event.clientX - place.left) / place.width * size.width, (event.clientY - place.top) / place.height * size.height);
  }
  element.addEventListener("pointerdown", (event) => { element.setPointerCapture(event.pointerId); point(event); });
  element.addEventListener("pointermove", (event) => { if (event.buttons) point(event); });
  return { element, fill: fillMap, move };
}
