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

  page.open = (id) => {
    for (const [other] of known) {
      const open = other === id;
      at(`tab-${other}`).setAttribute("aria-selected", open);
      at(`tab-${other}`).tabIndex = open ? 0 : -1;
      at(`panel-${other}`).hidden = !open;
    }
    if (id === "graph") graph.opened();
  };

  page.select = (what) => {
    page.selected = what;
    const region = REGIONS.get(what.region);
    if (what.op === undefined && !region) return;
    const content = what.op !== undefined ? opDetails(OPS[what.op], page) : regionDetails(region, page);
    pane.replaceChildren(make("button", { class: "close", type: "button", "aria-label": "Close", onclick: close }, "×"), ...content);
    pane.hidden = false;
    pane.scrollTop = 0;
    graph.mark();
  };
  function close() {
    pane.hidden = true;
    page.selected = null;
    graph.mark();
  }
  addEventListener("keydown", (event) => { if (event.key === "Escape" && !pane.hidden) close(); });

  page.showInGraph = (index, keep) => {
    page.open("graph");
    page.select({ op: index });
    graph.show(index, keep);
  };

  let graph = null;
  for (const [id, name, fillPanel] of known) {
    tabs.append(make("button", { role: "tab", type: "button", id: `tab-${id}`, "aria-controls": `panel-${id}`,
      onclick: () => page.open(id) }, name));
    const panel = make("section", { role: "tabpanel", id: `panel-${id}`, "aria-labelledby": `tab-${id}` });
    panels.append(panel);
    const made = fillPanel(panel, page);
    if (id === "graph") graph = made;
  }
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const now = known.findIndex(([id]) => at(`tab-${id}`) === document.activeElement);
    const [next] = known[(now + step + known.length) % known.length];
    page.open(next);
    at(`tab-${next}`).focus();
  });
  page.open("overview");
})();
