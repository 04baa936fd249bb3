// A chain of positions: drafts, one target pass over all of them, the walk, and the token after it.
draftproof.chain = (() => {
  const { html, byId, write, set } = draftproof.dom;
  const { state, settings, numbers, dice } = draftproof;
  const SHOWN_TEXT = 48;
  let source, text, round, shown, rounds, emitted;

  const length = () => Number(byId("chain-length").value);
  const prefix = () => text.map((item) => item.token);

  function restart() {
    source = dice.dice(7);
    text = [];
    round = null;
    shown = 0;
    rounds = 0;
    emitted = 0;
    draw();
  }

  // Steps of a round: 1 drafts, 2 the pass, then one per position walked, then the last token.
  const lastStep = () => 2 + round.walk.length + 1;

  function begin() {
    round = dice.round(source, state.p, state.q, length(), prefix());
    round.length = length();
    shown = 0;
  }

  function commit() {
    const kept = round.drafts.slice(0, round.accepted).map((token) => ({ token, origin: "accepted" }));
    text.push(...kept, { token: round.last, origin: round.origin });
    rounds += 1;
    emitted += kept.length + 1;
  }

  function step() {
    if (!round || shown === lastStep()) begin();
    if (++shown === lastStep()) commit();
    draw();
  }

  function whole() {
    if (!round || shown === lastStep()) begin();
    shown = lastStep();
    commit();
    draw();
  }

  function many(times) {
    for (let k = 0; k < times; k++) {
      if (!round || shown === lastStep()) begin();
      shown = lastStep();
      commit();
    }
    draw();
  }

  function verdict(k) {
    if (shown < 3 + k) return null;
    if (k >= round.walk.length) return html("span", { class: "muted" }, settings.t("chain_dropped"));
    const { u, alpha, kept } = round.walk[k];
    return html(
      "span",
      { class: kept ? "kept" : "rejected" },
      html("strong", {}, kept ? "✓" : "✗"),
      `${u.toFixed(2)} ${kept ? "<" : "≥"} ${alpha.toFixed(2)}`,
    );
  }

  function outcome(k) {
    if (k < round.accepted && shown >= 3 + k) return html("strong", { class: "token origin-accepted" }, state.names[round.drafts[k]]);
    if (k === round.accepted && shown === lastStep()) return html("strong", { class: `token origin-${round.origin}` }, state.names[round.last]);
    return null;
  }

  function table() {
    const { t } = settings;
    const g = round ? round.length : length();
    const positions = Array.from({ length: g + 1 }, (_, k) => k);
    const row = (key, cell) => html("tr", {}, html("th", { scope: "row" }, t(key)), ...positions.map((k) => html("td", {}, cell(k))));
    const draftCell = (k) => {
      if (!round || shown < 1 || k === g) return null;
      const lost = shown >= 3 + round.accepted && k >= round.accepted;
      return html(lost ? "s" : "span", { class: `token ${lost ? "lost" : ""}` }, state.names[round.drafts[k]]);
    };
    const passed = round && shown >= 2;
    byId("chain-table").style.setProperty("min-width", `${60 + 84 * (g + 1)}px`);
    byId("chain-table").replaceChildren(
      html("caption", { class: "hidden" }, t("chain_table")),
      html("thead", {}, html("tr", {}, html("td", {}), ...positions.map((k) => html("th", { scope: "col" }, k < g ? String(k + 1) : "+1")))),
      html(
        "tbody",
        {},
        row("chain_draft", draftCell),
        html("tr", { class: `pass ${passed ? "on" : ""}` }, html("th", { scope: "row" }, t("chain_pass")), html("td", { colspan: g + 1 }, html("span", { class: "bracket" }, t("chain_rows", { n: g + 1 })))),
        row("chain_coin", (k) => (round && k < g ? verdict(k) : null)),
        row("chain_out", (k) => (round ? outcome(k) : null)),
      ),
    );
  }

  function say() {
    const { t } = settings;
    if (!round || shown === 0) return t("chain_say_start");
    if (shown === 1) return t("chain_say_draft", { n: round.length });
    if (shown === 2) return t("chain_say_pass", { n: round.length + 1 });
    if (shown === lastStep()) {
      return t(round.origin === "bonus" ? "chain_say_bonus" : "chain_say_residual", { n: round.accepted + 1, y: state.names[round.last] });
    }
    const { u, alpha, kept } = round.walk[shown - 3];
    return t(kept ? "chain_say_keep" : "chain_say_reject", { k: shown - 2, x: state.names[round.drafts[shown - 3]], u: u.toFixed(3), alpha: alpha.toFixed(3) });
  }

  function draw() {
    write(byId("chain-length-value"), String(length()));
    table();
    write(byId("chain-say"), say());
    const tail = text.slice(-SHOWN_TEXT);
    byId("chain-text").replaceChildren(
      ...(text.length > tail.length ? ["… "] : []),
      ...tail.map(({ token, origin }) => html("span", { class: `token origin-${origin}` }, state.names[token])),
    );
    const rate = 1 - numbers.rejectProb(state.p, state.q);
    const expected = numbers.tokensPerRound(Math.max(0, rate), length());
    const mean = rounds ? emitted / rounds : null;
    set(byId("chain-count"), { "data-rounds": rounds, "data-mean": mean === null ? "" : mean, "data-expected": expected });
    write(byId("chain-count"), settings.t("chain_count", { rounds, mean: mean === null ? "–" : mean.toFixed(3), expected: expected.toFixed(3), rate: rate.toFixed(3) }));
  }

  function start() {
    restart();
    byId("chain-length").addEventListener("input", restart);
    byId("chain-step").addEventListener("click", step);
    byId("chain-round").addEventListener("click", whole);
    byId("chain-many").addEventListener("click", () => many(1000));
    byId("chain-reset").addEventListener("click", restart);
    state.onChange(restart, "chain");
    settings.onLanguage(draw);
  }

  return { start };
})();
