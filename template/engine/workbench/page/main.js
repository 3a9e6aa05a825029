// SPDX-License-Identifier: Apache-2.0
// Makes the tabs, and shows what is selected.
"use strict";

(() => {
  const at = (id) => document.getElementById(id);
  const [tabs, panels, pane] = [at("tabs"), at("panels"), at("details")];
  const page = { selected: null };
  const known = [["overview", "Overview", overviewTab], ["ops", "Ops", opsTab], ["regions", "Regions", regionsTab], ["graph", "Graph", graphTab]];
  if (DATA.profile) known.push(["profile", "Profile", profileTab]);
  if (DATA.accuracy) known.push(["accuracy", "Accuracy", accuracyTab]);
  at("title").textContent = DATA.title;
  at("backend").textContent = REPORT.backend;
  at("summary").textContent = REPORT.summary;

  let current = null;
  page.open = (id) => {
    // The details belong to what was seen.
    if (id !== current) leave();
    current = id;
    for (const [other] of known) {
      const open = other === id;
      at(`tab-${other}`).setAttribute("aria-selected", open);
      at(`tab-${other}`).tabIndex = open ? 0 : -1;
      at(`panel-${other}`).hidden = !open;
    }
    if (id === "graph") graph.opened();
  };

  // Where the keys were before they went into the pane.
  let origin = null;

  // With `enter`, the keys go into the pane.
  page.select = (what, enter) => {
    const region = REGIONS.get(what.region);
    if (what.op === undefined && !region) return;
    if (!pane.contains(document.activeElement)) origin = document.activeElement;
    page.selected = what;
    const content = what.op !== undefined ? opDetails(OPS[what.op], page) : regionDetails(region, page);
    pane.replaceChildren(make("button", { class: "close", type: "button", "aria-label": "Close", onclick: close }, "×"), ...content);
    pane.hidden = false;
    pane.scrollTop = 0;
    graph.mark();
    if (!enter) return;
    const head = pane.querySelector("h2");
    head.tabIndex = -1;
    head.focus();
  };
  // A link of the pane: its content is another one then, and the graph moves along.
  page.follow = (what) => {
    page.select(what, true);
    if (!at("panel-graph").hidden) graph.reveal();
  };
  function leave() {
    pane.hidden = true;
    page.selected = null;
    leaveRow();
    graph.mark();
  }
  function close() {
    const inside = pane.contains(document.activeElement) || document.activeElement === document.body;
    const inGraph = !at("panel-graph").hidden && graph.chosen();
    const place = inGraph || origin;
    leave();
    if (!inside) return;
    const isShown = place && place.isConnected && place !== document.body && place.getClientRects().length > 0;
    (isShown ? place : tabs.querySelector("[aria-selected=true]")).focus({ preventScroll: Boolean(inGraph) });
  }
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented) return;
    const { target } = event;
    if (target.type === "search" && target.value) {
      target.value = "";
      target.dispatchEvent(new Event("input"));
    } else if (!pane.hidden) close();
    else return;
    event.preventDefault();
  });

  page.showInGraph = (index, keep) => {
    page.open("graph");
    page.select({ op: index });
    graph.show(index, keep);
  };

  let graph = null;
  for (const [id, name, fillPanel] of known) {
    tabs.append(make("button", { role: "tab", type: "button", id: `tab-${id}`, "aria-controls": `panel-${id}`,
      onclick: () => page.open(id) }, name));
    // The graph has stops of its own from edge to edge; the others are scrolled.
    const panel = make("section", { role: "tabpanel", id: `panel-${id}`, "aria-labelledby": `tab-${id}`,
      tabindex: id === "graph" ? null : 0 });
    panels.append(panel);
    const made = fillPanel(panel, page);
    if (id === "graph") graph = made;
  }
  tabs.addEventListener("keydown", (event) => {
    const now = known.findIndex(([id]) => at(`tab-${id}`) === document.activeElement);
    const index = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: -1 }[event.key];
    if (index === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const [next] = known.at(index % known.length);
    page.open(next);
    at(`tab-${next}`).focus();
  });
  page.open("overview");
})();
