// The answer's text, one element per token; a list box, so that arrows walk through it.
draftproof.words = (() => {
  const { html, set, byId } = draftproof.dom;
  const { run, settings, visible } = draftproof;
  const ORIGINS = ["accepted", "residual", "bonus", "plain"];
  let items = [];
  let marked = [];

  function build() {
    items = run.tokens.map((token) => {
      const shown = token.text ? visible.nodes(token.text, true) : [html("span", { class: "mark-char hidden-token" }, ...visible.nodes(token.piece, false))];
      const item = document.createElement("span"); // thousands of these: no detour
      item.id = `token-${token.index}`;
      item.className = `word origin-${token.origin}`;
      item.dataset.index = token.index;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", "false");
      item.append(...shown);
      return item;
    });
    byId("words").replaceChildren(...items);
    marked = [];
    mark();
  }

  function mark() {
    const box = byId("words");
    for (const item of marked) {
      item.classList.remove("same-round", "chosen");
      item.setAttribute("aria-selected", "false");
    }
    const token = run.tokens[run.chosen];
    if (!token) return void (marked = []);
    const round = run.rounds[token.place];
    marked = items.slice(round.first, round.first + round.part.tokens.length);
    for (const item of marked) item.classList.add("same-round");
    const item = items[run.chosen];
    item.classList.add("chosen");
    const label = `${visible.plain(token.text || token.piece)}, ${settings.t(`origin_${token.origin}`)}`;
    set(item, { "aria-selected": "true", "aria-label": label });
    box.setAttribute("aria-activedescendant", item.id);
  }

  // Keeps the chosen token in sight inside the box, without moving the page.
  function reveal() {
    const box = byId("words");
    const item = items[run.chosen];
    if (!item) return;
    const [outer, inner] = [box.getBoundingClientRect(), item.getBoundingClientRect()];
    if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top + 8;
    else if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom + 8;
  }

  function onKey(event) {
    const last = run.tokens.length - 1;
    const token = run.tokens[run.chosen];
    if (!token) return;
    const rounds = run.rounds;
    const next = {
      ArrowRight: run.chosen + 1,
      ArrowLeft: run.chosen - 1,
      ArrowDown: token.place + 1 < rounds.length ? rounds[token.place + 1].first : last,
      ArrowUp: token.place > 0 ? rounds[token.place - 1].first : 0,
      Home: 0,
      End: last,
    }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    run.choose(Math.min(last, Math.max(0, next)));
    reveal();
  }

  function legend() {
    byId("origins").replaceChildren(
      ...ORIGINS.map((origin) => html("li", {}, html("span", { class: `word origin-${origin}` }, settings.t(`origin_${origin}`)))),
    );
  }

  function prompt() {
    byId("prompt").replaceChildren(...(run.request ? visible.nodes(run.request.prompt, true) : []));
  }

  function start() {
    const box = byId("words");
    const pick = (event) => {
      const item = event.target.closest(".word");
      if (item && Number(item.dataset.index) !== run.chosen) run.choose(Number(item.dataset.index));
    };
    box.addEventListener("pointerover", pick);
    box.addEventListener("click", pick);
    box.addEventListener("keydown", onKey);
    run.onChange((what) => (what === "request" ? (build(), prompt()) : mark()));
    settings.onLanguage(() => (legend(), mark()));
    legend();
    prompt();
    build();
  }

  return { start, reveal };
})();
