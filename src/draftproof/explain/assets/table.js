// Every number of the picture as a table, and the controls above it. Cells carry the full value in data-value.
draftproof.table = (() => {
  const { html, byId, write, set } = draftproof.dom;
  const { state, settings, numbers } = draftproof;
  const COLUMNS = ["p", "q", "alpha", "min", "max", "residual", "pi"];
  const STEPS = { p: "3 4 7", q: "1 2 3", alpha: "2 3", min: "3 7", max: "4 5 6 7", residual: "6", pi: "7" };
  const HEADS = { p: "p", q: "q", alpha: "α", min: "min(q, p)", max: "max(0, p−q)", residual: "max(0, p−q)/Z", pi: "π" };
  let cells = null;

  function columns() {
    const { p, q } = state;
    return {
      p,
      q,
      alpha: numbers.acceptProb(p, q),
      min: numbers.accepted(p, q),
      max: numbers.missing(p, q),
      residual: numbers.residual(p, q),
      pi: numbers.outputDistribution(p, q),
    };
  }

  const cell = (name, steps) => html("td", { "data-cell": name, "data-steps": steps });

  function build() {
    const { t } = settings;
    cells = {};
    const remember = (node) => ((cells[node.dataset.cell] = node), node);
    const head = COLUMNS.map((name) =>
      html("th", { scope: "col", "data-steps": STEPS[name] }, HEADS[name], html("small", {}, t(`column_${name}`))),
    );
    const rows = state.p.map((_, i) =>
      html("tr", {}, html("th", { scope: "row" }, state.names[i]), ...COLUMNS.map((name) => remember(cell(`${name}-${i}`, STEPS[name])))),
    );
    const total = html("tr", { class: "total" }, html("th", { scope: "row" }, "Σ"), ...COLUMNS.map((name) => remember(cell(`${name}-sum`, STEPS[name]))));
    const names = html("tr", { class: "names" }, html("td", {}), ...COLUMNS.map((name) => html("td", {}, name === "min" ? "= 1 − Z" : name === "max" ? "= Z" : "")));
    byId("numbers").replaceChildren(
      html("caption", { class: "hidden" }, t("table_label")),
      html("thead", {}, html("tr", {}, html("td", {}), ...head)),
      html("tbody", {}, ...rows),
      html("tfoot", {}, total, names),
    );
  }

  function update() {
    if (!cells || !(`p-${state.p.length - 1}` in cells) || `p-${state.p.length}` in cells) build();
    const values = columns();
    const put = (name, value, text) => {
      set(cells[name], { "data-value": value });
      write(cells[name], text);
    };
    for (const name of COLUMNS) {
      values[name].forEach((value, i) => put(`${name}-${i}`, value, state.format(value)));
      const total = numbers.sum(values[name]);
      if (name === "alpha") put("alpha-sum", "", "");
      else put(`${name}-sum`, total, state.format(total));
    }
  }

  function options(select, values, chosen, text) {
    select.replaceChildren(...values.map((value) => html("option", { value }, text(value))));
    select.value = String(chosen);
  }

  function controls() {
    const { t } = settings;
    const presets = Object.keys(state.presets);
    options(byId("size"), [3, 4, 5, 6, 7, 8], state.p.length, String);
    options(byId("digits"), [2, 3, 4, 6, 9, 12], state.digits, String);
    options(byId("preset"), ["", ...presets], "", (name) => (name ? t(`preset_${name}`) : t("preset_none")));
  }

  function start() {
    controls();
    byId("size").addEventListener("change", (event) => state.resize(Number(event.target.value)));
    byId("digits").addEventListener("change", (event) => state.show(Number(event.target.value)));
    byId("preset").addEventListener("change", (event) => {
      if (event.target.value) state.set(...state.presets[event.target.value](state.p.length));
      event.target.value = "";
    });
    byId("swap").addEventListener("click", () => state.set(state.q, state.p));
    state.onChange(update);
    settings.onLanguage(() => (controls(), build(), update()));
    update();
  }

  return { start };
})();
