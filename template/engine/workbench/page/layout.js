// SPDX-License-Identifier: Apache-2.0
// Where each op and region is in the picture.
//
// dagre lays out at most SLICE nodes at a time: its time grows faster than the number of nodes, and
// its recursion overflows the stack on a chain of 2,000. Slices follow each other from top to
// bottom, in an order in which each node comes behind those that it reads.
"use strict";

const SLICE = 100;
const GAP = 34;
const BOX = { width: 226, height: 54 };
const HEAD = 26;

// Nodes are {id, width, height}; edges are [from, to]. Sets x and y (the middle) of each
// node; `bends` has the way of each edge within a slice.
function layOut(nodes, edges) {
  const ordered = inOrder(nodes, edges);
  const size = { width: 0, height: 0, bends: new Map() };
  const slices = [];
  const readers = new Set(edges.map(([, to]) => to));
  for (let start = 0, end; start < ordered.length; start = end) {
    end = Math.min(start + SLICE, ordered.length);
    // What reads nothing stays with its reader, which may be the first of the next slice.
    while (end < ordered.length && end > start + 1 && !readers.has(ordered[end - 1].id)) end--;
    const slice = ordered.slice(start, end);
    const inside = new Set(slice.map((node) => node.id));
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ ranksep: GAP, nodesep: 24 });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const node of slice) graph.setNode(node.id, { width: node.width, height: node.height });
    for (const [from, to] of edges) if (inside.has(from) && inside.has(to)) graph.setEdge(from, to);
    (dagre.default || dagre).layout(graph);
    // The width that dagre tells is that of the boxes: edges may go around them.
    const xs = graph.edges().flatMap((edge) => graph.edge(edge).points.map(({ x }) => x));
    const left = Math.min(0, ...xs);
    const width = Math.max(graph.graph().width, ...xs) - left;
    const { height } = graph.graph();
    for (const node of slice) {
      const place = graph.node(node.id);
      node.x = place.x - left;
      node.y = size.height + place.y;
    }
    const bends = graph.edges().map((edge) => {
      const points = graph.edge(edge).points.map(({ x, y }) => ({ x: x - left, y: size.height + y }));
      size.bends.set(`${edge.v}>${edge.w}`, points);
      return points;
    });
    slices.push({ slice, width, bends });
    size.width = Math.max(size.width, width);
    size.height += height + GAP;
  }
  for (const { slice, width, bends } of slices)
    for (const point of [...slice, ...bends.flat()]) point.x += (size.width - width) / 2;
  size.height = Math.max(0, size.height - GAP);
  return size;
}

// The nodes, each behind those that it reads, else as they come. What reads nothing, such as the
// dequantization of a weight, comes with its first reader, and not with the first ops of the model.
function inOrder(nodes, edges) {
  const [next, sources] = [new Map(), new Map()];
  for (const { id } of nodes) {
    next.set(id, []);
    sources.set(id, []);
  }
  for (const [from, to] of edges) {
    next.get(from).push(to);
    sources.get(to).push(from);
  }
  const known = new Map(nodes.map((node) => [node.id, node]));
  const isFirst = (id) => !sources.get(id).length && next.get(id).length > 0;
  const waits = new Map(nodes.map(({ id }) => [id, sources.get(id).filter((from) => !isFirst(from)).length]));
  const ready = nodes.filter(({ id }) => !isFirst(id) && !waits.get(id)).reverse();
  const ordered = new Set();
  while (ready.length) {
    const node = ready.pop();
    for (const from of sources.get(node.id)) ordered.add(known.get(from));
    ordered.add(node);
    for (const to of next.get(node.id).slice().reverse()) {
      waits.set(to, waits.get(to) - 1);
      if (!waits.get(to)) ready.push(known.get(to));
    }
  }
  // None is left out, should there be a cycle.
  return [...new Set([...ordered, ...nodes])];
}

// The picture of one function: boxes of ops and regions, and edges between them.
function layOutFunction(name, collapsed) {
  const ops = OPS.filter((op) => op.function === name);
  const outer = new Map();
  const boxOf = new Map();
  for (const op of ops) {
    const id = op.region ? `region ${op.region}` : `op ${op.index}`;
    if (!outer.has(id)) outer.set(id, { id, region: op.region, members: [], ...BOX });
    const box = { id: op.index, op, ...BOX };
    outer.get(id).members.push(box);
    boxOf.set(op.index, { box, outer: outer.get(id) });
  }
  const inside = new Map([...outer.keys()].map((id) => [id, []]));
  const between = new Map();
  for (const op of ops)
    for (const source of op.reads) {
      const [from, to] = [boxOf.get(source), boxOf.get(op.index)];
      if (!from) continue;
      if (from.outer === to.outer) inside.get(from.outer.id).push([source, op.index]);
      else between.set(`${from.outer.id}>${to.outer.id}`, [from.outer.id, to.outer.id]);
    }
  const ways = new Map();
  for (const node of outer.values())
    if (node.region && !collapsed) {
      const size = layOut(node.members, inside.get(node.id));
      node.bends = size.bends;
      Object.assign(node, { width: size.width + 24, height: size.height + HEAD + 14 });
    }
  const size = layOut([...outer.values()], [...between.values()]);
  for (const node of outer.values()) {
    for (const [name, points] of node.bends || [])
      ways.set(name, points.map(({ x, y }) =>
        ({ x: x + node.x - node.width / 2 + 12, y: y + node.y - node.height / 2 + HEAD })));
    for (const box of node.members) {
      if (node.region && !collapsed) {
        box.x += node.x - node.width / 2 + 12;
        box.y += node.y - node.height / 2 + HEAD;
      } else Object.assign(box, { x: node.x, y: node.y });
    }
  }
  const edges = [];
  for (const op of ops)
    for (const source of op.reads) {
      const [from, to] = [boxOf.get(source), boxOf.get(op.index)];
      if (!from || (collapsed && from.outer === to.outer && to.outer.region)) continue;
      const way = from.outer === to.outer ? ways.get(`${source}>${op.index}`)
        : aroundOthers(from.box, to.box, size.bends.get(`${from.outer.id}>${to.outer.id}`), collapsed);
      edges.push({ from: from.box, to: to.box, way,
        border: from.outer !== to.outer && Boolean(from.outer.region || to.outer.region) });
    }
  return { size, nodes: [...outer.values()], edges };
}

// The way between boxes of different regions: around what lies between the regions.
function aroundOthers(from, to, bends, collapsed) {
  if (!bends || collapsed) return bends;
  return [{ x: from.x, y: from.y + from.height / 2 }, ...bends.slice(1, -1), { x: to.x, y: to.y - to.height / 2 - 3 }];
}
