// Break it: every planted fault of the package as a switch, its law beside the right one.
draftproof.faults = (() => {
  const { html, svg, set, byId, patterns, onWidth } = draftproof.dom;
  const { state, settings, numbers, laws } = draftproof;
  const PLACES = 4;
  const cards = [];

  const short = (value) => String(Number(value.toFixed(PLACES))); // 0.5, not 0.5000
  const own = () => byId("faults-own").checked;
  const dists = (fault) => (own() ? [state.p, state.q] : [fault.p, fault.q]);
  const law = (card, p, q) => (card.on ? laws.faults[card.fault.name](p, q) : numbers.outputDistribution(p, q));

  function card(fault) {
    const it = { fault, on: true, width: 0 };
    const id = `fault-${fault.name}`;
    it.switch = html("button", { type: "button", role: "switch", "aria-checked": "true", "aria-labelledby": `${id}-title`, class: "switch",
      onclick: () => flip(it, !it.on) }, html("span", { class: "knob" }));
    it.title = html("h3", { id: `${id}-title` });
    it.code = html("code", { lang: "en" }, fault.name);
    it.text = html("p");
    it.chart = html("div", { class: "fault-chart" });
    it.line = html("p", { class: "figure-line" });
    it.extra = html("div", { class: "fault-extra" });
    it.node = html("article", { class: "card", id, "data-fault": fault.name }, html("div", { class: "card-head" }, it.title, it.switch), it.code, it.text, it.chart, it.line, it.extra);
    return it;
  }

  function flip(it, on) {
    it.on = on;
    it.switch.setAttribute("aria-checked", String(on));
    draw(it);
  }

  function chart(it, right, wrong) {
    const width = it.width;
    const height = 150;
    const n = right.length;
    const full = height - 56;
    const base = height - 32;
    const scale = full / Math.max(...right, ...wrong);
    const column = width / n;
    const bar = Math.min(48, column * 0.42);
    const root = svg("svg", { width, height, class: "chart", role: "img" }, patterns(it.fault.name));
    right.forEach((value, i) => {
      const middle = column * (i + 0.5);
      const draw = (x, v, attributes, letter) => {
        root.append(svg("rect", { x, width: bar, y: base - v * scale, height: v * scale, ...attributes }));
        if (bar >= 34) root.append(svg("text", { x: x + bar / 2, y: base - v * scale - 5, class: "value" }, v.toFixed(3)));
        root.append(svg("text", { x: x + bar / 2, y: base + 13, class: "letter" }, letter));
      };
      draw(middle - bar - 1.5, value, { class: "fill-accepted" }, "p");
      draw(middle + 1.5, wrong[i], it.on ? { fill: `url(#${it.fault.name}-second)`, class: "stroke-second" } : { class: "fill-accepted" }, "π");
      root.append(svg("text", { x: middle, y: height - 3, class: "token-name" }, state.names[i]));
    });
    root.append(svg("line", { x1: 0, x2: width, y1: base, y2: base, class: "axis" }));
    const list = (values) => values.map((v) => v.toFixed(PLACES)).join(", ");
    set(root, { "aria-label": settings.t("fault_label", { right: list(right), out: list(wrong) }) });
    it.chart.replaceChildren(root);
  }

  // The scheduler of the retrospective case, in numbers: what it would gain by each length, after each token.
  function scheduler(size) {
    const { t } = settings;
    const rows = Array.from({ length: Math.min(size, 2) }, (_, x) => {
      const values = laws.throughput(x);
      const best = laws.chosenLength(x);
      return html("tr", {}, html("th", { scope: "row" }, x ? t("any_other", { token: state.names[0] }) : state.names[0]),
        ...values.map((v, length) => html("td", {}, length === best ? html("strong", {}, `${v.toFixed(3)} ◂`) : v.toFixed(3))));
    });
    return html("table", { class: "numbers small" },
      html("caption", {}, t("scheduler_caption")),
      html("thead", {}, html("tr", {}, html("th", { scope: "col" }, t("scheduler_drafted")), ...[0, 1, 2].map((n) => html("th", { scope: "col" }, String(n))))),
      html("tbody", {}, ...rows));
  }

  function draw(it) {
    const { t } = settings;
    const { fault } = it;
    const [p, q] = dists(fault);
    const out = law(it, p, q);
    const distance = numbers.totalVariation(out, p);
    it.title.textContent = t(`fault_${fault.name}_title`);
    it.text.textContent = t(`fault_${fault.name}_text`);
    it.line.replaceChildren(
      html("span", { class: it.on ? "bad" : "good" }, it.on ? `TV ${distance.toFixed(PLACES)}` : t("fault_off")),
      ...Object.entries({ p, q, π: out }).map(([name, values]) => html("span", { class: "dist" }, `${name} = (${values.map(short).join(", ")})`)),
    );
    set(it.node, { "data-law": JSON.stringify(out), "data-tv": distance, class: `card ${it.on ? "on" : ""}` });
    it.extra.replaceChildren(...(fault.name === "retrospective_schedule" ? [scheduler(p.length)] : []));
    if (it.width) chart(it, p, out);
  }

  const drawAll = () => cards.forEach(draw);
  const flipAll = (on) => cards.forEach((it) => flip(it, on));

  function start() {
    cards.push(...settings.data.faults.map(card));
    byId("fault-cards").replaceChildren(...cards.map((it) => it.node));
    for (const it of cards) onWidth(it.chart, (width) => ((it.width = width), draw(it)));
    byId("faults-own").addEventListener("change", drawAll);
    byId("faults-all").addEventListener("click", () => flipAll(true));
    byId("faults-none").addEventListener("click", () => flipAll(false));
    state.onChange(() => own() && drawAll(), "faults");
    settings.onLanguage(drawAll);
    drawAll();
  }

  return { start };
})();
