// Everything about the chosen token: what was drafted, p, q, alpha, the coin, what it was drawn from, the controls.
draftproof.details = (() => {
  const { html, byId } = draftproof.dom;
  const { run, settings, visible } = draftproof;
  const number = (value) => (value === 0 ? "0" : value >= 0.0001 ? value.toFixed(4) : value.toExponential(2));

  const row = (term, ...value) => [html("dt", {}, term), html("dd", {}, ...value)];

  function coin(token) {
    const { t } = settings;
    const { drafted } = token;
    if (drafted.u === null) {
      return t(drafted.limit === null && !["token", "block"].includes(run.trace.header.verifier) ? "coin_match" : "coin_none");
    }
    const kept = drafted.u < drafted.limit;
    return t(kept ? "coin_kept" : "coin_rejected", { u: number(drafted.u), limit: number(drafted.limit) });
  }

  function judged(token) {
    const { t } = settings;
    const { drafted } = token;
    if (!drafted) return [];
    return [
      ...row(t("drafted"), visible.quoted(drafted.piece), ` #${drafted.id}`),
      ...row("p, q", `${number(drafted.p)}, ${number(drafted.q)}`),
      ...row("α = min(1, p/q)", number(drafted.alpha)),
      ...row("u", coin(token)),
    ];
  }

  function law(token) {
    const { t } = settings;
    if (!token.law) return null;
    const most = Math.max(...token.top.map((choice) => choice.prob), 1e-12);
    const bars = token.top.map((choice) => {
      const bar = html("span", { class: "bar" });
      bar.style.setProperty("width", `${(100 * choice.prob) / most}%`);
      return html("tr", { class: choice.id === token.id ? "drawn" : null }, html("td", {}, visible.quoted(choice.piece)), html("td", {}, number(choice.prob)), html("td", { class: "bar-cell" }, bar));
    });
    return html("table", { class: `law law-${token.law}` }, html("caption", {}, t(token.law === "residual" ? "law_residual" : "law_p")), html("tbody", {}, ...bars));
  }

  function controls() {
    const entries = Object.entries(run.request ? run.request.controls : {});
    return entries.map(([name, value]) => visible.plain(`${name} = ${JSON.stringify(value)}`)).join("; ");
  }

  function draw() {
    const { t } = settings;
    const token = run.tokens[run.chosen];
    if (!token) return byId("details").replaceChildren(html("p", { class: "muted" }, t("details_empty")));
    const round = run.rounds[token.place];
    const list = html(
      "dl",
      {},
      ...row(t("token"), visible.quoted(token.text || token.piece), ` #${token.id}`),
      ...row(t("origin"), html("span", { class: `origin-${token.origin}` }, t(`origin_${token.origin}`))),
      ...row(t("where"), t("where_value", { index: token.index + 1, round: token.place + 1, k: token.k + 1, of: round.part.tokens.length })),
      ...judged(token),
      ...row(t("p_emitted"), number(token.p)),
    );
    const nodes = [list, law(token), html("p", { class: "muted controls-line" }, `${t("controls")}: ${controls()}`)];
    byId("details").replaceChildren(...nodes.filter(Boolean));
  }

  function start() {
    run.onChange(draw);
    settings.onLanguage(draw);
    draw();
  }

  return { start };
})();
