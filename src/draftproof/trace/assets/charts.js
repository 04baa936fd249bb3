// Where drafts die, and whether it pays: acceptance by position, and cumulative tokens against plain decoding.
draftproof.charts = (() => {
  const { html, svg, set, write, byId, onWidth } = draftproof.dom;
  const { run, settings } = draftproof;
  const HEIGHT = 240;
  const widths = {};

  function frame(width, label, ticks, place) {
    const root = svg("svg", { width, height: HEIGHT, class: "chart", role: "img", "aria-label": label });
    for (const [value, text] of ticks) {
      const y = place(value);
      root.append(svg("line", { x1: 40, x2: width - 8, y1: y, y2: y, class: value ? "grid" : "axis" }), svg("text", { x: 34, y: y + 4, class: "tick end" }, text));
    }
    return root;
  }

  function byPosition(width) {
    const { drafted_at: drafted, accepted_at: accepted } = run.counts;
    const place = (value) => HEIGHT - 46 - value * (HEIGHT - 74);
    const rates = drafted.map((count, k) => accepted[k] / count);
    const label = settings.t("position_label") + " " + rates.map((rate, k) => `${k + 1}: ${(100 * rate).toFixed(1)}% (${accepted[k]}/${drafted[k]})`).join("; ");
    const root = frame(width, label, [0, 0.25, 0.5, 0.75, 1].map((value) => [value, `${value * 100}%`]), place);
    const column = (width - 48) / Math.max(1, rates.length);
    const bar = Math.min(56, column * 0.66);
    rates.forEach((rate, k) => {
      const middle = 40 + column * (k + 0.5);
      root.append(
        svg("rect", { x: middle - bar / 2, y: place(rate), width: bar, height: place(0) - place(rate), class: "fill-accepted" }),
        svg("text", { x: middle, y: place(0) + 16, class: "tick middle" }, String(k + 1)),
      );
      if (column >= 30) root.append(svg("text", { x: middle, y: place(rate) - 5, class: "value" }, (100 * rate).toFixed(0) + "%"));
      if (column >= 44) root.append(svg("text", { x: middle, y: place(0) + 32, class: "tick middle" }, `${accepted[k]}/${drafted[k]}`));
    });
    if (!rates.length) root.append(svg("text", { x: width / 2, y: HEIGHT / 2, class: "tick middle" }, settings.t("position_none")));
    byId("by-position").replaceChildren(root);
  }

  // The run as points (x, tokens so far), x in seconds or in target passes.
  function points(seconds) {
    const out = [[0, 0]];
    let [x, tokens] = [0, 0];
    for (const round of run.rounds) {
      x += seconds ? round.target_seconds + round.draft_seconds + round.other_seconds : 1;
      tokens += round.part.tokens.length;
      out.push([x, tokens]);
    }
    return out;
  }

  function curve(width) {
    const seconds = byId("axis").value !== "passes";
    const own = points(seconds);
    const tokens = run.tokens.length;
    const plainEnd = seconds ? run.plainSeconds(tokens) : tokens;
    const most = Math.max(own[own.length - 1][0], plainEnd, 1e-9);
    const high = Math.max(1, tokens);
    const x = (value) => 40 + ((width - 52) * value) / most;
    const y = (value) => HEIGHT - 46 - (value / high) * (HEIGHT - 62);
    const stride = Math.max(1, Math.ceil(high / 5));
    const ticks = [];
    for (let value = 0; value <= high; value += stride) ticks.push([value, String(value)]);
    const gain = own[own.length - 1][0] > 0 ? plainEnd / own[own.length - 1][0] : 1;
    const label = settings.t("curve_label", { tokens, gain: gain.toFixed(2) });
    const root = frame(width, label, ticks, y);
    const start = seconds ? run.plain.first : 1;
    const plain = tokens ? `M${x(0)} ${y(0)}L${x(start)} ${y(1)}L${x(plainEnd)} ${y(tokens)}` : "";
    for (const part of [0, 0.25, 0.5, 0.75, 1]) {
      const value = most * part;
      root.append(svg("text", { x: x(value), y: HEIGHT - 26, class: `tick ${part === 1 ? "end" : "middle"}` }, seconds ? value.toPrecision(2) : value.toFixed(0)));
    }
    root.append(
      svg("text", { x: 40 + (width - 52) / 2, y: HEIGHT - 6, class: "tick middle" }, settings.t(seconds ? "axis_seconds" : "axis_passes")),
      svg("path", { d: plain, class: "curve curve-plain" }),
      svg("path", { d: own.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join(""), class: "curve curve-own" }),
    );
    set(byId("curve"), { "data-gain": gain });
    byId("curve").replaceChildren(root);
    const basis = settings.t(run.plain.undrafted ? "basis_undrafted" : "basis_all");
    write(byId("curve-intro"), settings.t("curve_intro", { basis, ms: (run.plain.pass * 1000).toFixed(2), gain: gain.toFixed(2) }));
  }

  function axis() {
    const chosen = byId("axis").value || "seconds";
    byId("axis").replaceChildren(...["seconds", "passes"].map((value) => html("option", { value }, settings.t(`axis_${value}`))));
    byId("axis").value = chosen;
  }

  function draw() {
    if (widths.position) byPosition(widths.position);
    if (widths.curve) curve(widths.curve);
  }

  function start() {
    axis();
    onWidth(byId("by-position"), (width) => byPosition((widths.position = width)));
    onWidth(byId("curve"), (width) => curve((widths.curve = width)));
    byId("axis").addEventListener("change", draw);
    run.onChange((what) => what === "request" && draw());
    settings.onLanguage(() => (axis(), draw()));
  }

  return { start };
})();
