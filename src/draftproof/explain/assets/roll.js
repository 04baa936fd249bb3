// Rolling the dice at one position: step by step, or many at once until the histogram settles on p.
draftproof.roll = (() => {
  const { html, svg, set, write, patterns, byId, onWidth } = draftproof.dom;
  const { state, settings, numbers } = draftproof;
  const PER_FRAME = 250;
  const ENOUGH = 50000;
  let source, counts, roll, shown, plot, running;

  function restart() {
    const seed = Number(byId("roll-seed").value);
    source = draftproof.dice.dice(Number.isFinite(seed) ? seed : 1);
    counts = state.p.map(() => ({ accepted: 0, residual: 0 }));
    roll = null;
    shown = 0;
    stop();
    draw();
  }

  function tally(result) {
    counts[result.token][result.kept ? "accepted" : "residual"]++;
  }

  function many(times) {
    for (let k = 0; k < times; k++) tally((roll = draftproof.dice.position(source, state.p, state.q)));
    shown = 3;
    draw();
  }

  // The roll is made at once and told in three steps: the draft, the coin, the outcome.
  function step() {
    if (shown === 0 || shown === 3) {
      roll = draftproof.dice.position(source, state.p, state.q);
      shown = 1;
    } else if (++shown === 3) tally(roll);
    draw();
  }

  function run() {
    running = !running;
    byId("roll-run").setAttribute("aria-pressed", String(running));
    const frame = () => {
      if (!running) return;
      many(PER_FRAME);
      if (total() >= ENOUGH) stop();
      else requestAnimationFrame(frame);
    };
    if (running) frame();
  }

  function stop() {
    running = false;
    byId("roll-run").setAttribute("aria-pressed", "false");
  }

  const total = () => counts.reduce((sum, count) => sum + count.accepted + count.residual, 0);

  function stages() {
    const { t } = settings;
    const name = (token) => state.names[token];
    const stage = (number, key, body, kind) =>
      html(
        "li",
        { class: `stage ${number <= shown ? "on" : ""} ${kind || ""}` },
        html("span", { class: "stage-title" }, t(key)),
        number <= shown ? body : html("span", { class: "stage-empty" }, "·"),
      );
    const drafted = () => html("strong", { class: "token" }, name(roll.drafted));
    const outcome = () =>
      html("span", {}, html("strong", { class: `token origin-${roll.kept ? "accepted" : "residual"}` }, name(roll.token)), " ", roll.kept ? t("by_accept") : t("by_residual"));
    byId("roll-stages").replaceChildren(
      stage(1, "stage_draft", shown >= 1 ? drafted() : null),
      stage(2, "stage_coin", shown >= 2 ? coin() : null),
      stage(3, "stage_out", shown >= 3 ? outcome() : null),
    );
  }

  // The unit interval with [0, alpha) filled and u marked.
  function coin() {
    const width = 180;
    const label = settings.t("coin_label", { u: state.format(roll.u), alpha: state.format(roll.alpha) });
    return html(
      "span",
      { class: "coin" },
      svg(
        "svg",
        { width, height: 26, viewBox: `0 0 ${width} 26`, role: "img", "aria-label": label },
        svg("rect", { x: 1, y: 9, width: width - 2, height: 10, class: "frame fill-none" }),
        svg("rect", { x: 1, y: 9, width: (width - 2) * roll.alpha, height: 10, class: "fill-accepted" }),
        svg("path", { d: `M${1 + (width - 2) * roll.u} 22V6l-5-6h10l-5 6`, class: "marker" }),
      ),
      html("span", { class: "coin-text" }, `u ${state.format(roll.u)} ${roll.kept ? "<" : "≥"} α ${state.format(roll.alpha)}`),
    );
  }

  function say() {
    const { t } = settings;
    if (shown === 0) return t("say_start");
    const words = { x: state.names[roll.drafted], y: state.names[roll.token], u: state.format(roll.u), alpha: state.format(roll.alpha) };
    if (shown === 1) return t("say_draft", words);
    if (shown === 2) return t(roll.kept ? "say_keep" : "say_reject", words);
    return t(roll.kept ? "say_out_accept" : "say_out_residual", words);
  }

  function draw() {
    if (!plot) return;
    if (plot.columns.length !== state.p.length) return build(plot.width);
    const all = total();
    const seen = counts.map((count) => (all ? (count.accepted + count.residual) / all : 0));
    const scale = plot.full / Math.max(...state.p, ...seen, 0.001);
    plot.columns.forEach(({ x, parts }, i) => {
      const low = all ? (counts[i].accepted / all) * scale : 0;
      const high = all ? (counts[i].residual / all) * scale : 0;
      set(parts.accepted, { y: plot.base - low, height: low });
      set(parts.residual, { y: plot.base - low - high, height: high });
      set(parts.line, { d: `M${x - 4} ${plot.base - state.p[i] * scale}H${x + plot.bar + 4}` });
      set(parts.value, { y: plot.base - Math.max(low + high, state.p[i] * scale) - 7 });
      write(parts.value, all && plot.bar >= 26 ? seen[i].toFixed(3) : "");
    });
    const label = settings.t("histogram_label") + " " + seen.map((value, i) => `${state.names[i]} ${value.toFixed(3)} / ${state.p[i].toFixed(3)}`).join("; ");
    set(plot.root, { "aria-label": label });
    const distance = all ? numbers.totalVariation(seen, state.p) : null;
    set(byId("roll-count"), { "data-total": all, "data-tv": distance === null ? "" : distance });
    write(byId("roll-count"), settings.t("roll_count", { n: all, tv: distance === null ? "–" : distance.toFixed(4) }));
    stages();
    write(byId("roll-say"), say());
  }

  function build(width) {
    const left = 30;
    const height = 190;
    const full = height - 50;
    const n = state.p.length;
    const column = (width - left) / n;
    const bar = Math.min(92, column * 0.8);
    const root = svg("svg", { width, height, class: "chart", role: "img" }, patterns("rolls"));
    const columns = state.p.map((_, i) => {
      const x = left + column * (i + 0.5) - bar / 2;
      const parts = {
        accepted: svg("rect", { x, width: bar, class: "fill-accepted" }),
        residual: svg("rect", { x, width: bar, fill: "url(#rolls-residual)" }),
        line: svg("path", { class: "p-line" }),
        value: svg("text", { x: x + bar / 2, class: "value" }),
      };
      root.append(...Object.values(parts), svg("text", { x: x + bar / 2, y: height - 6, class: "token-name" }, state.names[i]));
      return { x, parts };
    });
    root.append(svg("line", { x1: left, x2: width, y1: full + 24, y2: full + 24, class: "axis" }));
    plot = { root, columns, full, bar, base: full + 24, width };
    byId("histogram").replaceChildren(root);
    draw();
  }

  function start() {
    restart();
    onWidth(byId("histogram"), build);
    byId("roll-step").addEventListener("click", step);
    for (const times of [1, 100, 10000]) byId(`roll-${times}`).addEventListener("click", () => many(times));
    byId("roll-run").addEventListener("click", run);
    byId("roll-reset").addEventListener("click", restart);
    byId("roll-seed").addEventListener("change", restart);
    state.onChange(restart, "roll"); // other bars, other law: old counts would be about nothing
    settings.onLanguage(draw);
  }

  return { start };
})();
