// SPDX-License-Identifier: Apache-2.0
// Makes elements. Text is set as text, never as markup: names come from models.
"use strict";

const SVG = "http:" + "//www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((item) => item !== null && item !== undefined));
  return node;
}

const make = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);

const draw = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

const plural = (count, name) => `${number(count)} ${name}${count === 1 ? "" : "s"}`;

function number(value) {
  return typeof value === "number" ? value.toLocaleString("en-US") : value ?? "unknown";
}

function bytes(value) {
  if (typeof value !== "number") return "unknown";
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (value >= size) return `${(value / size).toFixed(value >= 100 * size ? 0 : 1)} ${unit}`;
  return `${value} B`;
}

// A count in words of three digits, such as 1.8 G.
function short(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]])
    if (value >= size) return `${(value / size).toFixed(1)} ${unit}`;
  return String(value);
}

// The end of a name says more than its beginning.
const tail = (text, length) => (text.length > length ? "…" + text.slice(1 - length) : text);
// A name that may wrap after each of its parts.
const breakable = (text) => text.split(/(?<=[/_.:])(?=\w)/).flatMap((part, index) => (index ? [make("wbr"), part] : [part]));
const cut = (text, length) => (text.length > length ? text.slice(0, length - 1) + "…" : text);

// A table: columns are {name, cell(row), value(row), number, text, minor, hint}; with `value` a column can be sorted. A column
// of text, such as names, stays readable and wraps anywhere; a minor one is left out where space is short. Its rows are one stop of the Tab key, in which arrows move.
// `onPick(row, enter)` is told whether a key picked the row.
const classOf = ({ number: isNumber, text, minor }) =>
  [isNumber ? "number" : text ? "text" : "", minor ? "minor" : ""].join(" ").trim() || null;

function table(columns, rows, onPick) {
  const body = make("tbody");
  const state = { column: null, down: false, shown: rows };
  const lines = new Map();
  const moveTo = roving();
  const heads = columns.map((column) => {
    const label = column.value
      ? make("button", { type: "button", onclick: () => sort(column) }, column.name)
      : make("span", {}, column.name);
    return make("th", { class: classOf(column), scope: "col", title: column.hint }, label);
  });
  function sort(column) {
    state.down = state.column === column ? !state.down : Boolean(column.number);
    state.column = column;
    heads.forEach((head, index) => {
      if (columns[index] === column)
        head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    show(state.shown);
  }
  function show(found) {
    state.shown = found;
    let ordered = found;
    if (state.column) {
      const sign = state.down ? -1 : 1;
      const { value } = state.column;
      ordered = [...found].sort((one, other) => {
        const [a, b] = [value(one), value(other)];
        return sign * (typeof a === "number" || typeof b === "number"
          ? (a ?? -1) - (b ?? -1) : String(a ?? "").localeCompare(String(b ?? "")));
      });
    }
    // The same rows in another order: who has left one comes back to it.
    body.replaceChildren(...ordered.map((row) => {
      if (!lines.has(row)) lines.set(row, lineOf(row));
      return lines.get(row);
    }));
    if (onPick) moveTo.stop(body.firstChild);
  }
  function lineOf(row) {
    const cells = columns.map((column) =>
      make("td", { class: classOf(column) }, column.cell(row)));
    if (!onPick) return make("tr", {}, cells);
    const pick = (enter) => {
      leaveRow();
      line.setAttribute("aria-current", "true");
      onPick(row, enter);
    };
    // A click without a mouse, of a screen reader, has no count.
    const line = make("tr", { class: "pick", tabindex: -1, onclick: (event) => pick(event.detail === 0),
      onfocus: () => moveTo.stop(line), onkeydown: (event) => {
        if (event.target !== line) return;
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(true); }
        else moveTo.key(event, [...body.children]);
      } }, cells);
    return line;
  }
  show(rows);
  const element = make("table", {}, make("thead", {}, make("tr", {}, heads)), body);
  const enter = () => body.firstChild && body.firstChild.focus();
  return { element, show, enter };
}

// No row is the one that was picked.
function leaveRow() {
  for (const line of document.querySelectorAll("tr[aria-current]")) line.removeAttribute("aria-current");
}

// Of many items, one is a stop of the Tab key, and arrows move to the others.
function roving() {
  let stop = null;
  const moveTo = {
    stop(item) {
      if (stop) stop.setAttribute("tabindex", -1);
      stop = item;
      if (stop) stop.setAttribute("tabindex", 0);
    },
    key(event, items) {
      const now = items.indexOf(event.target);
      const next = { ArrowDown: now + 1, ArrowRight: now + 1, ArrowUp: now - 1, ArrowLeft: now - 1, PageDown: now + 10,
        PageUp: now - 10, Home: 0, End: items.length - 1 }[event.key];
      if (next === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      items[Math.max(0, Math.min(items.length - 1, next))].focus();
    },
  };
  return moveTo;
}
