"use strict";
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const text = { labelColor: "var(--ink)", titleColor: "var(--soft)" };
  // Colors are variables of the style sheet: light, dark and print need no second drawing.
  const config = {
    background: "transparent", font: "system-ui, sans-serif", padding: 4, aria: false,
    view: { stroke: null },
    axis: { ...text, gridColor: "var(--grid)", domainColor: "var(--soft)", tickColor: "var(--soft)",
      labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", titlePadding: 10 },
    legend: { ...text, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal",
      symbolBaseFillColor: "var(--soft)", symbolBaseStrokeColor: "var(--soft)" },
  };
  const options = {
    mode: "vega-lite", renderer: "svg", actions: false, ast: true, config, hover: false,
    tooltip: { disableDefaultStyle: true },
  };
  // The words around a chart speak for it: what is drawn is silent.
  const silent = (element) => element.querySelector("svg").setAttribute("aria-hidden", "true");
  const embed = (element, spec) => vegaEmbed(element, spec, options).then(() => silent(element));
  const draw = (element, spec) => embed(element, spec).catch((error) => {
    element.textContent = "This chart could not be drawn; its data are in the table below.";
    element.setAttribute("data-failed", String(error));
  });

  // A closed fold has no width to draw in: all are open until everything is drawn.
  const folds = [...document.querySelectorAll("details.fold")];
  const root = document.documentElement;
  root.classList.add("drawing");
  for (const fold of folds) fold.open = true;
  const again = () => window.dispatchEvent(new Event("resize"));
  const opened = () => {
    const place = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    const fold = place && place.querySelector("details.fold");
    if (fold) fold.open = true;
  };
  const drawn = () => {
    root.classList.remove("drawing");
    for (const fold of folds) fold.open = false;
    opened();
    for (const fold of folds) fold.addEventListener("toggle", () => fold.open && again());
    window.addEventListener("hashchange", () => { opened(); again(); });
    // On paper everything is open.
    const paper = window.matchMedia("print");
    let before = null;
    const unfold = () => {
      if (before === null) before = folds.map((fold) => fold.open);
      for (const fold of folds) fold.open = true;
      again();
    };
    const back = () => {
      if (before !== null) folds.forEach((fold, k) => { fold.open = before[k]; });
      before = null;
    };
    window.addEventListener("beforeprint", unfold);
    window.addEventListener("afterprint", back);
    paper.addEventListener("change", () => (paper.matches ? unfold() : back()));
    root.setAttribute("data-drawn", "yes");
  };

  const rest = [];
  for (const element of document.querySelectorAll("[data-chart]")) {
    if (element.dataset.chart !== "difference") {
      rest.push(draw(element, data.specs[element.dataset.chart]));
    }
  }

  // The heat map: states are searched and turned over by pages, steps are cut to a range.
  const heat = data.heat;
  const form = document.getElementById("heat-controls");
  const all = heat ? heatMap() : Promise.resolve();
  Promise.all([...rest, all]).then(drawn);

  function heatMap() {
    const element = document.querySelector('[data-chart="difference"]');
    const fields = form.elements;
    const status = document.getElementById("heat-status");
    const columns = heat.first.length;
    const names = heat.names.map((name) => name.toLowerCase());
    let page = 0;
    let turn = Promise.resolve();

    const found = () => {
      const wanted = fields.find.value.trim().toLowerCase();
      return names.map((_, row) => row).filter((row) => names[row].includes(wanted));
    };
    const cells = (rows) => {
      const from = fields.from.value === "" ? heat.first[0] : Number(fields.from.value);
      const to = fields.to.value === "" ? heat.last[columns - 1] : Number(fields.to.value);
      const values = [];
      for (const row of rows) {
        for (let c = 0; c < columns; c += 1) {
          if (heat.last[c] < from || heat.first[c] > to) continue;
          const target = heat.target[row * columns + c];
          const log = heat.log[row * columns + c];
          const [a, b] = [heat.first[c], heat.last[c]];
          values.push({ state: heat.labels[row], rank: row, from: a, to: b + 1,
            steps: a === b ? String(a) : `${a}–${b}`, target, log, difference: target - log });
        }
      }
      return values;
    };
    const show = () => {
      const rows = found();
      const pages = Math.max(Math.ceil(rows.length / heat.page), 1);
      page = Math.min(Math.max(page, 0), pages - 1);
      const here = rows.slice(page * heat.page, (page + 1) * heat.page);
      const values = cells(here);
      form.querySelector(".turn").hidden = pages === 1;
      fields.back.disabled = page === 0;
      fields.on.disabled = page === pages - 1;
      const first = page * heat.page + 1;
      status.textContent = values.length
        ? `States ${first} to ${first + here.length - 1} of ${rows.length} found, the largest first.`
        : "Nothing found: change the name or the steps.";
      const name = fields.show.value;
      document.getElementById("heat-title").textContent = data.titles[name];
      const height = Math.max(here.length, 1) * heat.height;
      const spec = { ...data.specs[name], height, data: { name: "cells", values } };
      turn = turn.then(() => (values.length ? draw(element, spec) : element.replaceChildren()));
      return turn;
    };
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => {
      if (event.target === fields.find) page = 0;
      show();
    });
    fields.back.addEventListener("click", () => { page -= 1; show(); });
    fields.on.addEventListener("click", () => { page += 1; show(); });
    return show();
  }
})();
