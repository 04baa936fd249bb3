// What follows from the bars: the two paths stacked into p, and the unit of probability split by Z.
draftproof.picture = (() => {
  const { svg, set, write, patterns, byId, onWidth } = draftproof.dom;
  const { state, settings, numbers } = draftproof;
  let stack = null;
  let unit = null;

  function buildStack(width) {
    const n = state.p.length;
    const left = 30;
    const height = width < 520 ? 170 : 240;
    const full = height - 50;
    const column = (width - left) / n;
    const bar = Math.min(92, column * 0.8);
    const root = svg("svg", { width, height, class: "chart", role: "img" }, patterns("stack"));
    const columns = state.p.map((_, i) => {
      const x = left + column * (i + 0.5) - bar / 2;
      const parts = {
        accepted: svg("rect", { x, width: bar, class: "fill-accepted", "data-steps": "3 7", "data-part": `accepted-${i}` }),
        residual: svg("rect", { x, width: bar, fill: "url(#stack-residual)", "data-steps": "6 7", "data-part": `residual-${i}` }),
        line: svg("path", { class: "p-line", "data-steps": "7", "data-part": `p-${i}` }),
        value: svg("text", { x: x + bar / 2, class: "value" }),
      };
      root.append(...Object.values(parts), svg("text", { x: x + bar / 2, y: height - 6, class: "token-name" }, state.names[i]));
      return { x, parts };
    });
    root.append(svg("line", { x1: left, x2: width, y1: full + 24, y2: full + 24, class: "axis" }));
    stack = { root, columns, full, bar, base: full + 24, width };
    byId("merged").replaceChildren(root);
    updateStack();
  }

  function updateStack() {
    const { root, columns, full, bar, base } = stack;
    const accepted = numbers.accepted(state.p, state.q);
    const z = numbers.rejectProb(state.p, state.q);
    const residual = numbers.residual(state.p, state.q).map((value) => value * z);
    const scale = full / Math.max(...state.p); // the tallest token fills the picture
    columns.forEach(({ x, parts }, i) => {
      const low = accepted[i] * scale;
      const high = residual[i] * scale;
      const top = base - state.p[i] * scale;
      set(parts.accepted, { y: base - low, height: low, "data-value": accepted[i] });
      set(parts.residual, { y: base - low - high, height: high, "data-value": residual[i] });
      set(parts.line, { d: `M${x - 4} ${top}H${x + bar + 4}`, "data-value": state.p[i] });
      set(parts.value, { y: top - 7 });
      write(parts.value, bar < 26 ? "" : state.p[i].toFixed(Math.min(state.digits, bar < 40 ? 2 : 3)));
    });
    const words = state.p.map((value, i) =>
      settings.t("merged_token", { token: state.names[i], a: state.format(accepted[i]), b: state.format(residual[i]), p: state.format(value) }),
    );
    set(root, { "aria-label": settings.t("merged_label") + " " + words.join("; ") });
  }

  function buildUnit(width) {
    const root = svg("svg", { width, height: 58, class: "chart", role: "img" }, patterns("unit"));
    const parts = {
      accepted: svg("rect", { y: 2, height: 30, x: 0, class: "fill-accepted", "data-steps": "3" }),
      rejected: svg("rect", { y: 2, height: 30, fill: "url(#unit-residual)", "data-steps": "5 6" }),
      left: svg("text", { x: 0, y: 50, class: "tick" }),
      right: svg("text", { x: width, y: 50, class: "tick end" }),
    };
    root.append(...Object.values(parts), svg("rect", { x: 0.5, y: 2, width: width - 1, height: 30, class: "frame" }));
    unit = { root, parts, width };
    byId("unit").replaceChildren(root);
    updateUnit();
  }

  function updateUnit() {
    const { root, parts, width } = unit;
    const z = numbers.rejectProb(state.p, state.q);
    const kept = numbers.sum(numbers.accepted(state.p, state.q));
    set(parts.accepted, { width: Math.max(0, kept) * width });
    set(parts.rejected, { x: kept * width, width: Math.max(0, 1 - kept) * width });
    const words = { z: state.format(z), kept: state.format(kept) };
    write(parts.left, settings.t("unit_accept", words));
    write(parts.right, settings.t("unit_reject", words));
    set(root, { "aria-label": `${settings.t("unit_accept", words)}; ${settings.t("unit_reject", words)}` });
  }

  function update() {
    if (stack.columns.length !== state.p.length) buildStack(stack.width);
    else updateStack();
    updateUnit();
  }

  function start() {
    onWidth(byId("merged"), buildStack);
    onWidth(byId("unit"), buildUnit);
    state.onChange(update);
    settings.onLanguage(update);
  }

  return { start };
})();
