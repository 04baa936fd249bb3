// Does it pay: tokens per round and speed-up against the draft length.
draftproof.pay = (() => {
  const { svg, set, write, byId, onWidth } = draftproof.dom;
  const { state, settings, numbers } = draftproof;
  const LONGEST = 16;
  const LENGTHS = Array.from({ length: LONGEST + 1 }, (_, g) => g);
  let width = 0;

  const follows = () => byId("pay-follow").checked;
  const rate = () => (follows() ? Math.min(1, Math.max(0, 1 - numbers.rejectProb(state.p, state.q))) : Number(byId("pay-rate").value));
  const cost = () => Number(byId("pay-cost").value);
  const chosen = () => Number(byId("pay-length").value);

  function best() {
    const gains = LENGTHS.map((g) => numbers.speedUp(rate(), g, cost()));
    return gains.indexOf(Math.max(...gains)); // the shortest of equals
  }

  function line(values, place, kind) {
    const path = values.map((value, g) => `${g ? "L" : "M"}${place.x(g)} ${place.y(value)}`).join("");
    return svg("path", { d: path, class: `curve curve-${kind}` });
  }

  function chart() {
    const height = 250;
    const box = { left: 34, right: width - 12, top: 14, bottom: height - 44 };
    const tokens = LENGTHS.map((g) => numbers.tokensPerRound(rate(), g));
    const gains = LENGTHS.map((g) => numbers.speedUp(rate(), g, cost()));
    const most = Math.max(2, Math.ceil(Math.max(...tokens)));
    const place = {
      x: (g) => box.left + ((box.right - box.left) * g) / LONGEST,
      y: (value) => box.bottom - ((box.bottom - box.top) * value) / most,
    };
    const root = svg("svg", { width, height, class: "chart", role: "img" });
    const stride = Math.ceil(most / 6);
    for (let value = 0; value <= most; value += stride) {
      root.append(
        svg("line", { x1: box.left, x2: box.right, y1: place.y(value), y2: place.y(value), class: value ? "grid" : "axis" }),
        svg("text", { x: box.left - 8, y: place.y(value) + 4, class: "tick end" }, String(value)),
      );
    }
    for (let g = 0; g <= LONGEST; g += width < 520 ? 4 : 2) root.append(svg("text", { x: place.x(g), y: box.bottom + 18, class: "tick middle" }, String(g)));
    root.append(
      svg("text", { x: (box.left + box.right) / 2, y: height - 6, class: "tick middle" }, settings.t("pay_axis")),
      svg("line", { x1: box.left, x2: box.right, y1: place.y(1), y2: place.y(1), class: "even" }),
      line(tokens, place, "tokens"),
      line(gains, place, "gain"),
    );
    const at = best();
    const g = chosen();
    root.append(
      svg("line", { x1: place.x(g), x2: place.x(g), y1: box.top, y2: box.bottom, class: "chosen" }),
      svg("circle", { cx: place.x(g), cy: place.y(tokens[g]), r: 5, class: "dot dot-tokens" }),
      svg("rect", { x: place.x(g) - 4.5, y: place.y(gains[g]) - 4.5, width: 9, height: 9, class: "dot dot-gain" }),
      svg("path", { d: `M${place.x(at)} ${place.y(gains[at]) + 8}l6 10h-12z`, class: "dot dot-best" }),
    );
    labels(root, box, place, tokens, gains);
    set(root, { "aria-label": settings.t("pay_label", { best: at, gain: gains[at].toFixed(2) }) });
    byId("pay-chart").replaceChildren(root);
  }

  // Names at the curves' ends; where the ends come close the names are kept a line apart.
  function labels(root, box, place, tokens, gains) {
    const upper = Math.max(box.top + 10, place.y(tokens[LONGEST]) - 8);
    const lower = Math.max(place.y(gains[LONGEST]) + 18, upper + 16); // below: the curve comes down from the left
    root.append(
      svg("text", { x: box.right, y: upper, class: "name-tokens end" }, settings.t("pay_tokens")),
      svg("text", { x: box.right, y: Math.min(lower, box.bottom - 6), class: "name-gain end" }, settings.t("pay_gain")),
    );
  }

  function draw() {
    const [a, c, g] = [rate(), cost(), chosen()];
    byId("pay-rate").disabled = follows();
    if (follows()) byId("pay-rate").value = String(a);
    write(byId("pay-rate-value"), a.toFixed(3));
    write(byId("pay-cost-value"), c.toFixed(2));
    write(byId("pay-length-value"), String(g));
    const [tokens, gain, at] = [numbers.tokensPerRound(a, g), numbers.speedUp(a, g, c), best()];
    set(byId("pay-say"), { "data-tokens": tokens, "data-gain": gain, "data-best": at });
    write(byId("pay-say"), settings.t(at ? "pay_say" : "pay_say_never", { g, tokens: tokens.toFixed(3), gain: gain.toFixed(3), best: at, most: numbers.speedUp(a, at, c).toFixed(3) }));
    if (width) chart();
  }

  function start() {
    for (const id of ["pay-rate", "pay-cost", "pay-length", "pay-follow"]) byId(id).addEventListener("input", draw);
    onWidth(byId("pay-chart"), (now) => ((width = now), draw()));
    state.onChange(draw, "pay");
    settings.onLanguage(draw);
    draw();
  }

  return { start };
})();
