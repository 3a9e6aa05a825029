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

const cut = (text, length) => (text.length > length ? text.slice(0, length - 1) + "…" : text);

// A table: columns are {name, cell(row), value(row), number, text}; with `value` a column can be sorted. A column of
// text, such as names, stays readable and wraps anywhere.
function table(columns, rows, onPick) {
  const body = make("tbody");
  const state = { column: null, down: false, shown: rows };
  const heads = columns.map((column) => {
    const label = column.value
      ? make("button", { type: "button", onclick: () => sort(column) }, column.name)
      : make("span", {}, column.name);
    return make("th", { class: column.number ? "number" : null, scope: "col" }, label);
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
    body.replaceChildren(...ordered.map((row) => {
      const cells = columns.map((column) =>
        make("td", { class: column.number ? "number" : column.text ? "text" : null }, column.cell(row)));
      if (!onPick) return make("tr", {}, cells);
      const pick = () => onPick(row);
      const line = make("tr", { class: "pick", tabindex: 0, onclick: pick, onkeydown: (event) => {
        if (event.key === "Enter") pick();
        const next = { ArrowDown: line.nextSibling, ArrowUp: line.previousSibling }[event.key];
        if (next) { next.focus(); event.preventDefault(); }
      } }, cells);
      return line;
    }));
  }
  show(rows);
  const element = make("table", {}, make("thead", {}, make("tr", {}, heads)), body);
  return { element, show };
}
