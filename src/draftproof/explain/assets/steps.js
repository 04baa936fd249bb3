// The derivation's steps: choosing one lights up its part of the picture and of the table.
draftproof.steps = (() => {
  const { html, byId } = draftproof.dom;
  const { settings } = draftproof;
  // The formula of each step, in the words of no language, and the section of the derivation it stands in.
  const STEPS = [
    ["§2.1", "X ~ q"],
    ["§2.1–2.3", "P(X = x, U ≤ α(x)) = q(x) α(x)"],
    ["§3", "q α = min(q, p)   ⇒   α = min(1, p/q)"],
    ["§4", "p − min(q, p) = max(0, p − q)"],
    ["§5", "P(reject) = 1 − Σ min(q, p) = Σ max(0, p − q) = Z"],
    ["§4", "p_resample = max(0, p − q) / Z"],
    ["§5", "π = min(q, p) + Z · max(0, p − q)/Z = p"],
  ];
  let lit = 0;

  function light(number) {
    lit = number === lit ? 0 : number;
    byId("position").dataset.step = String(lit);
    for (const button of byId("steps").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.number) === lit));
    }
  }

  function build() {
    const items = STEPS.map(([section, formula], i) =>
      html(
        "li",
        {},
        html(
          "button",
          { type: "button", "data-number": i + 1, "aria-pressed": String(lit === i + 1), onclick: () => light(i + 1) },
          html("span", { class: "step-title" }, html("span", { class: "step-number" }, String(i + 1)), settings.t(`step_${i + 1}_title`), html("span", { class: "step-section" }, section)),
          html("span", { class: "step-formula", lang: "en" }, formula),
          html("span", { class: "step-text" }, settings.t(`step_${i + 1}_text`)),
        ),
      ),
    );
    byId("steps").replaceChildren(...items);
  }

  function start() {
    byId("position").dataset.step = "0";
    build();
    settings.onLanguage(build);
  }

  return { start };
})();
