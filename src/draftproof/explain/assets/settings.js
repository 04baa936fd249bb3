// Language and theme: two groups of radio buttons, remembered where the browser allows it.
draftproof.settings = (() => {
  const { byId, write } = draftproof.dom;
  const data = JSON.parse(byId("data").textContent);
  const listeners = [];
  let language = "en";

  function remembered(key) {
    try {
      return window.localStorage.getItem(`draftproof.${key}`);
    } catch {
      return null; // storage is switched off: the page works, it only forgets
    }
  }

  function remember(key, value) {
    try {
      window.localStorage.setItem(`draftproof.${key}`, value);
    } catch {
      // see above
    }
  }

  // The text under `key` in the current language, with {name} replaced from `values`.
  function t(key, values) {
    const text = data.texts[language][key];
    if (text === undefined) throw new Error(`no text ${key} in ${language}`);
    return values ? text.replace(/\{(\w+)\}/g, (_, name) => String(values[name])) : text;
  }

  function translate(root) {
    for (const node of root.querySelectorAll("[data-t]")) write(node, t(node.dataset.t));
    for (const node of root.querySelectorAll("[data-t-label]")) node.setAttribute("aria-label", t(node.dataset.tLabel));
  }

  function choose(name, value) {
    const input = document.querySelector(`input[name="${name}"][value="${value}"]`);
    if (input) input.checked = true;
    return Boolean(input);
  }

  function setLanguage(value) {
    language = value;
    document.documentElement.lang = value === "zh" ? "zh-Hans" : "en";
    document.title = t("title");
    translate(document);
    for (const listener of listeners) listener();
  }

  // Runs now (once the page starts) and after every change of language.
  const onLanguage = (listener) => listeners.push(listener);

  function start() {
    const saved = remembered("language");
    const first = saved || (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");
    if (!choose("language", first)) choose("language", "en");
    const theme = remembered("theme") || "auto";
    document.documentElement.dataset.theme = choose("theme", theme) ? theme : "auto";
    for (const input of document.querySelectorAll('input[name="language"]')) {
      input.addEventListener("change", () => (remember("language", input.value), setLanguage(input.value)));
    }
    for (const input of document.querySelectorAll('input[name="theme"]')) {
      input.addEventListener("change", () => {
        remember("theme", input.value);
        document.documentElement.dataset.theme = input.value;
      });
    }
    setLanguage(document.querySelector('input[name="language"]:checked').value);
  }

  return { data, t, translate, onLanguage, start };
})();
