// The bars one can drag: p and q side by side for every token, each a slider for pointer and keyboard.
draftproof.bars = (() => {
  const { svg, set, write, patterns, byId, onWidth } = draftproof.dom;
  const { state, settings } = draftproof;
  const KEYS = { ArrowUp: 0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowLeft: -0.01, PageUp: 0.1, PageDown: -0.1 };
  let plot = null;

  const geometry = (width, n) => {
    const left = 30;
    const height = width < 520 ? 240 : 350;
    const column = (width - left) / n;
    const bar = Math.min(44, column * 0.4);
    return { width, left, height, top: 22, bottom: 44, column, bar, full: height - 66, n };
  };

  function build(width) {
    const g = geometry(width, state.p.length);
    const root = svg("svg", { width, height: g.height, class: "chart", role: "group" }, patterns("bars"));
    for (const value of [0, 0.25, 0.5, 0.75, 1]) {
      const y = g.top + g.full * (1 - value);
      root.append(
        svg("line", { x1: g.left, x2: width, y1: y, y2: y, class: value ? "grid" : "axis" }),
        svg("text", { x: g.left - 6, y: y + 4, class: "tick end" }, String(value)),
      );
    }
    const bars = [];
    for (let i = 0; i < g.n; i++) {
      const middle = g.left + g.column * (i + 0.5);
      root.append(svg("text", { x: middle, y: g.height - 6, class: "token-name" }, state.names[i]));
      for (const which of ["p", "q"]) bars.push(slider(root, g, which, i, which === "p" ? middle - g.bar - 2 : middle + 2));
    }
    plot = { g, root, bars };
    byId("bars").replaceChildren(root);
    update();
  }

  function slider(root, g, which, i, x) {
    const base = g.top + g.full;
    const parts = {
      min: svg("rect", { x, width: g.bar, class: `fill-accepted ${which}-min`, "data-steps": which === "q" ? "1 2 3" : "3" }),
      extra: svg("rect", {
        x,
        width: g.bar,
        fill: `url(#bars-${which === "p" ? "residual" : "surplus"})`,
        "data-steps": which === "p" ? "4 6" : "1 2 5",
      }),
      frame: svg("rect", { x, width: g.bar, class: `frame frame-${which}`, "data-steps": which === "q" ? "1 2 3 5" : "3 4 7" }),
      grip: svg("rect", { x: x - 2, width: g.bar + 4, height: 6, rx: 3, class: `grip grip-${which}` }),
      touch: svg("rect", { x: x - 2, width: g.bar + 4, height: 44, class: "touch" }),
      value: svg("text", { x: x + g.bar / 2, class: "value" }),
    };
    const node = svg(
      "g",
      { class: "slider", role: "slider", tabindex: "0", "data-bar": `${which}-${i}`, "aria-orientation": "vertical",
        "aria-valuemin": "0", "aria-valuemax": "1" },
      svg("rect", { x: x - 2, y: g.top, width: g.bar + 4, height: g.full, class: "reach" }),
      parts.min, parts.extra, parts.frame, parts.value, parts.grip, parts.touch,
      svg("text", { x: x + g.bar / 2, y: base + 16, class: `letter letter-${which}` }, which),
    );
    listen(node, parts, which, i);
    root.append(node);
    return { node, parts, which, i };
  }

  function listen(node, parts, which, i) {
    let pending = null;
    const at = (event) => {
      const { g, root } = plot;
      return 1 - (event.clientY - root.getBoundingClientRect().top - g.top) / g.full;
    };
    // At most one update a frame, however fast the pointer reports.
    const follow = (event) => {
      if (pending === null) requestAnimationFrame(() => (state.move(which, i, pending), (pending = null)));
      pending = at(event);
    };
    node.addEventListener("pointerdown", (event) => {
      // A finger that lands beside the grip wants to scroll the page.
      if (event.button !== 0 || (event.pointerType === "touch" && event.target !== parts.touch)) return;
      event.preventDefault();
      node.focus({ focusVisible: false });
      node.setPointerCapture(event.pointerId);
      state.release();
      follow(event);
    });
    node.addEventListener("pointermove", (event) => node.hasPointerCapture(event.pointerId) && follow(event));
    node.addEventListener("lostpointercapture", state.release);
    node.addEventListener("blur", state.release);
    node.addEventListener("keydown", (event) => {
      const now = state[which][i];
      const next = event.key === "Home" ? 0 : event.key === "End" ? 1 : event.key in KEYS ? now + KEYS[event.key] : null;
      if (next === null) return;
      event.preventDefault();
      state.move(which, i, Math.min(1, Math.max(0, next)));
    });
  }

  function update() {
    const { g, bars, root } = plot;
    const base = g.top + g.full;
    const places = Math.min(state.digits, g.bar < 34 ? 2 : 3);
    set(root, { "aria-label": settings.t("bars_label") });
    for (const { node, parts, which, i } of bars) {
      const value = state[which][i];
      const low = Math.min(state.p[i], state.q[i]);
      const top = base - value * g.full;
      set(parts.min, { y: base - low * g.full, height: low * g.full });
      set(parts.extra, { y: top, height: Math.max(0, value - low) * g.full });
      set(parts.frame, { y: top, height: value * g.full });
      set(parts.grip, { y: top - 3 });
      set(parts.touch, { y: top - 22 });
      set(parts.value, { y: top - 8 });
      write(parts.value, g.bar < 26 ? "" : value.toFixed(places));
      set(node, {
        "aria-valuenow": value.toFixed(4),
        "aria-valuetext": value.toFixed(state.digits),
        "aria-label": settings.t("bar_label", { which, token: state.names[i] }),
      });
    }
  }

  function start() {
    onWidth(byId("bars"), build);
    state.onChange(() => (plot.g.n === state.p.length ? update() : build(plot.g.width)));
    settings.onLanguage(update);
  }

  return { start };
})();
