// The strip of rounds: what was drafted, admitted and accepted, and where the time went. One path per kind, so that
// thousands of rounds stay a handful of elements; a slider over the rounds for pointer and keyboard.
draftproof.strip = (() => {
  const { svg, set, write, patterns, byId, onWidth } = draftproof.dom;
  const { run, settings, visible } = draftproof;
  const TOP = 96;
  const GAP = 22;
  const LOW = 70;
  let plot = null;

  function build(width) {
    const rounds = run.rounds;
    const step = Math.min(28, Math.max(6, (width - 8) / Math.max(1, rounds.length)));
    const wide = Math.max(width, Math.ceil(step * rounds.length) + 8);
    const root = svg("svg", { width: wide, height: TOP + GAP + LOW + 8, class: "chart strip", role: "slider", tabindex: "0",
      "aria-valuemin": "1", "aria-valuemax": String(Math.max(1, rounds.length)) }, patterns("strip"));
    const most = Math.max(1, ...rounds.map((round) => round.part.drafted.length));
    const unit = (TOP - 10) / most;
    const seconds = (round) => round.target_seconds + round.draft_seconds + round.other_seconds;
    // A few slow rounds (the first holds the prompt) would flatten all others: the scale is the 95th percentile's,
    // and what is longer is cut, with a notch to say so.
    const sorted = rounds.map(seconds).sort((a, b) => a - b);
    const longest = Math.max(1e-9, sorted[Math.floor(0.95 * (sorted.length - 1))] * 1.1);
    const base = TOP + GAP + LOW;
    const paths = { drafted: "", admitted: "", accepted: "", target: "", draft: "", rest: "", cut: "" };
    const box = (i, bottom, height) => (height > 0 ? `M${4 + i * step + 0.75} ${bottom}v${-height}h${step - 1.5}v${height}z` : "");
    rounds.forEach((round, i) => {
      const { part } = round;
      paths.drafted += box(i, TOP, part.drafted.length * unit);
      paths.admitted += box(i, TOP, part.admitted * unit);
      paths.accepted += box(i, TOP, part.accepted * unit);
      if (seconds(round) > longest) paths.cut += `M${4 + i * step + 1} ${base - LOW - 2}l${(step - 2) / 2} -4l${(step - 2) / 2} 4`;
      let bottom = base;
      let left = LOW;
      for (const [name, value] of [["target", round.target_seconds], ["draft", round.draft_seconds], ["rest", round.other_seconds]]) {
        const height = Math.min(left, (value / longest) * LOW);
        paths[name] += box(i, bottom, height);
        bottom -= height;
        left -= height;
      }
    });
    const here = svg("rect", { class: "here", y: 1, width: step, height: base + 4 });
    root.append(
      svg("path", { d: paths.drafted, class: "strip-drafted" }),
      svg("path", { d: paths.admitted, fill: "url(#strip-residual)", class: "strip-admitted" }),
      svg("path", { d: paths.accepted, class: "fill-accepted" }),
      svg("line", { x1: 0, x2: wide, y1: TOP + 0.5, y2: TOP + 0.5, class: "axis" }),
      svg("path", { d: paths.target, class: "strip-target" }),
      svg("path", { d: paths.draft, fill: "url(#strip-second)" }),
      svg("path", { d: paths.rest, fill: "url(#strip-surplus)" }),
      svg("line", { x1: 0, x2: wide, y1: base + 0.5, y2: base + 0.5, class: "axis" }),
      svg("path", { d: paths.cut, class: "strip-cut" }),
      here,
    );
    plot = { root, here, step, width };
    listen(root);
    byId("strip").replaceChildren(root);
    mark();
  }

  const current = () => (run.tokens[run.chosen] ? run.tokens[run.chosen].place : -1);

  function go(place) {
    const round = run.rounds[Math.min(run.rounds.length - 1, Math.max(0, place))];
    if (!round || run.tokens.length === 0) return;
    run.choose(Math.min(round.first, run.tokens.length - 1));
    draftproof.words.reveal();
  }

  function listen(root) {
    const at = (event) => Math.floor((event.clientX - root.getBoundingClientRect().left - 4) / plot.step);
    root.addEventListener("click", (event) => go(at(event)));
    root.addEventListener("keydown", (event) => {
      const last = run.rounds.length - 1;
      const next = { ArrowRight: current() + 1, ArrowUp: current() + 1, ArrowLeft: current() - 1, ArrowDown: current() - 1,
        PageUp: current() + 10, PageDown: current() - 10, Home: 0, End: last }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      go(next);
    });
  }

  function say() {
    const round = run.rounds[current()];
    if (!round) return settings.t("round_none");
    const { part } = round;
    const ms = (seconds) => (seconds * 1000).toFixed(2);
    return settings.t("round_say", { round: current() + 1, of: run.rounds.length, drafted: part.drafted.length, admitted: part.admitted,
      accepted: part.accepted, drafter: visible.plain(part.drafter), target: ms(round.target_seconds), draft: ms(round.draft_seconds), rest: ms(round.other_seconds) });
  }

  function mark() {
    if (!plot) return;
    const place = current();
    const x = 4 + Math.max(0, place) * plot.step;
    set(plot.here, { x, visibility: place < 0 ? "hidden" : null });
    const words = say();
    set(plot.root, { "aria-valuenow": String(Math.max(1, place + 1)), "aria-valuetext": words, "aria-label": settings.t("strip_label") });
    write(byId("round-say"), words);
    const frame = byId("strip-frame");
    if (x < frame.scrollLeft) frame.scrollLeft = x - 20;
    else if (x + plot.step > frame.scrollLeft + frame.clientWidth) frame.scrollLeft = x + plot.step - frame.clientWidth + 20;
  }

  function start() {
    onWidth(byId("strip-frame"), build);
    run.onChange((what) => (what === "request" ? build(plot.width) : mark()));
    settings.onLanguage(mark);
  }

  return { start };
})();
