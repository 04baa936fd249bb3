// The heads of the page: who decoded, the tiles, the choice of request, and all counts as a table.
draftproof.figures = (() => {
  const { html, byId } = draftproof.dom;
  const { run, settings, visible } = draftproof;

  const entry = (term, value, name) => html("div", {}, html("dt", {}, term), html("dd", { "data-count": name || null }, value));
  const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)}%` : "–");

  function names() {
    const { t } = settings;
    const { header } = run.trace;
    const list = ["target", "drafter", "verifier", "schedule"].map((name) => entry(t(`name_${name}`), visible.plain(header[name])));
    if (run.request) list.push(entry(t("name_seed"), String(run.request.seed)));
    byId("names").replaceChildren(...list);
  }

  function tiles() {
    const { t } = settings;
    const c = run.counts;
    const gain = c.total ? run.plainSeconds(c.emitted) / c.total : 0;
    byId("tiles").replaceChildren(
      entry(t("tile_tokens"), String(c.emitted)),
      entry(t("tile_rounds"), String(c.rounds)),
      entry(t("tile_per_round"), c.rounds ? (c.emitted / c.rounds).toFixed(2) : "–"),
      entry(t("tile_accepted"), `${c.accepted}/${c.drafted} (${percent(c.accepted, c.drafted)})`),
      entry(t("tile_time"), `${c.total.toFixed(2)} s`),
      entry(t("tile_gain"), c.total ? `${gain.toFixed(2)}×` : "–"),
    );
  }

  function table() {
    const { t } = settings;
    const c = run.counts;
    const row = (key, value, name) => html("tr", {}, html("th", { scope: "row" }, t(key)), html("td", { "data-count": name || null }, value));
    const off = run.result && run.result.speculation ? run.result.speculation.off_reason : null;
    const finish = run.result ? visible.plain(String(run.result.finish_reason)) : "–";
    byId("figures").replaceChildren(
      html("caption", { class: "hidden" }, t("numbers_title")),
      html(
        "tbody",
        {},
        row("tile_tokens", String(c.emitted), "emitted"),
        row("tile_rounds", String(c.rounds), "rounds"),
        row("key_drafted", String(c.proposed), "proposed"),
        row("key_admitted", String(c.drafted), "drafted"),
        row("key_accepted", String(c.accepted), "accepted"),
        row("surprises", String(c.surprises), "surprises"),
        row("at_position", c.drafted_at.map((d, k) => `${c.accepted_at[k]}/${d}`).join(" "), "by-position"),
        row("time_target", `${c.target.toFixed(3)} s (${percent(c.target, c.total)})`, "target"),
        row("time_draft", `${c.draft.toFixed(3)} s (${percent(c.draft, c.total)})`, "draft"),
        row("time_rest", `${c.other.toFixed(3)} s (${percent(c.other, c.total)})`, "other"),
        row("finish", finish, "finish"),
        off ? row("off_reason", visible.plain(String(off)), "off") : null,
      ),
    );
  }

  function requests() {
    const list = run.trace.requests;
    byId("request-field").hidden = list.length < 2;
    byId("request").replaceChildren(...list.map((request, i) => html("option", { value: request.request }, `${i + 1}: ${visible.plain(request.prompt.slice(-40))}`)));
    if (run.request) byId("request").value = String(run.request.request);
  }

  const draw = () => (names(), tiles(), table());

  function start() {
    requests();
    byId("request").addEventListener("change", (event) => run.select(Number(event.target.value)));
    run.onChange((what) => what === "request" && draw());
    settings.onLanguage(draw);
    draw();
  }

  return { start };
})();
